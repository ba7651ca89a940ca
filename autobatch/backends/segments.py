"""Find the rows of each instance among the rows of a type, and group instances with about equally many rows.

The rows of an instance are not contiguous, so sums over them gather the rows: those of a group in one array
(instances, rows, *shape), padded with zeros, for a single call.
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
"""Numbers that the instances of a chunk may need together: 1 MiB of float32, which fits in a core's cache."""


class InstanceRows:
    """The rows of a domain of a type, by instance.

    Args:
        active: bool[N_type], which nodes of the type to include; None for all.

    Attributes:
        instance: [rows] the instance of each row, including rows of excluded nodes.
        rows: the included rows, sorted by instance and then by row; instance b has rows[ptr[b]:ptr[b + 1]].
        ptr: [B+1].
        counts: [B] the number of included rows of each instance.

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
        """Return the rows of some instances, padded to the same number; either all of them have rows, or none."""
        counts = self.counts[instances][:, None]
        places = np.arange(int(counts.max()))
        filled = places >= counts
        # Padding repeats a row of the same instance: `Taken.of` clears one factor only, and zero times an infinite
        # number of another instance would be NaN.
        rows = self.rows[self.ptr[instances][:, None] + np.minimum(places, counts - 1)]
        return Taken(rows, filled if filled.any() else None)


class Taken(NamedTuple):
    """The rows of the n instances of a group, padded to the largest number of rows of one instance.

    Attributes:
        rows: [n, most rows]; an instance with fewer rows repeats its last one.
        filled: bool[n, most rows], which rows are padding; None if there is no padding.
    """

    rows: LongArray
    filled: NDArray[np.bool_] | None

    def of(self, args: Sequence[Any], put: Any, shared: Sequence[int] = ()) -> list[Any]:
        """Gather rows of arrays (rows, *shape) into arrays (n, most rows, *shape).

        The padding of the first array that is not shared is set to zero, so that products are zero there.

        Args:
            put: copies a NumPy array to the device.
            shared: the places of arrays (1, *shape) whose single row all share; they become (1, 1, *shape).
        """
        rows = put(self.rows)
        taken = [x[None] if place in shared else x[rows] for place, x in enumerate(args)]
        if self.filled is not None:
            taken[next(place for place in range(len(args)) if place not in shared)][put(self.filled)] = 0
        return taken


class Group(NamedTuple):
    """Some instances with about equally many rows.

    Attributes:
        places: [n] the positions of the instances in the range that was grouped, increasing.
        taken: the rows of the instances, for each of the given `InstanceRows`.
    """

    places: LongArray
    taken: list[Taken]

    def where(self, put: Any) -> Any:
        """Return an index of the places: a slice if they are adjacent, else an array of the device."""
        first, end = int(self.places[0]), int(self.places[-1]) + 1
        return slice(first, end) if end - first == self.places.size else put(self.places)


def groups_of(several: Sequence[InstanceRows], first: int, end: int) -> Iterator[Group]:
    """Group the instances first:end that have about equally many rows in each of `several`.

    Instances without rows are omitted. At most a third of the rows of a group are padding.
    """
    sizes = round_up(np.stack([one.counts[first:end] for one in several], axis=1))
    order = np.lexsort(sizes.T)  # stable, so that the places of a group increase, as `Group.where` requires
    ordered = sizes[order]
    ends = [*(np.flatnonzero((ordered[1:] != ordered[:-1]).any(axis=1)) + 1).tolist(), order.size]
    for start, stop in zip([0, *ends], ends, strict=False):
        if ordered[start].any():
            places = order[start:stop]
            yield Group(places, [one.take(first + places) for one in several])


def round_up(counts: LongArray) -> LongArray:
    """Round each count up to one of 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, ...

    >>> round_up(np.array([0, 1, 3, 5, 7, 9, 13, 17])).tolist()
    [0, 1, 3, 6, 8, 12, 16, 24]
    """
    # With `counts - 1`, a power of two stays as it is. The step is 2**(exponent - 2), so counts up to 2**exponent are
    # rounded up to 3 or 4 steps.
    _, exponent = np.frexp(np.maximum(counts - 1, 0).astype(np.float64))  # 2**(exponent - 1) <= counts - 1
    step = 1 << np.maximum(exponent.astype(np.int64) - 2, 0)
    found: LongArray = (counts + step - 1) // step * step
    return found


def cut(sizes: LongArray, most: int = AT_ONCE) -> Iterator[tuple[int, int]]:
    """Cut instances into chunks of consecutive instances whose sizes add up to at most `most`, or of a single instance.

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
