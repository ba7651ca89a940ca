"""What running a plan needs beside it, made once per plan: where the rows of every piece of a batch are.

Batches are cut in pieces (`autobatch.runtime.cpu.pieces`). The table of a type has a row of ints per piece, which
compiled steps read: of the pieces of its batches in order, and behind them of those that all rows of the type are cut
in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.compiler.numba.writer import STAGES
from autobatch.ir.program import NODE
from autobatch.jit.addresses import address_of, array_at
from autobatch.jit.arrays import IntArray
from autobatch.jit.loops import compiled
from autobatch.plan.plan import Plan, PlannedTypes
from autobatch.runtime.cpu.pieces import Calls, count_pieces, find_alone, list_calls, most_rows, rows_of_piece
from autobatch.runtime.cpu.stages import CompiledCell

LongArray = NDArray[np.int64]


class Prepared(NamedTuple):
    """A plan, prepared.

    Attributes:
        shapes, n_threads: that it is prepared for.
        tables: by type, in the order of their numbers; only types that the plan has.
        mean_rows: [blocks, 2] of a piece, of batches and of all rows; 0 where nothing runs for all rows at once.
        kept_size, scratch_size: elements of scratch memory: that steps of all rows leave, and that pieces use by turns.
        forward, backward: the calls of a stage; none backward in inference.
    """

    shapes: Shapes
    n_threads: int
    tables: dict[int, LongArray]
    mean_rows: LongArray
    kept_size: int
    scratch_size: int
    forward: Calls
    backward: Calls


class Shapes:
    """What the cells of T types need, compiled in one way, as arrays; zero for types that were not met in a plan.

    Attributes:
        cells: those met, by the number of their type.
        columns: [T] of the tables.
        turn_width, kept_width: [T] elements of scratch memory that each piece has once, and each row of nodes.
        most_rows: [T] of a piece.
        scratch_width: [stages, blocks] elements per row that pieces use by turns.
        steps: [stages, T, 3] how many run once before all batches, per batch, and once after them.
    """

    def __init__(self, types: PlannedTypes, dtype: np.dtype[Any]) -> None:
        self.dtype, self.tables, self.saved_width = dtype, types.tables, types.saved_width
        self.cells: dict[int, CompiledCell] = {}
        n_types, n_blocks = len(types.cells), self.tables.block_width.size
        self.stages = STAGES if types.training else STAGES[:1]
        self.columns, self.turn_width, self.kept_width, self.most_rows = np.zeros((4, n_types), np.int64)
        self.scratch_width = np.zeros((len(self.stages), n_blocks), np.int64)
        self.steps = np.zeros((len(STAGES), n_types, 3), np.int64)

    def add(self, kind: int, cell: CompiledCell) -> None:
        """Take in a type."""
        blocks = slice(int(self.tables.block_ptr[kind]), int(self.tables.block_ptr[kind + 1]))
        forward = cell.stage("forward")
        self.columns[kind], self.kept_width[kind] = len(forward.columns), forward.storage.kept_width
        self.turn_width[kind] = max(cell.stage(name).turn_width for name in self.stages)
        for number, name in enumerate(self.stages):
            stage = cell.stage(name)
            for domain in range(NODE, NODE + len(cell.cell.layout.input_width)):
                self.scratch_width[number, blocks.start + domain - NODE] = stage.storage.scratch_width[domain]
            self.steps[number, kind] = stage.n_before, stage.n_per_batch, stage.n_after
        width = self.tables.block_width[blocks] + self.saved_width[blocks] + self.scratch_width[:, blocks].max(0)
        self.most_rows[kind] = most_rows((int(width.sum()) + int(self.kept_width[kind])) * self.dtype.itemsize)
        self.cells[kind] = cell  # compiling may be interrupted: what is here is complete

    def prepare(self, plan: Plan, kinds: Sequence[int], n_threads: int) -> Prepared:
        """Prepare a plan, of which these are the types.

        Cost: O(pieces), some ten microseconds.
        """
        groups = np.zeros(self.tables.block_width.size, np.int64)
        for block, edges in plan.segment_ptr.items():
            groups[block] = address_of(edges)
        flat, table_ptr, mean_rows, kept_size, scratch_size, *calls = prepare_plan(
            plan.schedule.batch_type, plan.schedule.batch_ptr, plan.base_ptr, plan.base, plan.mirror, plan.dest_base,
            plan.saved_base, groups, self.tables.block_ptr, self.tables.out_ptr, self.tables.block_width,
            self.saved_width, self.columns, self.turn_width, self.kept_width, self.scratch_width, self.most_rows,
            self.steps, n_threads,
        )  # fmt: skip
        tables = {}
        for kind in kinds:
            tables[kind] = flat[table_ptr[kind] : table_ptr[kind + 1]].reshape(-1, self.columns[kind])
        alone = nowhere = np.zeros(0, np.bool_)
        if n_threads > 1 and plan.adds_up:
            alone = find_alone(
                plan.schedule.batch_type, plan.schedule.batch_ptr, plan.dest_base, plan.dest_ptr, plan.adds,
                self.tables.out_ptr,
            )  # fmt: skip
        forward = Calls(calls[0], calls[1], calls[2], alone)
        backward = Calls(calls[3], calls[4], calls[5], nowhere)
        return Prepared(self, n_threads, tables, mean_rows, kept_size, scratch_size, forward, backward)


@compiled
def prepare_plan(
    batch_type: IntArray, batch_ptr: IntArray, base_ptr: LongArray, base: LongArray, mirror: int, dest_base: LongArray,
    saved_base: LongArray, groups: LongArray, block_ptr: IntArray, out_ptr: IntArray, input_width: IntArray,
    saved_width: LongArray, columns: LongArray, turn_width: LongArray, kept_width: LongArray, scratch_width: LongArray,
    most_rows: LongArray, steps: LongArray, n_threads: int,
) -> tuple[
    LongArray, LongArray, LongArray, int, int, LongArray, LongArray, LongArray, LongArray, LongArray, LongArray
]:  # fmt: skip
    """Fill in the tables of all types, one after the other, and list the calls of both stages.

    Args:
        groups: by block the address of where the edges of each node begin.

    Returns:
        the tables, where that of each type begins, mean rows of pieces, elements of scratch memory, kept and by turns;
        calls, those of pieces, and pieces of parts, twice.
    """
    n_types = columns.size
    n_batches, n_pieces, n_rows = (
        np.zeros(n_types, np.int64),
        np.zeros((n_types, 2), np.int64),
        np.zeros(n_types, np.int64),
    )
    for batch in range(batch_type.size):
        kind, rows = batch_type[batch], batch_ptr[batch + 1] - batch_ptr[batch]
        n_batches[kind] += 1
        n_rows[kind] += rows
        n_pieces[kind, 0] += count_pieces(rows, most_rows[kind], n_threads)
    table_ptr = np.zeros(n_types + 1, np.int64)
    for kind in range(n_types):
        if 0 < n_rows[kind] < n_batches[kind] * most_rows[kind]:
            n_pieces[kind, 1] = count_pieces(n_rows[kind], most_rows[kind], n_threads)
        table_ptr[kind + 1] = table_ptr[kind] + n_pieces[kind].sum() * columns[kind]
    flat, mean_rows = np.empty(table_ptr[n_types], np.int64), np.zeros((groups.size, 2), np.int64)
    kept = by_turns = 0
    for kind in range(n_types):
        if n_batches[kind]:
            first, end = block_ptr[kind], block_ptr[kind + 1]
            needed = fill_table(
                flat[table_ptr[kind] : table_ptr[kind + 1]].reshape((n_pieces[kind].sum(), columns[kind])), kind,
                batch_type, batch_ptr, base_ptr, base, mirror, dest_base[out_ptr[kind] : out_ptr[kind + 1]],
                groups[first:end], saved_base[first:end], input_width[first:end], saved_width[first:end],
                scratch_width[:, first:end], turn_width[kind], kept_width[kind], kept, most_rows[kind],
                n_pieces[kind, 1], n_threads,
            )  # fmt: skip
            by_turns = max(by_turns, needed)
            for block in range(first, end):
                total = array_at(groups[block], np.int64)[n_rows[kind]] if block > first else n_rows[kind]
                mean_rows[block] = total // np.maximum(n_pieces[kind], 1)
                mean_rows[block, 1] *= n_pieces[kind, 1] > 0
            kept += n_rows[kind] * kept_width[kind] if n_pieces[kind, 1] else 0
    calls, piece_ptr, ptr = list_calls(batch_type, batch_ptr, n_pieces, most_rows, steps[0], n_threads, False)
    back, piece_ptr_back, ptr_back = list_calls(batch_type, batch_ptr, n_pieces, most_rows, steps[1], n_threads, True)
    return flat, table_ptr, mean_rows, kept, by_turns, calls, piece_ptr, ptr, back, piece_ptr_back, ptr_back


@compiled
def fill_table(
    table: LongArray, kind: int, batch_type: IntArray, batch_ptr: IntArray, base_ptr: LongArray, base: LongArray,
    mirror: int, dest_base: LongArray, groups: LongArray, saved_base: LongArray, input_width: IntArray,
    saved_width: LongArray, scratch_width: LongArray, turn_width: int, kept_width: int, kept_base: int, most_rows: int,
    n_whole: int, n_threads: int,
) -> int:  # fmt: skip
    """Fill in the table of a type; return the elements of scratch memory that pieces use by turns.

    Args:
        table: [pieces, columns], columns as in `autobatch.compiler.numba.writer.columns_of`.
        dest_base: where the destinations of each output are listed.
        groups: by domain the address of where the edges of each node begin; 0 for nodes.
        saved_base: the first element of the saved values of each domain; none in inference.
        input_width, saved_width, scratch_width: elements per row, [domains], [domains] and [stages, domains].
        turn_width: elements that every piece has once.
        kept_width, kept_base: elements that steps of all rows leave per row of nodes, and the first of them.
        n_whole: pieces that all rows are cut in; 0 if such steps run with the pieces of batches, by turns.
    """
    n_domains = saved_width.size
    rows = 2
    inputs, mirrored, saved = rows + n_domains, rows + 2 * n_domains, rows + 3 * n_domains
    scratch, kept = rows + 4 * n_domains, rows + 6 * n_domains
    k = start = needed = 0
    first = batch_type.size
    for at in range(batch_type.size + (1 if n_whole else 0)):
        is_batch = at < batch_type.size
        if is_batch and batch_type[at] != kind:
            continue
        first = min(first, at)
        batch, begin = (at, start) if is_batch else (first, 0)
        end = begin + batch_ptr[at + 1] - batch_ptr[at] if is_batch else start
        at_once = rows_of_piece(end - begin, most_rows, n_threads)
        for start in range(begin, end, at_once):
            n_rows = min(at_once, end - start)
            row = table[k]
            row[0], row[1] = start, mirror
            for domain in range(n_domains):
                own, before, n = start, start - begin, n_rows
                if domain > 0:
                    edges = array_at(groups[domain], np.int64)
                    own = edges[start]
                    before, n = own - edges[begin], edges[start + n_rows] - own
                row[rows + domain] = n
                row[inputs + domain] = base[base_ptr[batch] + domain] + before * input_width[domain]
                row[mirrored + domain] = row[inputs + domain] + mirror
                row[saved + domain] = own * saved_width[domain]
                if mirror:
                    row[saved + domain] += saved_base[domain]
            for stage in range(scratch_width.shape[0]):
                free = turn_width
                for domain in range(n_domains):
                    row[scratch + stage * n_domains + domain] = free
                    free += row[rows + domain] * scratch_width[stage, domain]
                if stage == 0 and not n_whole:
                    row[kept] = free
                    free += n_rows * kept_width
                needed = max(needed, free)
            if n_whole:
                row[kept] = kept_base + start * kept_width
            for number in range(dest_base.size):
                row[kept + 1 + number] = dest_base[number] + start
            k += 1
        start = end
    return needed
