"""Many lattices as one, batched by the agenda: it always runs all ready arcs of the kind with the most ready arcs.

An arc is ready when its start is complete, that is, when all arcs that end there have run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from autobatch.models.data.lattice import Lattice

Ints: TypeAlias = npt.NDArray[np.int64]
KINDS = CHARACTER, WORD = range(2)


class Arcs(NamedTuple):
    """The arcs of one kind, in the order in which they run: where they start and end, and what they read."""

    starts: Tensor
    ends: Tensor
    ids: Tensor


class Lattices(NamedTuple):
    """P positions of B lattices.

    Attributes:
        arcs: arcs of each kind.
        batches: (kind, number of arcs), one after the other.
        firsts: the first position of each lattice, (B,).
        tagged: all other positions; `tags` and `lattices` are their tags and the numbers of their lattices.
        n_positions: P.
    """

    arcs: tuple[Arcs, Arcs]
    batches: list[tuple[int, int]]
    firsts: Tensor
    tagged: Tensor
    tags: Tensor
    lattices: Tensor
    n_positions: int


class Listed(NamedTuple):
    """One lattice: rows of its arcs' start, end, id and kind, in the order of their starts; and its tags."""

    arcs: Ints
    tags: Ints


def list_arcs(lattice: Lattice[int]) -> Listed:
    """Sort the arcs of a lattice by their starts."""
    arcs = sorted(
        (start, end, word, CHARACTER if start == end - 1 else WORD)
        for end, arcs in enumerate(lattice.arcs)
        for start, word in arcs
    )  # an arc from a position to the next is a character, and comes before the words
    return Listed(np.array(arcs, np.int64).reshape(-1, 4).T, np.array(lattice.tags, np.int64))


def merge_lattices(listed: Sequence[Listed]) -> Lattices:
    """Number all positions and arcs, and decide what runs together."""
    sizes = np.array([len(one.tags) for one in listed])
    firsts = np.cumsum(sizes) - sizes
    shift = np.repeat(firsts, [one.arcs.shape[1] for one in listed])
    starts, ends, ids, kinds = np.concatenate([one.arcs for one in listed], axis=1)
    starts, ends = starts + shift, ends + shift
    n_positions = int(sizes.sum())
    batches = run_agenda(starts, ends, kinds, firsts, n_positions)
    orders = [np.array([arc for kind, arcs in batches if kind == k for arc in arcs], np.int64) for k in KINDS]
    is_tagged = np.ones(n_positions, bool)
    is_tagged[firsts] = False
    characters, words = (Arcs(*(torch.from_numpy(values[order]) for values in (starts, ends, ids))) for order in orders)
    return Lattices(
        (characters, words),
        [(kind, len(arcs)) for kind, arcs in batches],
        torch.from_numpy(firsts),
        torch.from_numpy(np.flatnonzero(is_tagged)),
        torch.from_numpy(np.concatenate([one.tags for one in listed])[is_tagged]),
        torch.from_numpy(np.repeat(np.arange(len(listed)), sizes)[is_tagged]),
        n_positions,
    )


def run_agenda(starts: Ints, ends: Ints, kinds: Ints, firsts: Ints, n_positions: int) -> list[tuple[int, list[int]]]:
    """Decide the batches: kind and arcs of each. Arcs are in the order of their starts, characters before words."""
    edges = np.searchsorted(2 * starts + kinds, np.arange(2 * n_positions + 1)).tolist()
    waits_for = np.bincount(ends, minlength=n_positions).tolist()
    end_of = ends.tolist()
    ready: list[list[int]] = [[] for _ in KINDS]

    def complete(position: int) -> None:
        first, words, end = edges[2 * position : 2 * position + 3]
        ready[CHARACTER].extend(range(first, words))
        ready[WORD].extend(range(words, end))

    for position in firsts.tolist():
        complete(position)
    batches = []
    while any(ready):
        kind = max(KINDS, key=lambda k: len(ready[k]))
        arcs, ready[kind] = ready[kind], []
        batches.append((kind, arcs))
        for arc in arcs:
            waits_for[end_of[arc]] -= 1
            if not waits_for[end_of[arc]]:
                complete(end_of[arc])
    return batches
