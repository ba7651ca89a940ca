"""The compiled loops that make the tables of a plan: cut batches into tiles, fill these in, list the calls in order.

A tile is some rows of a batch that go through all steps of their cell before the next tile begins, so that values are
still in the cache when the next step reads them; and several threads may run the tiles of a batch in parallel. Hoisted
steps, which run once for all rows of a type, are cut into tiles as well. If batches are as large as tiles anyway,
hoisted steps run with the tiles of batches instead, for the sake of the cache.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.compiler.tiles import fields_of
from autobatch.jit.arrays import FloatArray, IntArray
from autobatch.jit.loops import compiled
from autobatch.plan.plan import Plan

LongArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

TILE_BYTES = 1 << 19
"""Bytes that the rows of a tile may take: half of the L2 cache of servers since about 2020."""
LEAST_ROWS = 96
"""The row limit of tiles is never below this: with fewer rows, calls cost more than the cache saves."""
ROUND_ROWS = 16
"""The rows of a tile are a multiple of this, so that products take whole tiles of their own."""
WHOLE = 1 << 40
"""The row limit of types whose batches are not cut."""
CALL = np.dtype([("step", np.int64), ("tile", np.int64)])
"""A call: the number of a step, and the number of a tile among those of its type."""


class PlanArrays(NamedTuple):
    """The arrays of a plan and of its T types that tables are made from.

    See `autobatch.plan.plan.Plan` and `TypeTables`; batch b is of `batch_type[b]`, with rows
    batch_ptr[b]:batch_ptr[b + 1].
    """

    batch_type: IntArray
    batch_ptr: IntArray
    base_ptr: LongArray
    base: LongArray
    mirror: int
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


class CellSizes(NamedTuple):
    """The memory and the number of steps of T compiled types; zero for types that were not met in a plan.

    Attributes:
        saved: [blocks] elements per row of residuals.
        scratch: [stages, blocks] elements per row of the scratch memory of tiles.
        fields: [T] fields of a tile.
        own, kept: [T] elements of scratch memory per tile, whatever its rows; and of persistent scratch per row of
            nodes.
        most_rows: [T] the largest number of rows of a tile.
        steps: [stages, T, 3] how many steps run once before all batches, per batch, and once after them; of the weight
            stage how many are compiled, none, and how many Python runs.
    """

    saved: LongArray
    scratch: LongArray
    fields: LongArray
    own: LongArray
    kept: LongArray
    most_rows: LongArray
    steps: LongArray


class Tiles(NamedTuple):
    """The tiles of all types of a plan.

    Attributes:
        words, ptr: words[ptr[t] : ptr[t + 1]] are the tiles of type t: those of its batches in order, then those of all
            of its rows; and in training all rows once more for each thread, which computes a strip of the gradients.
        counts: [T, 2] how many there are of batches, and of all rows.
        mean_rows: [blocks, 2] mean rows of a tile, of batches and of all rows; 0 where no steps run for all rows.
        kept_size, scratch_size: elements of persistent scratch, and of the scratch memory that tiles use in turn.
    """

    words: LongArray
    ptr: LongArray
    counts: LongArray
    mean_rows: LongArray
    kept_size: int
    scratch_size: int


class CallList(NamedTuple):
    """The calls of a stage, in order; see `list_weight_calls` for the parts of the weight stage.

    Attributes:
        calls: [n] `CALL`.
        tile_ptr: [tiles + 1] calls[tile_ptr[p]:tile_ptr[p + 1]] are those of the p-th tile that runs.
        ptr: [batches + 3] part p has tiles ptr[p]:ptr[p + 1]. Part 0 is the prologue, parts 1 to B are the batches in
            the order in which they run, and part B + 1 is the epilogue. Tiles of the prologue and the epilogue are of
            all rows of a type.
        is_serial: [batches] whether a batch adds values to others, which only one thread may do; empty if no batch
            does.
    """

    calls: NDArray[Any]
    tile_ptr: LongArray
    ptr: LongArray
    is_serial: BoolArray


def arrays_of(plan: Plan) -> PlanArrays:
    """The arrays of a plan and of its types."""
    types = plan.tables
    return PlanArrays(
        plan.schedule.batch_type, plan.schedule.batch_ptr, plan.base_ptr, plan.base, plan.mirror, plan.saved_base,
        plan.segments, plan.segment_base, plan.dest_base, plan.dest_ptr, plan.dest, plan.adds, plan.ints, plan.floats,
        plan.block_rows, types.block_ptr, types.block_width, types.block_ints, types.block_floats, types.out_ptr,
        types.out_block,
    )  # fmt: skip


def most_rows(row_bytes: int) -> int:
    """The largest number of rows of a tile."""
    return max(TILE_BYTES // max(row_bytes, 1) // ROUND_ROWS * ROUND_ROWS, LEAST_ROWS)


@compiled
def rows_of_tile(n_rows: int, most: int, n_threads: int) -> int:
    """The rows of each tile that `n_rows` are cut into: at least one tile per thread, unless there are few rows."""
    if most == WHOLE:
        return max(n_rows, 1)
    share = (n_rows + n_threads - 1) // n_threads
    return min(most, (share + ROUND_ROWS - 1) // ROUND_ROWS * ROUND_ROWS)


@compiled
def count_tiles(n_rows: int, most: int, n_threads: int) -> int:
    """The number of tiles that `n_rows` are cut into."""
    at_once = rows_of_tile(n_rows, most, n_threads)
    return (n_rows + at_once - 1) // at_once


@compiled
def make_tiles(plan: PlanArrays, sizes: CellSizes, n_threads: int) -> Tiles:
    """Make the tiles of all types, one type after the other."""
    batch_type, batch_ptr, block_ptr = plan.batch_type, plan.batch_ptr, plan.block_ptr
    most, kept_width, fields = sizes.most_rows, sizes.kept, sizes.fields
    n_types = fields.size
    n_batches, n_rows = np.zeros(n_types, np.int64), np.zeros(n_types, np.int64)
    counts = np.zeros((n_types, 2), np.int64)
    for batch in range(batch_type.size):
        type_id, rows = batch_type[batch], batch_ptr[batch + 1] - batch_ptr[batch]
        n_batches[type_id] += 1
        n_rows[type_id] += rows
        counts[type_id, 0] += count_tiles(rows, most[type_id], n_threads)
    ptr = np.zeros(n_types + 1, np.int64)
    for type_id in range(n_types):
        if 0 < n_rows[type_id] < n_batches[type_id] * most[type_id]:
            counts[type_id, 1] = count_tiles(n_rows[type_id], most[type_id], n_threads)
        n_strips = n_threads if n_rows[type_id] and sizes.scratch.shape[0] > 1 else 0
        ptr[type_id + 1] = ptr[type_id] + (counts[type_id].sum() + n_strips) * fields[type_id]
    words, mean_rows = np.empty(ptr[n_types], np.int64), np.zeros((plan.block_rows.size, 2), np.int64)
    kept_size = scratch_size = 0
    for type_id in range(n_types):
        if n_batches[type_id]:
            table = words[ptr[type_id] : ptr[type_id + 1]].reshape((-1, fields[type_id]))
            needed = fill_tiles(table, type_id, plan, sizes, kept_size, counts[type_id, 1], n_threads)
            scratch_size = max(scratch_size, needed)
            for block in range(block_ptr[type_id], block_ptr[type_id + 1]):
                mean_rows[block] = plan.block_rows[block] // np.maximum(counts[type_id], 1)
                mean_rows[block, 1] *= counts[type_id, 1] > 0
            kept_size += n_rows[type_id] * kept_width[type_id] if counts[type_id, 1] else 0
    return Tiles(words, ptr, counts, mean_rows, kept_size, scratch_size)


@compiled
def fill_tiles(
    table: LongArray, type_id: int, plan: PlanArrays, sizes: CellSizes, kept_base: int, n_whole: int, n_threads: int
) -> int:
    """Fill in the tiles of a type; return the elements of scratch memory that its tiles use in turn.

    Args:
        table: [tiles, fields].
        kept_base: the first element of the type's persistent scratch.
        n_whole: the number of tiles that all rows are cut into; 0 if hoisted steps run with the tiles of batches.
    """
    first_block, end_block = plan.block_ptr[type_id], plan.block_ptr[type_id + 1]
    first_output, end_output = plan.out_ptr[type_id], plan.out_ptr[type_id + 1]
    input_width, saved_width = plan.block_width[first_block:end_block], sizes.saved[first_block:end_block]
    scratch_width, kept_width, saved_base = (
        sizes.scratch[:, first_block:end_block], sizes.kept[type_id], plan.saved_base,
    )  # fmt: skip
    segments, segment_base = plan.segments, plan.segment_base[first_block:end_block]
    dest_base, out_block = plan.dest_base[first_output:end_output], plan.out_block[first_output:end_output]
    batch_type, batch_ptr, mirror = plan.batch_type, plan.batch_ptr, plan.mirror
    base_ptr, base = plan.base_ptr, plan.base
    n_domains = input_width.size
    at = fields_of(n_domains)
    k = start = needed = 0
    first = batch_type.size
    n_strips = n_threads if scratch_width.shape[0] > 1 else 0
    for number in range(batch_type.size + 1 + n_strips):
        is_batch, strip = number < batch_type.size, number - batch_type.size - 1
        if (is_batch and batch_type[number] != type_id) or (number == batch_type.size and not n_whole):
            continue
        first = min(first, number)
        batch, begin = (number, start) if is_batch else (first, 0)
        end = begin + batch_ptr[number + 1] - batch_ptr[number] if is_batch else start
        at_once = rows_of_tile(end - begin, sizes.most_rows[type_id] if strip < 0 else WHOLE, n_threads)
        for start in range(begin, end, at_once):
            n_rows = min(at_once, end - start)
            row = table[k]
            row[at.start], row[at.shift], row[-1] = start, mirror, max(strip, 0)
            for domain in range(n_domains):
                own, before, n = start, start - begin, n_rows
                if domain > 0:
                    ptr = segments[segment_base[domain] :]
                    own = ptr[start]
                    before, n = own - ptr[begin], ptr[start + n_rows] - own
                row[at.rows + domain] = n
                row[at.inputs + domain] = base[base_ptr[batch] + domain] + before * input_width[domain]
                row[at.mirror + domain] = row[at.inputs + domain] + mirror
                row[at.saved + domain] = own * saved_width[domain]
                if mirror:
                    row[at.saved + domain] += saved_base[first_block + domain]
            for stage in range(scratch_width.shape[0] if strip < 0 else 0):
                free = sizes.own[type_id]
                for domain in range(n_domains):
                    row[(at.backward if stage else at.forward) + domain] = free
                    free += row[at.rows + domain] * scratch_width[stage, domain]
                if stage == 0 and not n_whole:
                    row[at.kept] = free
                    free += n_rows * kept_width
                needed = max(needed, free)
            if n_whole:
                row[at.kept] = kept_base + start * kept_width
            for output in range(dest_base.size):
                own, block = start, out_block[output]
                if block:
                    own = segments[segment_base[block] + start]
                row[at.outputs + output] = dest_base[output] + own
            k += 1
        start = end
    return needed


@compiled
def list_calls(
    plan: PlanArrays, sizes: CellSizes, counts: LongArray, stage: int, n_threads: int, is_serial: BoolArray
) -> CallList:
    """List the calls of a stage, divided into parts and tiles.

    Args:
        counts: see `Tiles`.
        stage: 0 for forward, 1 for backward.
        is_serial: see `CallList`.
    """
    batch_type, batch_ptr, most, steps = plan.batch_type, plan.batch_ptr, sizes.most_rows, sizes.steps[stage]
    n_types, n_batches = most.size, batch_type.size
    first, n_steps, n_calls, n_whole = np.zeros((n_types, 4), np.int64), 0, 0, 0
    for type_id in range(n_types):
        if counts[type_id, 0]:
            before, inside, after = steps[type_id]
            if not counts[type_id, 1]:
                before, inside, after = 0, before + inside + after, 0
            first[type_id, 0] = n_steps
            first[type_id, 1] = first[type_id, 0] + before
            first[type_id, 2] = first[type_id, 1] + inside
            first[type_id, 3] = n_steps = first[type_id, 2] + after
            n_whole += counts[type_id, 1] * ((before > 0) + (after > 0))
            n_calls += counts[type_id, 0] * inside + counts[type_id, 1] * (before + after)
    calls, tile_ptr = np.empty(n_calls, CALL), np.zeros(counts[:, 0].sum() + n_whole + 1, np.int64)
    ptr, done = np.empty(n_batches + 3, np.int64), np.zeros(n_types, np.int64)
    at = tile = 0
    for part in range(n_batches + 2):
        ptr[part] = tile
        is_batch = 0 < part <= n_batches
        batch = (n_batches - part if stage else part - 1) if is_batch else 0
        type_ids = range(batch_type[batch], batch_type[batch] + 1) if is_batch else range(n_types)
        moment = 1 if is_batch else 0 if part == 0 else 2
        for type_id in type_ids:
            if first[type_id, moment] == first[type_id, moment + 1]:
                continue
            n = counts[type_id, 1]
            if is_batch:
                n = count_tiles(batch_ptr[batch + 1] - batch_ptr[batch], most[type_id], n_threads)
            for number in range(n):
                k = counts[type_id, 0] + number
                if is_batch:
                    k = counts[type_id, 0] - 1 - done[type_id] if stage else done[type_id]
                    done[type_id] += 1
                for step in range(first[type_id, moment], first[type_id, moment + 1]):
                    calls[at]["step"], calls[at]["tile"] = step, k
                    at += 1
                tile += 1
                tile_ptr[tile] = at
    ptr[n_batches + 2] = tile
    return CallList(calls, tile_ptr[: tile + 1], ptr, is_serial)


@compiled
def list_weight_calls(sizes: CellSizes, counts: LongArray, n_threads: int) -> CallList:
    """List the calls for the gradients of parameters: of T types, part t has compiled steps, and part T + t the others.

    Args:
        counts: see `Tiles`.
    """
    steps = sizes.steps[-1]
    n_types, n_steps, n_calls = len(counts), 0, 0
    first = np.zeros((n_types, 3), np.int64)
    for type_id in range(n_types):
        n_compiled, n_others = (steps[type_id, 0], steps[type_id, 2]) if counts[type_id, 0] else (0, 0)
        first[type_id, 0], first[type_id, 1] = n_steps, n_steps + n_compiled
        first[type_id, 2] = n_steps = n_steps + n_compiled + n_others
        n_calls += n_compiled * n_threads + n_others
    calls, tile_ptr = np.empty(n_calls, CALL), np.zeros(n_types * (n_threads + 1) + 1, np.int64)
    ptr = np.empty(2 * n_types + 1, np.int64)
    tile = at = 0
    for part in range(2 * n_types):
        type_id, moment = part % n_types, part // n_types
        ptr[part] = tile
        if first[type_id, moment] < first[type_id, moment + 1]:
            for strip in range(1 if moment else n_threads):
                for step in range(first[type_id, moment], first[type_id, moment + 1]):
                    calls[at]["step"], calls[at]["tile"] = step, counts[type_id].sum() + strip
                    at += 1
                tile += 1
                tile_ptr[tile] = at
    ptr[2 * n_types] = tile
    return CallList(calls, tile_ptr[: tile + 1], ptr, np.zeros(0, np.bool_))


@compiled
def rows_of_output(plan: PlanArrays, type_id: int, output: int, start: int, end: int) -> tuple[int, int]:
    """The rows in `dest_ptr` of an output, numbered over all types, of the nodes start:end of a type."""
    if plan.out_block[output]:
        of_nodes = plan.segments[plan.segment_base[plan.block_ptr[type_id] + plan.out_block[output]] :]
        start, end = of_nodes[start], of_nodes[end]
    return plan.dest_base[output] + start, plan.dest_base[output] + end


@compiled
def find_serial(plan: PlanArrays) -> BoolArray:
    """Find the batches that add values to others."""
    batch_type, batch_ptr, dest_ptr, adds = plan.batch_type, plan.batch_ptr, plan.dest_ptr, plan.adds
    is_serial = np.zeros(batch_type.size, np.bool_)
    done = np.zeros(plan.out_ptr.size - 1, np.int64)
    for batch in range(batch_type.size):
        type_id, n_rows = batch_type[batch], batch_ptr[batch + 1] - batch_ptr[batch]
        for output in range(plan.out_ptr[type_id], plan.out_ptr[type_id + 1]):
            first, last = rows_of_output(plan, type_id, output, done[type_id], done[type_id] + n_rows)
            for entry in range(dest_ptr[first], dest_ptr[last]):
                is_serial[batch] |= adds[entry]
        done[type_id] += n_rows
    return is_serial
