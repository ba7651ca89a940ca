"""Find the rows of a type that belong to each instance, and join instances that have about equally many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.arrays import LongArray
from autobatch.ir.program import NODE
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


class Taken(NamedTuple):
    """Some rows of each of n instances.

    Attributes:
        rows: [n, most of one]; those of an instance that has fewer are filled up with its last one.
        filled: bool, alike, which are filled up; None if no instance has fewer.
    """

    rows: LongArray
    filled: NDArray[np.bool_] | None


class Group(NamedTuple):
    """Instances with about equally many rows.

    Attributes:
        instances: [n], increasing.
        taken: their rows, for each of some `InstanceRows`.
    """

    instances: LongArray
    taken: list[Taken]


def groups_of(several: Sequence[InstanceRows], first: int, end: int) -> Iterator[Group]:
    """Join those of the instances first:end that have about equally many rows in each place; leave out those without.

    So that sums over the rows of each instance are a few array functions. Rows that are filled up are at most a third.
    """
    counts = np.stack([one.counts[first:end] for one in several], axis=1)
    sizes = round_up(counts)
    order = np.lexsort(sizes.T)  # stable
    ordered = sizes[order]
    ends = [*(np.flatnonzero((ordered[1:] != ordered[:-1]).any(axis=1)) + 1).tolist(), order.size]
    begin = 0
    for stop in ends:
        members, begin = order[begin:stop], stop
        own = counts[members]
        if own.any():
            instances = first + members
            yield Group(instances, [_take(one, instances, own[:, k]) for k, one in enumerate(several)])


def _take(one: InstanceRows, instances: LongArray, counts: LongArray) -> Taken:
    """Take the rows of some instances, of which each has so many."""
    most = int(counts.max())
    if (counts == most).all():
        return Taken(one.rows[one.ptr[instances][:, None] + np.arange(most)], None)
    places = np.minimum(np.arange(most), counts[:, None] - 1)
    return Taken(one.rows[one.ptr[instances][:, None] + places], places < np.arange(most))


def round_up(counts: LongArray) -> LongArray:
    """The next of the numbers 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, ...

    >>> round_up(np.array([0, 1, 3, 5, 7, 9, 13, 17])).tolist()
    [0, 1, 3, 6, 8, 12, 16, 24]
    """
    _, exponent = np.frexp(np.maximum(counts - 1, 0).astype(np.float64))  # 2**(exponent - 1) <= counts - 1
    step = 1 << np.maximum(exponent.astype(np.int64) - 2, 0)
    found: LongArray = (counts + step - 1) // step * step
    return found


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
