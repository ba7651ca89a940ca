"""Find the rows of a type that belong to each instance, and join instances that have equally many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.ir.program import NODE
from autobatch.jit.arrays import LongArray
from autobatch.plan.plan import Plan


class InstanceRows:
    """The rows of a domain of a type, by instance.

    Args:
        active: whether each node of the type counts, bool[N_type]; None for all. The rows of others are left out.

    Attributes:
        instance: [rows] of each row, also of those that are left out.
        rows: the rows by instance, each instance's in their order: those of instance b are rows[ptr[b]:ptr[b + 1]].
        ptr: [B+1].
        counts: [B] rows of each instance.

    Cost: a sort of the rows.
    """

    def __init__(self, plan: Plan, type_id: int, domain: int, active: NDArray[np.bool_] | None = None) -> None:
        graph, first, end = plan.graph, int(plan.type_ptr[type_id]), int(plan.type_ptr[type_id + 1])
        per_node = np.searchsorted(graph.instance_ptr, plan.node_at[first:end], side="right") - 1
        kept = np.ones(end - first, bool) if active is None else active
        if domain > NODE:
            lengths = np.diff(plan.segments_of(type_id, domain)[: end - first + 1])
            per_node, kept = np.repeat(per_node, lengths), np.repeat(kept, lengths)
        self.instance: LongArray = per_node
        rows = np.flatnonzero(kept)
        self.rows: LongArray = rows[np.argsort(per_node[rows], kind="stable")]
        self.counts: LongArray = np.bincount(per_node[rows], minlength=graph.n_instances)
        self.ptr: LongArray = np.concatenate(([0], np.cumsum(self.counts)))


class Group(NamedTuple):
    """Instances with equally many rows.

    Attributes:
        instances: [n] of a type's mini-batch, increasing.
        rows: for each of some `InstanceRows`, the rows of these instances, [n, rows of one].
    """

    instances: LongArray
    rows: list[LongArray]


def groups_of(several: Sequence[InstanceRows], first: int, end: int) -> Iterator[Group]:
    """Join those of the instances first:end that have equally many rows in each place; leave out those without any.

    So that sums over the rows of each instance are a few array functions, without padding.
    """
    counts = np.stack([one.counts[first:end] for one in several], axis=1)
    order = np.lexsort(counts.T)  # stable
    ordered = counts[order]
    starts = np.flatnonzero((ordered[1:] != ordered[:-1]).any(axis=1)) + 1
    for instances in np.split(first + order, starts):
        lengths = counts[instances[0] - first].tolist() if instances.size else []
        if any(lengths):
            pairs = zip(several, lengths, strict=True)
            yield Group(instances, [one.rows[one.ptr[instances][:, None] + np.arange(n)] for one, n in pairs])


def cut(sizes: LongArray, most: int) -> Iterator[tuple[int, int]]:
    """Cut instances into runs of consecutive ones whose sizes add up to at most so much, or which are one instance.

    >>> list(cut(np.array([2, 2, 9, 1, 1]), 4))
    [(0, 2), (2, 3), (3, 5)]
    """
    first = total = 0
    for place, size in enumerate(sizes.tolist()):
        if place > first and total + size > most:
            yield first, place
            first, total = place, 0
        total += size
    if sizes.size:
        yield first, sizes.size
