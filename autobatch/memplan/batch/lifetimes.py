"""Buffer reuse in inference: a batch's rows take memory only from their first writer until the batch has run.

Areas are allocated in the order of their first writers. Each takes the smallest gap that holds it (best fit), or else
the end of memory, with the gap before the end if there is one. An area is freed when its batch has run; neighbouring
gaps are merged. So the peak is known before anything runs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autobatch.graph.words import Sections
from autobatch.jit.arrays import IntArray
from autobatch.jit.loops import compiled

LongArray = NDArray[np.int64]


@compiled
def first_writers(graph: Sections, batch_of: IntArray, n_batches: int) -> IntArray:
    """Find the first batch that writes to each batch's rows; the batch itself if none does: int32[K].

    Args:
        batch_of: int32[N], the batch of each node.
    """
    edge_ptr, edge_src = graph.edge_ptr, graph.edge_src
    first = np.empty(n_batches, np.int32)
    for k in range(n_batches):
        first[k] = k
    for node in range(batch_of.size):
        k = batch_of[node]
        for e in range(edge_ptr[node], edge_ptr[node + 1]):
            first[k] = min(first[k], batch_of[edge_src[e]])
    return first


@compiled
def give_out(first: IntArray, size: LongArray, start: int) -> tuple[LongArray, int]:
    """Allocate areas of the given sizes; area k is live from step first[k] to step k.

    Args:
        first: int32[K], at most k.
        size: int64[K].
        start: where memory begins.

    Returns:
        the place of each area (`start` for an empty one), and the end of the memory used.

    >>> place, end = give_out(np.array([0, 0, 1, 2], np.int32), np.array([0, 16, 32, 16]), 0)
    >>> place.tolist(), int(end)
    ([0, 0, 16, 0], 48)
    """
    n = first.size
    place, end = np.empty(n, np.int64), start
    next_born, born_at = np.empty(n, np.int32), np.empty(n, np.int32)  # per step, a linked list of the areas that begin
    for k in range(n):
        place[k], next_born[k], born_at[k] = start, -1, -1
    for k in range(n - 1, -1, -1):
        next_born[k], born_at[first[k]] = born_at[first[k]], k
    gap_start, gap_end, n_gaps = np.empty(n + 1, np.int64), np.empty(n + 1, np.int64), 0
    for step in range(n):
        k = born_at[step]
        while k >= 0:
            if size[k] > 0:
                best = -1
                for g in range(n_gaps):
                    room = gap_end[g] - gap_start[g]
                    if room >= size[k] and (best < 0 or room < gap_end[best] - gap_start[best]):
                        best = g
                if best < 0:
                    if n_gaps > 0 and gap_end[n_gaps - 1] == end:
                        n_gaps -= 1
                        end = gap_start[n_gaps]
                    place[k] = end
                    end += size[k]
                else:
                    place[k] = gap_start[best]
                    gap_start[best] += size[k]
                    if gap_start[best] == gap_end[best]:
                        n_gaps = _close_gap(gap_start, gap_end, n_gaps, best)
            k = next_born[k]
        if size[step] > 0:
            n_gaps = _open_gap(gap_start, gap_end, n_gaps, place[step], place[step] + size[step])
    return place, end


@compiled
def _close_gap(gap_start: LongArray, gap_end: LongArray, n_gaps: int, at: int) -> int:
    """Remove a gap from the list, which is sorted by place; return the number left."""
    for g in range(at, n_gaps - 1):
        gap_start[g], gap_end[g] = gap_start[g + 1], gap_end[g + 1]
    return n_gaps - 1


@compiled
def _open_gap(gap_start: LongArray, gap_end: LongArray, n_gaps: int, start: int, end: int) -> int:
    """Add a gap to the list, merged with the gaps that it touches; return the new number."""
    at = n_gaps
    while at > 0 and gap_start[at - 1] >= end:
        at -= 1
    if at > 0 and gap_end[at - 1] == start:
        gap_end[at - 1] = end
        if at < n_gaps and gap_start[at] == end:
            gap_end[at - 1] = gap_end[at]
            return _close_gap(gap_start, gap_end, n_gaps, at)
        return n_gaps
    if at < n_gaps and gap_start[at] == end:
        gap_start[at] = start
        return n_gaps
    for g in range(n_gaps, at, -1):
        gap_start[g], gap_end[g] = gap_start[g - 1], gap_end[g - 1]
    gap_start[at], gap_end[at] = start, end
    return n_gaps + 1
