"""Define the inputs of the tables of a plan: its arrays, and the sizes of compiled cells.

A tile is a range of rows of a batch that goes through all steps of its cell before the next tile begins, so that values
are still in the cache when the next step reads them. Several threads may run the tiles of a batch in parallel. Hoisted
steps, which run once for all rows of a type, are cut into tiles as well. If batches are as large as tiles anyway,
hoisted steps run with the tiles of batches instead, for better use of the cache.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.arrays import FloatArray, IntArray
from autobatch.plan.plan import Plan

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
