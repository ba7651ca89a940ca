"""Sum values that several nodes add to one place, in the order of the nodes: the same run gives the same bits.

On the CPU a node adds its value to what is there. Here the nodes of a batch run at the same time, so each leaves the
value that it would add in a place of its own, behind the buffer; when the batch is done, they are added up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.backends.tiles import PlanArrays, arrays_of, rows_of_output
from autobatch.jit.loops import compiled
from autobatch.plan.plan import Plan, PlannedTypes

LongArray = NDArray[np.int64]


class Sums(NamedTuple):
    """Where values are written, and what is added up after which batch.

    Attributes:
        to: for each destination of the plan, where the value is written: there, or behind the buffer.
        table: [sums, 4] the place of each sum, its number of elements, and the first and the end of its parts.
        parts: the places of the parts, in the order in which they are added.
        ptr: [batches + 1] after batch b, sums ptr[b]:ptr[b + 1] are added up.
        size: elements behind the buffer.
    """

    to: LongArray
    table: LongArray
    parts: LongArray
    ptr: LongArray
    size: int


def find_sums(plan: Plan, cells: PlannedTypes) -> Sums:
    """Find the sums of a plan. Cost: O(destinations log(destinations of a batch))."""
    if not plan.adds_up:
        none = np.zeros(0, np.int64)
        return Sums(plan.dest, np.zeros((0, 4), np.int64), none, np.zeros(len(plan.batches) + 1, np.int64), 0)
    widths = [cell.program.vars[output].size for cell in cells.cells for output in cell.program.outputs]
    return _find(arrays_of(plan), plan.dest.astype(np.int64), np.array(widths, np.int64), plan.size)


@compiled
def _find(plan: PlanArrays, dest: LongArray, width: LongArray, first: int) -> Sums:
    batch_type, batch_ptr, dest_ptr, adds = plan.batch_type, plan.batch_ptr, plan.dest_ptr, plan.adds
    to, n_adds = dest.copy(), adds.sum()
    table, parts, ptr = (
        np.empty((n_adds, 4), np.int64),
        np.empty(n_adds, np.int64),
        np.zeros(batch_type.size + 1, np.int64),
    )
    done = np.zeros(plan.out_ptr.size - 1, np.int64)
    n_sums = n_parts = size = 0
    place, wide, own = np.empty(n_adds, np.int64), np.empty(n_adds, np.int64), np.empty(n_adds, np.int64)
    for batch in range(batch_type.size):
        type_id, n_rows = batch_type[batch], batch_ptr[batch + 1] - batch_ptr[batch]
        found = behind = 0
        for output in range(plan.out_ptr[type_id], plan.out_ptr[type_id + 1]):
            row, end = rows_of_output(plan, type_id, output, done[type_id], done[type_id] + n_rows)
            for entry in range(dest_ptr[row], dest_ptr[end]):
                if adds[entry]:
                    place[found], wide[found], own[found] = dest[entry], width[output], first + behind
                    to[entry] = first + behind
                    behind += width[output]
                    found += 1
        done[type_id] += n_rows
        size = max(size, behind)
        order = np.argsort(place[:found], kind="mergesort")
        for at in range(found):
            entry = order[at]
            if at == 0 or place[entry] != table[n_sums - 1, 0]:
                table[n_sums, 0], table[n_sums, 1], table[n_sums, 2] = place[entry], wide[entry], n_parts
                n_sums += 1
            parts[n_parts] = own[entry]
            n_parts += 1
            table[n_sums - 1, 3] = n_parts
        ptr[batch + 1] = n_sums
    return Sums(to, table[:n_sums], parts[:n_parts], ptr, size)
