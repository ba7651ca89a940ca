"""Number the rows of each type, and place the rows of each batch in the buffer.

Rows of a type are in schedule order, so a batch is a contiguous range of rows and its inputs are read without a gather.
In training the rows of a type are one block: backward reads them again, and weight gradients read all of them at once.
In inference a batch's rows live from their first writer until the batch has run; then their memory is reused
(`lifetimes`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.graph.words import Sections, count_groups, data_starts, sections
from autobatch.ir.type_arrays import TypeArrays
from autobatch.jit.arrays import FloatArray, IntArray, indices
from autobatch.jit.loops import compiled
from autobatch.memplan.batch.lifetimes import first_writers, give_out
from autobatch.plan.plan import ALIGNMENT, TypeTables

LongArray = NDArray[np.int64]


class Batches(NamedTuple):
    """The K batches of a schedule, as `Schedule` has them."""

    type_id: IntArray  # [K] their types
    ptr: IntArray  # [K+1]
    order: IntArray  # [N] the nodes, batch by batch


class Widths(NamedTuple):
    """Elements per row of everything but inputs."""

    slot: LongArray  # of each slot of the output
    saved: LongArray  # of the saved values of each block


class Data(NamedTuple):
    """What says where the attributes of nodes are."""

    types: TypeArrays
    int_starts: IntArray  # [N+1] where those of each node start
    float_starts: IntArray  # [N+1]


class Rows(NamedTuple):
    """The row of each node, and where the rows of each batch and type are; `Plan` documents the fields it keeps."""

    type_ptr: IntArray
    row: IntArray
    node_at: IntArray
    batch_of: IntArray  # [N]
    segments: LongArray  # the first edge row of each node row, for all variadic group blocks in turn
    segment_base: LongArray  # [blocks+1] where each block's segments begin
    block_rows: LongArray
    base_ptr: LongArray
    base: LongArray
    origin: LongArray  # as base, but of row 0 of the block: row r of the batch's block is at origin + r * width


class Areas(NamedTuple):
    """Where slots, gradients and saved values lie, and the size of the buffer."""

    slot_base: LongArray
    slot_rows: LongArray
    saved_base: LongArray
    mirror: int
    size: int


@compiled
def place_rows(
    words: IntArray, batches: Batches, tables: TypeTables, widths: Widths, data: Data, training: bool
) -> tuple[Rows, Areas]:
    """Number the rows of nodes in schedule order, and place them in the buffer."""
    graph, batch_type, batch_ptr = sections(words), batches.type_id, batches.ptr
    slot_width, saved_width = widths.slot, widths.saved
    type_ptr, row, node_at, batch_of = _number_rows(batches, tables.block_ptr.size - 1)
    segments, segment_base = _count_segments(graph, tables, data, type_ptr, node_at)
    base_ptr, before, n_rows, block_rows = _count_rows(batch_type, batch_ptr, tables, segments, segment_base)
    slot_rows = np.zeros(slot_width.size, np.int64)
    for slot in graph.out_slot:
        slot_rows[slot] += 1
    base = np.empty(before.size, np.int64)
    if training:
        block_base, end = _follow(block_rows, tables.block_width, 0)
        slot_base, end = _follow(slot_rows, slot_width, end)
        saved_base, size = _follow(block_rows, saved_width, 2 * end)
        mirror = end
        for k in range(batch_type.size):
            first = tables.block_ptr[batch_type[k]]
            for at in range(base_ptr[k], base_ptr[k + 1]):
                block = first + at - base_ptr[k]
                base[at] = block_base[block] + before[at] * tables.block_width[block]
    else:
        slot_base, end = _follow(slot_rows, slot_width, 0)
        saved_base, mirror = np.zeros(0, np.int64), 0
        size = _place_areas(graph, batch_type, batch_of, tables, base_ptr, n_rows, end, base)
    origin = np.empty(before.size, np.int64)
    for k in range(batch_type.size):
        first = tables.block_ptr[batch_type[k]]
        for at in range(base_ptr[k], base_ptr[k + 1]):
            origin[at] = base[at] - before[at] * tables.block_width[first + at - base_ptr[k]]
    rows = Rows(
        type_ptr, row, node_at, batch_of, segments, segment_base, block_rows, base_ptr, base, origin
    )  # fmt: skip
    return rows, Areas(slot_base, slot_rows, saved_base, mirror, size)


@compiled
def _number_rows(batches: Batches, n_types: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Number the nodes of each type by schedule order: type_ptr[T+1], row[N], node_at[N], and their batches [N]."""
    batch_type, batch_ptr, order = batches.type_id, batches.ptr, batches.order
    type_ptr = np.zeros(n_types + 1, np.int32)
    for k in range(batch_type.size):
        type_ptr[batch_type[k] + 1] += batch_ptr[k + 1] - batch_ptr[k]
    for type_id in range(n_types):
        type_ptr[type_id + 1] += type_ptr[type_id]
    row, batch_of = np.empty(order.size, np.int32), np.empty(order.size, np.int32)
    node_at, n_placed = np.empty(order.size, np.int32), np.zeros(n_types, np.int32)
    for k in range(batch_type.size):
        type_id, n = batch_type[k], batch_ptr[k + 1] - batch_ptr[k]
        own = n_placed[type_id]
        nodes = order[batch_ptr[k] : batch_ptr[k + 1]]
        first = type_ptr[type_id] + own
        for i in range(n):
            node_at[first + i] = nodes[i]
            row[nodes[i]] = own + i
            batch_of[nodes[i]] = k
        n_placed[type_id] += n
    return type_ptr, row, node_at, batch_of


