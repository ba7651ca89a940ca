"""What running a plan needs beside it, made once per plan: where the rows of every batch are, and what is called when.

The table of a type has a row of ints per batch, which compiled steps read, and one more for all rows of the type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch._jit import compiled
from autobatch.addresses import address_of, array_at
from autobatch.kernels.source import STAGES
from autobatch.plan import Plan, PlannedTypes
from autobatch.program import NODE
from autobatch.words import IntArray

if TYPE_CHECKING:
    from autobatch.executor.stages import CompiledCell

LongArray = NDArray[np.int64]


class Calls(NamedTuple):
    """The calls of a stage, in order.

    Attributes:
        calls: [n, 2] the number of a step, and of a batch among those of its type.
        ptr: [batches + 3] calls[ptr[b + 1]:ptr[b + 2]] belong to the b-th batch that runs; before and after them are
            those for all rows of a type at once.
    """

    calls: LongArray
    ptr: LongArray


class Prepared(NamedTuple):
    """A plan, prepared.

    Attributes:
        tables: by type, in the order of their numbers; only types that the plan has.
        scratch_size: elements of scratch memory.
        forward, backward: the calls of a stage; none backward in inference.
    """

    tables: dict[int, LongArray]
    scratch_size: int
    forward: Calls
    backward: Calls


class Shapes:
    """What the compiled cells of T types need, as arrays; zero for types that were not met in a plan.

    Attributes:
        cells: those met, by the number of their type.
        widths: [T, 3] columns of the table, elements of scratch memory that all rows use by turns, and such that every
            row has to itself.
        scratch_width: [stages, blocks] elements per row that batches use by turns.
        steps: [stages, T, 3] how many run once before all batches, per batch, and once after them.
    """

    def __init__(self, types: PlannedTypes, dtype: np.dtype[Any]) -> None:
        self.dtype, self.tables, self.saved_width = dtype, types.tables, types.saved_width
        self.cells: dict[int, CompiledCell] = {}
        n_types, n_blocks = len(types.cells), self.tables.block_width.size
        self.stages = STAGES if types.training else STAGES[:1]
        self.widths = np.zeros((n_types, 3), np.int64)
        self.scratch_width = np.zeros((len(self.stages), n_blocks), np.int64)
        self.steps = np.zeros((len(STAGES), n_types, 3), np.int64)

    def add(self, kind: int, cell: CompiledCell) -> None:
        """Take in a type."""
        self.cells[kind] = cell
        first = int(self.tables.block_ptr[kind])
        forward = cell.stage("forward")
        row_width = max(cell.stage(name).storage.row_width for name in self.stages)
        self.widths[kind] = len(forward.columns), row_width, forward.storage.kept_width
        for number, name in enumerate(self.stages):
            stage = cell.stage(name)
            for domain in range(NODE, NODE + len(cell.cell.layout.input_width)):
                self.scratch_width[number, first + domain - NODE] = stage.storage.scratch_width[domain]
            self.steps[number, kind] = stage.n_before, stage.n_per_batch, stage.n_after

    def prepare(self, plan: Plan, kinds: Sequence[int]) -> Prepared:
        """Prepare a plan, of which these are the types.

        Cost: O(batches), some ten microseconds.
        """
        groups = np.zeros(self.tables.block_width.size, np.int64)
        for block, edges in plan.segment_ptr.items():
            groups[block] = address_of(edges)
        flat, table_ptr, scratch_size, *calls = prepare_plan(
            plan.schedule.batch_type, plan.schedule.batch_ptr, plan.base_ptr, plan.base, plan.mirror, plan.dest_base,
            plan.saved_base, groups, self.tables.block_ptr, self.tables.out_ptr, self.saved_width, self.widths,
            self.scratch_width, self.steps,
        )  # fmt: skip
        tables = {}
        for kind in kinds:
            tables[kind] = flat[table_ptr[kind] : table_ptr[kind + 1]].reshape(-1, self.widths[kind, 0])
        return Prepared(tables, scratch_size, Calls(*calls[:2]), Calls(*calls[2:]))


@compiled
def prepare_plan(
    batch_type: IntArray, batch_ptr: IntArray, base_ptr: LongArray, base: LongArray, mirror: int, dest_base: LongArray,
    saved_base: LongArray, groups: LongArray, block_ptr: IntArray, out_ptr: IntArray, saved_width: LongArray,
    widths: LongArray, scratch_width: LongArray, steps: LongArray,
) -> tuple[LongArray, LongArray, int, LongArray, LongArray, LongArray, LongArray]:  # fmt: skip
    """Fill in the tables of all types, one after the other, and list the calls of both stages.

    Args:
        groups: by block the address of where the edges of each node begin.

    Returns:
        the tables, where that of each type begins, elements of scratch memory; calls and their parts, twice.
    """
    n_types = widths.shape[0]
    n_batches = np.zeros(n_types, np.int64)
    for batch in range(batch_type.size):
        n_batches[batch_type[batch]] += 1
    table_ptr = np.zeros(n_types + 1, np.int64)
    for kind in range(n_types):
        rows = n_batches[kind] + 1 if n_batches[kind] else 0
        table_ptr[kind + 1] = table_ptr[kind] + rows * widths[kind, 0]
    flat = np.empty(table_ptr[n_types], np.int64)
    needed = 0
    for kind in range(n_types):
        if n_batches[kind]:
            table = flat[table_ptr[kind] : table_ptr[kind + 1]].reshape((n_batches[kind] + 1, widths[kind, 0]))
            first, end = block_ptr[kind], block_ptr[kind + 1]
            used = fill_table(
                table, kind, batch_type, batch_ptr, base_ptr, base, mirror,
                dest_base[out_ptr[kind] : out_ptr[kind + 1]], groups[first:end], saved_base[first:end],
                saved_width[first:end], scratch_width[:, first:end], widths[kind, 1],
            )  # fmt: skip
            needed = max(needed, used)
    for kind in range(n_types):  # rows that are kept for all batches lie behind what these use by turns
        if n_batches[kind]:
            table = flat[table_ptr[kind] : table_ptr[kind + 1]].reshape((n_batches[kind] + 1, widths[kind, 0]))
            width, column = widths[kind, 2], 2 + 6 * (block_ptr[kind + 1] - block_ptr[kind])
            for k in range(n_batches[kind] + 1):
                table[k, column] = needed + table[k, 0] * width
            needed += table[n_batches[kind], 2] * width
    calls, ptr = list_calls(batch_type, n_batches, steps[0], False)
    calls_back, ptr_back = list_calls(batch_type, n_batches, steps[1], True)
    return flat, table_ptr, needed, calls, ptr, calls_back, ptr_back


@compiled
def list_calls(
    batch_type: IntArray, n_batches: LongArray, steps: LongArray, backward: bool
) -> tuple[LongArray, LongArray]:
    """List the calls of a stage, and the parts of this list; see `Calls`."""
    n_types, total = n_batches.size, 0
    first = np.zeros(n_types, np.int64)  # the number of a type's first step: of all types met, one after the other
    n_steps = 0
    for kind in range(n_types):
        if n_batches[kind]:
            first[kind] = n_steps
            n_steps += steps[kind].sum()
            total += steps[kind, 0] + n_batches[kind] * steps[kind, 1] + steps[kind, 2]
    calls, ptr = np.empty((total, 2), np.int64), np.empty(batch_type.size + 3, np.int64)
    done = np.zeros(n_types, np.int64)
    at = 0
    for part in range(batch_type.size + 2):
        ptr[part] = at
        number = part - 1
        if 0 <= number < batch_type.size:
            kind = batch_type[batch_type.size - 1 - number if backward else number]
            k = n_batches[kind] - 1 - done[kind] if backward else done[kind]
            done[kind] += 1
            for s in range(steps[kind, 1]):
                calls[at, 0], calls[at, 1] = first[kind] + steps[kind, 0] + s, k
                at += 1
            continue
        for kind in range(n_types):
            skipped, n = (0, steps[kind, 0]) if part == 0 else (steps[kind, 0] + steps[kind, 1], steps[kind, 2])
            for s in range(n if n_batches[kind] else 0):
                calls[at, 0], calls[at, 1] = first[kind] + skipped + s, n_batches[kind]
                at += 1
    ptr[batch_type.size + 2] = at
    return calls, ptr


@compiled
def fill_table(
    table: LongArray, kind: int, batch_type: IntArray, batch_ptr: IntArray, base_ptr: LongArray, base: LongArray,
    mirror: int, dest_base: LongArray, groups: LongArray, saved_base: LongArray, saved_width: LongArray,
    scratch_width: LongArray, row_width: int,
) -> int:  # fmt: skip
    """Fill in the table of a type, without rows that are kept; return the elements of scratch memory it needs.

    Args:
        table: [batches + 1, columns], columns as in `autobatch.kernels.source.columns_of`.
        dest_base: where the destinations of each output are listed.
        groups: by domain the address of where the edges of each node begin; 0 for nodes.
        saved_base: the first element of the saved values of each domain; none in inference.
        saved_width, scratch_width: elements per row, [domains] and [stages, domains].
        row_width: elements that every batch has once.
    """
    n_domains = saved_width.size
    rows = 2
    inputs, mirrored, saved = rows + n_domains, rows + 2 * n_domains, rows + 3 * n_domains
    scratch = rows + 4 * n_domains
    output_at = scratch + 2 * n_domains + 1
    k = start = total = 0
    first, needed = batch_type.size, row_width
    for batch in range(batch_type.size - 1, -1, -1):
        if batch_type[batch] == kind:
            first = batch
            total += batch_ptr[batch + 1] - batch_ptr[batch]
    for at in range(batch_type.size + 1):
        if at < batch_type.size and batch_type[at] != kind:
            continue
        is_batch = at < batch_type.size
        batch = at if is_batch else first
        start = start if is_batch else 0
        n_rows = batch_ptr[at + 1] - batch_ptr[at] if is_batch else total
        row = table[k]
        row[0], row[1] = start, mirror
        for domain in range(n_domains):
            first_row, n = start, n_rows
            if domain > 0:
                edges = array_at(groups[domain], np.int64)
                first_row, n = edges[start], edges[start + n_rows] - edges[start]
            row[rows + domain] = n
            row[inputs + domain] = base[base_ptr[batch] + domain]
            row[mirrored + domain] = base[base_ptr[batch] + domain] + mirror
            row[saved + domain] = first_row * saved_width[domain]
            if mirror:
                row[saved + domain] += saved_base[domain]
        for stage in range(scratch_width.shape[0]):
            end = row_width
            for domain in range(n_domains):
                row[scratch + stage * n_domains + domain] = end
                end += row[rows + domain] * scratch_width[stage, domain]
            if is_batch:
                needed = max(needed, end)
        for number in range(dest_base.size):
            row[output_at + number] = dest_base[number] + start
        start += n_rows
        k += 1
    return needed
