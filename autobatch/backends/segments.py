"""Find the rows of each instance among those of a type, and group instances that have about equally many.

The rows of an instance do not lie side by side, so sums over them gather them: those of a group as one array
(instances, rows, *shape), filled up with zeros, for a single call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.arrays import LongArray
from autobatch.ir.program import NODE
from autobatch.plan.plan import Plan

AT_ONCE = 1 << 18
"""Numbers that several instances may need together: 1 MiB of float32, which a core's cache holds."""


class InstanceRows:
    """The rows of a domain of a type, by instance.

    Args:
        active: whether each node of the type counts, bool[N_type]; None for all. The rows of others are left out.

    Attributes:
        instance: [rows] the instance of each row, also of those that are left out.
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

    def take(self, instances: LongArray) -> Taken:
        """Return the rows of some instances; either all of them have rows, or none."""
        counts = self.counts[instances][:, None]
        places = np.arange(int(counts.max()))
        filled = places >= counts
        rows = self.rows[self.ptr[instances][:, None] + np.minimum(places, counts - 1)]
        return Taken(rows, filled if filled.any() else None)


class Taken(NamedTuple):
    """The rows of the n instances of a group.

    Attributes:
        rows: [n, most of one]; those of an instance that has fewer are filled up with its last one.
        filled: bool, alike, which are filled up; None if no instance has fewer.
    """

    rows: LongArray
    filled: NDArray[np.bool_] | None

    def of(self, args: Sequence[Any], put: Any, shared: Sequence[int] = ()) -> list[Any]:
        """Gather rows of arrays (rows, *shape): (n, most of one, *shape).

        The first of them is zero where rows are filled up, so that products are zero there.

        Args:
            put: gives an array of NumPy as one of the device.
            shared: the places of arrays (1, *shape) whose row all share; they stay, as (1, 1, *shape).
        """
        rows = put(self.rows)
        taken = [x[None] if place in shared else x[rows] for place, x in enumerate(args)]
        if self.filled is not None:
            taken[next(place for place in range(len(args)) if place not in shared)][put(self.filled)] = 0
        return taken


class Group(NamedTuple):
    """Some instances with about equally many rows.

    Attributes:
        places: [n] those of the instances, counted from the first of all groups, increasing.
        taken: their rows, for each of some `InstanceRows`.
    """

    places: LongArray
    taken: list[Taken]

    def where(self, put: Any) -> Any:
        """Return the index of the places: a slice if they are adjacent."""
        first, end = int(self.places[0]), int(self.places[-1]) + 1
        return slice(first, end) if end - first == self.places.size else put(self.places)


def groups_of(several: Sequence[InstanceRows], first: int, end: int) -> Iterator[Group]:
    """Group those of the instances first:end that have about equally many rows in each of `several`.

    Instances without rows are left out. At most a third of the rows of a group are filled up.
    """
    sizes = round_up(np.stack([one.counts[first:end] for one in several], axis=1))
    order = np.lexsort(sizes.T)  # stable
    ordered = sizes[order]
    ends = [*(np.flatnonzero((ordered[1:] != ordered[:-1]).any(axis=1)) + 1).tolist(), order.size]
    for start, stop in zip([0, *ends], ends, strict=False):
        if ordered[start].any():
            places = order[start:stop]
            yield Group(places, [one.take(first + places) for one in several])


def round_up(counts: LongArray) -> LongArray:
    """Return the next of the numbers 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, ...

    >>> round_up(np.array([0, 1, 3, 5, 7, 9, 13, 17])).tolist()
    [0, 1, 3, 6, 8, 12, 16, 24]
    """
    _, exponent = np.frexp(np.maximum(counts - 1, 0).astype(np.float64))  # 2**(exponent - 1) <= counts - 1
    step = 1 << np.maximum(exponent.astype(np.int64) - 2, 0)
    found: LongArray = (counts + step - 1) // step * step
    return found


def cut(sizes: LongArray, most: int = AT_ONCE) -> Iterator[tuple[int, int]]:
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