@compiled
def _count_segments(
    graph: Sections, tables: TypeTables, data: Data, type_ptr: IntArray, node_at: IntArray
) -> tuple[LongArray, LongArray]:
    """Find the first edge row of each node row, for all variadic group blocks; and where each block's begin."""
    block_ptr = tables.block_ptr
    segment_base = np.zeros(block_ptr[-1] + 1, np.int64)
    for type_id in range(type_ptr.size - 1):
        for block in range(block_ptr[type_id], block_ptr[type_id + 1]):
            n = 0 if block == block_ptr[type_id] else type_ptr[type_id + 1] - type_ptr[type_id] + 1
            segment_base[block + 1] = segment_base[block] + n
    segments, lengths = np.zeros(segment_base[-1], np.int64), np.zeros(block_ptr[-1] + 1, np.int64)
    for type_id in range(type_ptr.size - 1):
        first = block_ptr[type_id] + 1
        n_groups = block_ptr[type_id + 1] - first
        for own in range(type_ptr[type_id + 1] - type_ptr[type_id] if n_groups else 0):
            node = node_at[type_ptr[type_id] + own]
            count_groups(graph, node, data.int_starts[node], data.types, lengths)
            for group in range(n_groups):
                at = segment_base[first + group] + own
                segments[at + 1] = segments[at] + lengths[group]
    return segments, segment_base


@compiled
def _count_rows(
    batch_type: IntArray, batch_ptr: IntArray, tables: TypeTables, segments: LongArray, segment_base: LongArray
) -> tuple[LongArray, LongArray, LongArray, LongArray]:
    """Count rows.

    Returns:
        per batch where its blocks start in the next two arrays [K+1]; for each block of each batch, its rows in earlier
        batches; and its rows in this one; and for each block its rows in all.
    """
    block_ptr = tables.block_ptr
    base_ptr = np.zeros(batch_type.size + 1, np.int64)
    for k in range(batch_type.size):
        base_ptr[k + 1] = base_ptr[k] + block_ptr[batch_type[k] + 1] - block_ptr[batch_type[k]]
    before, n_rows = np.empty(base_ptr[-1], np.int64), np.empty(base_ptr[-1], np.int64)
    total = np.zeros(segment_base.size - 1, np.int64)
    for k in range(batch_type.size):
        first, at = block_ptr[batch_type[k]], base_ptr[k]
        start = total[first]
        end = start + batch_ptr[k + 1] - batch_ptr[k]
        before[at], n_rows[at], total[first] = start, end - start, end
        for i in range(1, base_ptr[k + 1] - at):
            own = segment_base[first + i]
            before[at + i] = segments[own + start]
            total[first + i] = segments[own + end]
            n_rows[at + i] = total[first + i] - before[at + i]
    return base_ptr, before, n_rows, total


