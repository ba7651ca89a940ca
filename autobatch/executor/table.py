"""Where the rows of every batch of a type are: one row of ints per batch, which compiled steps read."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from autobatch._jit import compiled
from autobatch.kernels.source import columns_of, letter_of
from autobatch.kernels.stage import Stage
from autobatch.plan import Plan, PlannedCell
from autobatch.program import NODE
from autobatch.words import IntArray

LongArray = NDArray[np.int64]


def make_table(plan: Plan, kind: int, cell: PlannedCell, stages: Mapping[str, Stage]) -> tuple[LongArray, int]:
    """Make the table of a type.

    Args:
        stages: "forward", and "backward" where there is one.

    Returns:
        a row per batch, and one for all rows of the type, with the columns of `columns_of`; and the elements of scratch
        memory that the largest batch needs.

    Cost: O(batches), some microseconds.
    """
    n_domains = 1 + cell.program.n_groups
    n_outputs = len(cell.program.outputs)
    first = plan.first_block(kind)
    columns = columns_of(cell.layout, n_outputs)
    batch_type = plan.schedule.batch_type
    table = np.empty((int(np.count_nonzero(batch_type == kind)) + 1, len(columns)), np.int64)
    out = int(plan.tables.out_ptr[kind])
    fill_nodes(
        table, kind, batch_type, plan.schedule.batch_ptr, plan.base_ptr, plan.base, plan.mirror, n_domains,
        plan.dest_base[out : out + n_outputs], columns.index("output_0") if n_outputs else 0,
    )  # fmt: skip
    needed = row_width = max(stage.storage.row_width for stage in stages.values())
    for domain in range(NODE, cell.program.n_groups):
        letter, block = letter_of(domain), first + domain - NODE
        if domain != NODE:
            fill_edges(
                table, plan.segment_ptr[block], columns.index(f"rows_{letter}"), columns.index(f"saved_{letter}")
            )
        saved = int(plan.saved_base[block]) if plan.mirror else 0
        saved_at = columns.index(f"saved_{letter}")
        table[:, saved_at] *= cell.layout.saved_width[domain - NODE]
        table[:, saved_at] += saved
    for name, stage in stages.items():
        widths = np.array([stage.storage.scratch_width[d] for d in range(NODE, cell.program.n_groups)], np.int64)
        rows_at = np.array(
            [columns.index(f"rows_{letter_of(d)}") for d in range(NODE, cell.program.n_groups)], np.int64
        )
        needed = max(needed, fill_scratch(table[:-1], rows_at, columns.index(f"{name}_n"), widths, row_width))
    return table, needed


@compiled
def fill_nodes(
    table: LongArray, kind: int, batch_type: IntArray, batch_ptr: IntArray, base_ptr: LongArray, base: LongArray,
    mirror: int, n_domains: int, dest_base: LongArray, output_at: int,
) -> None:  # fmt: skip
    """Fill in rows per node, first rows, places of inputs, and where destinations are listed."""
    k = start = 0
    first, total = batch_type.size, 0
    for batch in range(batch_type.size - 1, -1, -1):
        if batch_type[batch] == kind:
            first = batch
            total += batch_ptr[batch + 1] - batch_ptr[batch]
    for at in range(batch_type.size + 1):
        if at < batch_type.size and batch_type[at] != kind:
            continue
        batch, rows = first, total
        if at < batch_type.size:
            batch, rows = at, batch_ptr[at + 1] - batch_ptr[at]
        else:
            start = 0
        table[k, 0], table[k, 1], table[k, 2] = start, mirror, rows
        for domain in range(n_domains):
            table[k, 2 + n_domains + domain] = base[base_ptr[batch] + domain]
            table[k, 2 + 2 * n_domains + domain] = base[base_ptr[batch] + domain] + mirror
        table[k, 2 + 3 * n_domains] = start
        for number in range(dest_base.size):
            table[k, output_at + number] = dest_base[number] + start
        start += rows
        k += 1


@compiled
def fill_edges(table: LongArray, segments: LongArray, rows_at: int, first_at: int) -> None:
    """Fill in the rows of a group of edges, and the first of them."""
    for k in range(table.shape[0]):
        start, stop = table[k, 0], table[k, 0] + table[k, 2]
        table[k, rows_at] = segments[stop] - segments[start]
        table[k, first_at] = segments[start]


@compiled
def fill_scratch(table: LongArray, rows_at: LongArray, scratch_at: int, widths: LongArray, start: int) -> int:
    """Fill in where the scratch memory of each domain begins, after `start`; return the largest end."""
    largest = start
    for k in range(table.shape[0]):
        end = start
        for domain in range(widths.size):
            table[k, scratch_at + domain] = end
            end += table[k, rows_at[domain]] * widths[domain]
        largest = max(largest, end)
    return largest
