"""Ops that move rows of any number: slices along the rows of each node, joins of them, and their transposes.

In a batch, the rows of a node are a range of the rows of a variadic group, its *segment*. `take_rows` joins slices of
the segments of its arguments; the result has segments of its own, a *derived* group. A slice is (start, stop, step), as
Python has it, with `END` for an end that is left out. An argument of the node, or one that all nodes share, has as many
rows as its first axis is long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autobatch.ops.define import Array, Op, Shape, define_op
from autobatch.ops.variadic import Segments

Cut: TypeAlias = tuple[int, int, int]
END = 2**30  # beyond any row; -END is before any


class Picked(NamedTuple):
    """The rows of each node that a slice gives: `counts` of them, from `first` on, `step` apart."""

    first: NDArray[np.int64]
    counts: NDArray[np.int64]
    step: int


def as_cut(index: slice) -> Cut:
    """A slice as three ints."""
    step = 1 if index.step is None else int(index.step)
    start, stop = (0, END) if step > 0 else (END, -END)
    return start if index.start is None else int(index.start), stop if index.stop is None else int(index.stop), step


def pick(lengths: NDArray[np.int64], cut: Cut) -> Picked:
    """The rows that a slice gives of values of these lengths.

    >>> pick(np.array([0, 2, 5]), as_cut(slice(1, None))).counts
    array([0, 1, 4])
    """
    start, stop, step = cut
    low, high = (0, lengths) if step > 0 else (-1, lengths - 1)
    first, last = (np.clip(end + lengths * (end < 0), low, high) for end in (start, stop))
    counts = (last - first + step - (1 if step > 0 else -1)) // step
    return Picked(first, np.maximum(counts, 0), step)


def count_rows(n: int, cut: Cut) -> int:
    """How many rows a slice gives of `n`."""
    return len(range(n)[slice(*cut)])


def _moves(segments: Sequence[Segments], cuts: Sequence[Cut]) -> Iterator[tuple[Array, Array]]:
    """For each argument, the numbers of the rows that are taken, and of the rows that they become."""
    picked = [pick(own.lengths, cut) for own, cut in zip(segments, cuts, strict=True)]
    total = np.sum([part.counts for part in picked], axis=0)
    before = np.cumsum(total) - total
    for own, (first, counts, step) in zip(segments, picked, strict=True):
        nodes = np.repeat(np.arange(counts.size), counts)
        k = np.arange(nodes.size) - (np.cumsum(counts) - counts)[nodes]
        yield own.put(own.ptr[:-1][nodes] + first[nodes] + k * step), own.put(before[nodes] + k)
        before = before + counts


def _take(xp: Any, *parts: Array, out: Array, segments: Any, cuts: Any, fixed: Any, group: int, is_one: bool) -> None:
    for part, own, is_fixed, (taken, made) in zip(parts, segments, fixed, _moves(segments, cuts), strict=True):
        rows = part
        if is_fixed:
            rows = xp.broadcast_to(part, (own.lengths.size, *part.shape[1:])).reshape(-1, *part.shape[2:])
        out[made] = rows[taken]


def _put(xp: Any, *arrays: Array, out: Array, segments: Any, cuts: Any, fixed: Any, number: int) -> None:
    taken, made = next(islice(_moves(segments[1:], cuts), number, None))
    out[...] = 0
    place = (taken // out.shape[1], taken % out.shape[1]) if fixed[number] else taken
    out[place] = arrays[0][made]


def _shape(*parts: Shape, cuts: Any, fixed: Any, group: int, is_one: bool) -> Shape:
    return parts[0][1:] if fixed[0] else parts[0]


def _pullback(g: Any, out: Any, *parts: Any, cuts: Any, fixed: Any, group: int, is_one: bool) -> tuple[Any, ...]:
    return tuple(put_rows(g, *parts, cuts=cuts, fixed=fixed, number=number) for number in range(len(parts)))


take_rows: Op = define_op("take_rows", shape=_shape, kernel=_take, pullback=_pullback, segments="move")
put_rows: Op = define_op(
    "put_rows", shape=lambda g, *parts, cuts, fixed, number: parts[number], kernel=_put, segments="move"
)  # fmt: skip