@compiled
def _follow(n_rows: LongArray, width: NDArray[Any], start: int) -> tuple[LongArray, int]:
    """Place areas of these numbers of rows one after another from `start`, aligned; return the starts and the end."""
    base = np.empty(n_rows.size, np.int64)
    for i in range(n_rows.size):
        base[i] = start
        start += _aligned(n_rows[i] * width[i])
    return base, start


@compiled
def _aligned(size: int) -> int:
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


@compiled
def _place_areas(
    graph: Sections,
    batch_type: IntArray,
    batch_of: IntArray,
    tables: TypeTables,
    base_ptr: LongArray,
    n_rows: LongArray,
    start: int,
    base: LongArray,
) -> int:
    """Place the blocks of each batch after `start`, one area per batch; fill in `base` and return the end."""
    size, block_ptr, block_width = np.empty(batch_type.size, np.int64), tables.block_ptr, tables.block_width
    for k in range(batch_type.size):
        first, end = block_ptr[batch_type[k]], 0
        for at in range(base_ptr[k], base_ptr[k + 1]):
            base[at] = end
            end += _aligned(n_rows[at] * block_width[first + at - base_ptr[k]])
        size[k] = end
    area, end = give_out(first_writers(graph, batch_of, batch_type.size), size, start)
    for k in range(batch_type.size):
        for at in range(base_ptr[k], base_ptr[k + 1]):
            base[at] += area[k]
    return int(end)


@compiled
def gather_rows(
    graph: Sections, floats: FloatArray, data: Data, tables: TypeTables, node_at: IntArray, type_ptr: IntArray
) -> tuple[IntArray, FloatArray]:
    """Sort the attributes of nodes by block and row."""
    types, int_starts, float_starts, attr = data.types, data.int_starts, data.float_starts, graph.attr
    n_lengths = 0
    for type_id in range(type_ptr.size - 1):
        n_nodes = type_ptr[type_id + 1] - type_ptr[type_id]
        n_lengths += n_nodes * (types.data_ptr[type_id + 1] - types.data_ptr[type_id])
    ints, reals = np.empty(attr.size - n_lengths, np.int32), np.empty(floats.size, np.float64)
    a = f = 0
    for type_id in range(type_ptr.size - 1):
        nodes = node_at[type_ptr[type_id] : type_ptr[type_id + 1]]
        int_width, float_width = types.int_width[type_id], types.float_width[type_id]
        if int_width or float_width:
            for node in indices(nodes):
                a = copy_range(attr, int_starts[node], int_starts[node] + int_width, ints, a)
                f = copy_range(floats, float_starts[node], float_starts[node] + float_width, reals, f)
        first = types.data_ptr[type_id]
        for wanted in range(first, types.data_ptr[type_id + 1]):
            for node in indices(nodes):
                at, start = int_starts[node] + int_width, float_starts[node] + float_width
                for number in range(first, wanted):
                    length = attr[at]
                    at, start = at + 1 + length * types.data_ints[number], start + length * types.data_floats[number]
                length = attr[at]
                a = copy_range(attr, at + 1, at + 1 + length * types.data_ints[wanted], ints, a)
                f = copy_range(floats, start, start + length * types.data_floats[wanted], reals, f)
    return ints, reals


@compiled
def copy_range(source: NDArray[Any], first: int, end: int, target: NDArray[Any], at: int) -> int:
    """Copy source[first:end] to target[at:]; return where the copy ends."""
    for k in range(first, end):
        target[at] = source[k]
        at += 1
    return at


@compiled
def find_data(graph: Sections, types: TypeArrays) -> Data:
    """Find where the attributes of nodes are."""
    int_starts, float_starts = data_starts(graph.type_id, graph.attr, types)
    return Data(types, int_starts, float_starts)
