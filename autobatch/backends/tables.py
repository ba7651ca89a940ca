"""Make the tables of a plan for a backend that compiles: where the values of each tile begin, and the calls in order.

    plan.batches ──cut──▶ tiles of each type ──list──▶ calls of each stage: (step, tile), (step, tile), ...

Both are NumPy arrays of records: `tables.tiles[type_id][k]["rows_n"]` is the number of rows of tile k of a type
(`autobatch.compiler.writer` has the other fields), and `tables.calls["forward"].calls[:, 0]` are the numbers of the
steps of all types in the order in which they run. Compiled code reads the same memory as int64 numbers. The core fills
them (`native/plan/plan_tables.h`), usually in the call that makes the plan.

A tile is a range of rows of a batch that goes through all steps of its cell before the next tile begins, so that values
are still in the cache when the next step reads them. Several threads may run the tiles of a batch in parallel. Hoisted
steps, which run once for all rows of a type, are cut into tiles as well. If batches are as large as tiles anyway,
hoisted steps run with the tiles of batches instead, for better use of the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import starmap
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from autobatch._native import make_tables
from autobatch.arrays import FloatArray, IntArray
from autobatch.backends.compiled import CellStages
from autobatch.compiler.writer import STAGES, WEIGHTS, split_name
from autobatch.ir.program import NODE, Instruction
from autobatch.plan.plan import CellSizes, Plan, PlannedTypes

LongArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

TILE_BYTES = 1 << 19
"""Bytes that the rows of a tile may take: half of the L2 cache of servers since about 2020."""
LEAST_ROWS = 96
"""The row limit of tiles is never below this: with fewer rows, calls cost more than the cache saves."""
ROUND_ROWS = 16
"""The rows of a tile are a multiple of this, so that matrix products need no partial blocks."""
WHOLE = 1 << 40
"""The row limit of types whose batches are not cut; `native/plan/tiles.cpp` has it, too, and `ROUND_ROWS`."""


class PlanArrays(NamedTuple):
    """The arrays of a plan and of its T types from which tables are made.

    See `autobatch.plan.plan.Plan` and `TypeTables`. Batch b has type `batch_type[b]` and rows
    batch_ptr[b]:batch_ptr[b + 1].
    """

    batch_type: IntArray
    batch_ptr: IntArray
    base_ptr: LongArray
    base: LongArray
    gradient_offset: int
    saved_base: LongArray
    segments: LongArray
    segment_base: LongArray
    dest_base: LongArray
    dest_ptr: LongArray
    dest: NDArray[Any]
    adds: BoolArray
    ints: IntArray
    floats: FloatArray
    block_rows: LongArray
    block_ptr: IntArray
    block_width: IntArray
    block_ints: IntArray
    block_floats: IntArray
    out_ptr: IntArray
    out_block: IntArray


class CallList(NamedTuple):
    """The calls of a stage, in order.

    In the weight stage with T types, part t has the compiled steps of type t, and part T + t its other steps.

    Attributes:
        calls: [n, 2] the number of a step, and the number of a tile of its type.
        tile_ptr: [tiles + 1] calls[tile_ptr[p]:tile_ptr[p + 1]] are the calls for the p-th tile that runs.
        ptr: [batches + 3] part p has tiles ptr[p]:ptr[p + 1]. Part 0 is the prologue, parts 1 to B are the batches in
            the order in which they run, and part B + 1 is the epilogue. The tiles of the prologue and the epilogue
            cover all rows of a type.
        is_serial: [batches] whether a batch adds values to others, which only one thread may do; empty if no batch
            does.
    """

    calls: LongArray
    tile_ptr: LongArray
    ptr: LongArray
    is_serial: BoolArray


def arrays_of(plan: Plan) -> PlanArrays:
    """Collect the arrays of a plan and of its types."""
    types = plan.tables
    return PlanArrays(
        plan.schedule.batch_type, plan.schedule.batch_ptr, plan.base_ptr, plan.base, plan.gradient_offset,
        plan.saved_base, plan.segments, plan.segment_base, plan.dest_base, plan.dest_ptr, plan.dest, plan.adds,
        plan.ints, plan.floats, plan.block_rows, types.block_ptr, types.block_width, types.block_ints,
        types.block_floats, types.out_ptr, types.out_block,
    )  # fmt: skip


def most_rows(row_bytes: int) -> int:
    """Return the largest number of rows of a tile, given the bytes of a row."""
    return max(TILE_BYTES // max(row_bytes, 1) // ROUND_ROWS * ROUND_ROWS, LEAST_ROWS)


WORD = 8  # bytes of an int64
N_DESTINATIONS = 3  # the number of leading addresses: of `dest_ptr`, `dest` and `adds`
C = TypeVar("C", bound=CellStages[Any])


@dataclass(eq=False)
class PlanTables:
    """The tables of a plan, for a number of threads.

    Attributes:
        stages: the names of the stages.
        records: the record dtype of the tiles of each type.
        type_ids: the numbers of the plan's types.
        words, ptr: words[ptr[t] : ptr[t + 1]] are the tiles of type t: first those of its batches in order; then those
            of all of its rows, if steps run for all rows; last, in training, all rows once per thread, because each
            thread computes a strip of the gradients.
        mean_rows: [blocks, 2] the mean rows of the tiles of batches, and of the tiles of all rows; the latter is 0 if
            no steps run for all rows.
        kept_size, scratch_size: elements of persistent scratch, and of the scratch memory that tiles use in turn.
        lists: the fields of a `CallList` for forward, backward and weights.
        calls: the calls of each stage, by name.
        addresses: the addresses of `dest_ptr`, `dest` and `adds`; of the tiles of each type; and of the ints, floats
            and segments of each block, as `place_of` numbers them.
        size_classes, row_classes: the classes of mean rows, and of the rows of types, as bytes; the choice of a
            function for a product may differ between classes.
    """

    stages: tuple[str, ...]
    records: dict[int, np.dtype[Any]]
    type_ids: tuple[int, ...]
    words: LongArray
    ptr: LongArray
    mean_rows: LongArray
    kept_size: int
    scratch_size: int
    lists: tuple[tuple[Any, ...], ...]
    addresses: LongArray
    size_classes: bytes
    row_classes: bytes

    def __post_init__(self) -> None:
        # The core makes the lists of all three stages, also for inference, which has only the first.
        self.calls = dict(zip(self.stages, starmap(CallList, self.lists), strict=False))

    @cached_property
    def tiles(self) -> dict[int, NDArray[Any]]:
        """Return the tiles of each type, as views of `words`."""
        words, first = self.words, self.ptr.tolist()
        return {
            type_id: words[first[type_id] : first[type_id + 1]].view(self.records[type_id]) for type_id in self.type_ids
        }


class CompiledTypes(Generic[C]):
    """The cells of all types, compiled with the same options, and the memory that they need.

    Args:
        most_rows: returns the largest number of rows of a tile, given the bytes of a row.

    Attributes:
        cells: the cells met in a plan, by the number of their type.
        names: the names of all stages.
        stages: the names of the stages that have kernels.
        sizes: the sizes of the cells, from which the core makes tables.
    """

    def __init__(self, types: PlannedTypes, dtype: np.dtype[Any], most_rows: Callable[[int], int]) -> None:
        self.dtype, self.stages, self._most_rows = dtype, STAGES if types.training else STAGES[:1], most_rows
        self.names = (*STAGES, WEIGHTS) if types.training else STAGES[:1]
        self.cells: dict[int, C] = {}
        self.arrays, self._records = types.tables, dict[int, np.dtype[Any]]()
        n_types, n_blocks = len(types.cells), types.tables.block_width.size
        scratch = np.zeros((len(self.stages), n_blocks), np.int64)
        fields, own, kept, most = np.zeros((4, n_types), np.int64)
        steps = np.zeros((len(STAGES) + 1, n_types, 3), np.int64)
        self.sizes = CellSizes(types.saved_width, scratch, fields, own, kept, most, steps)

    def tables_of(
        self, plan: Plan, compile_cell: Callable[[int], C], n_threads: int, parts: tuple[Any, ...] | None = None
    ) -> PlanTables:
        """Return the tables of a plan. Lowers cells that were not met before, but compiles no machine code.

        Args:
            parts: the tables that the core made along with the plan, if it knew all sizes.
        """
        if parts is None:
            for type_id in np.flatnonzero(np.diff(plan.type_ptr)).tolist():
                # Only a type that was not met before has no row limit.
                if not self.sizes.most_rows[type_id]:
                    self._add(type_id, compile_cell(type_id))
            parts = make_tables(arrays_of(plan), self.sizes, n_threads)
        return PlanTables(self.names, self._records, *parts)

    def _add(self, type_id: int, cell: C) -> None:
        sizes, first = self.sizes, int(self.arrays.block_ptr[type_id])
        stages = [cell.stage(name) for name in self.stages]
        sizes.fields[type_id], sizes.kept[type_id] = len(stages[0].fields), stages[0].storage.persistent_width
        width = np.array(cell.cell.layout.input_width) + cell.cell.layout.saved_width
        for number, stage in enumerate(stages):
            for block in range(width.size):
                sizes.scratch[number, first + block] = stage.storage.batch_width[NODE + block]
        stages += [cell.stage(WEIGHTS)] if len(stages) > 1 else []
        for number, stage in enumerate(stages):
            sizes.steps[number, type_id] = stage.n_before, stage.n_per_batch, stage.n_after
        sizes.own[type_id] = max(stage.scratch_width for stage in stages)
        # Stages run one after the other in the same scratch memory, so the largest counts.
        width += sizes.scratch[:, first : first + width.size].max(0)
        row_bytes = (int(width.sum()) + int(sizes.kept[type_id])) * self.dtype.itemsize
        sources = [var.source for var in cell.cell.program.vars]
        is_whole = any(isinstance(source, Instruction) and source.op.whole for source in sources)
        self._records[type_id] = np.dtype([(name, np.int64) for name in stages[0].fields])
        self.cells[type_id] = cell
        # Last, because an interrupt may come at any moment, and the core takes a type with a row limit as complete.
        sizes.most_rows[type_id] = WHOLE if is_whole else self._most_rows(row_bytes)


def place_of(name: str, type_id: int, block: int, n_types: int, n_blocks: int) -> int:
    """Return the position in `PlanTables.addresses` of the array named "table", "ints", "floats_0", "segments_0", etc.

    Args:
        block: the number of the type's block of nodes.
    """
    if name == "table":
        return N_DESTINATIONS + type_id
    what, group = split_name(name)
    return N_DESTINATIONS + n_types + ("ints", "floats", "segments").index(what) * n_blocks + block + group - NODE
