"""Where the values of a mini-batch live between cells: each is written, when it is made, to the rows of its readers.

Rows of a type are in schedule order, so a batch is a contiguous range of rows, and reading needs no gather. In training
the rows of a type are one block, for they are read again: backwards, and all at once for the gradients of weights. In
inference a batch's rows live from their first writer to its run, and their memory is used again (`lifetimes`). A plain
port with several edges, from the pass `fold`, is their sum: what is made first is stored, the others are added.

Nodes are gone through in the order of the graph wherever that will do, and not batch by batch: an instance is then in
the cache while its nodes are placed, and each batch's rows are written one after another. From a million nodes on,
where little of a graph is in any cache, that takes a third of the time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.graph.graph import Graph
from autobatch.graph.words import Sections, sections, value_starts
from autobatch.jit.arrays import IndexArray, IntArray, indices, long_indices
from autobatch.jit.loops import compiled
from autobatch.memplan.batch.lifetimes import first_writers, give_out
from autobatch.plan.plan import ALIGNMENT, Plan, PlannedTypes, TypeTables
from autobatch.schedule.schedule import Schedule

LongArray = NDArray[np.int64]
INT32_ELEMENTS = 2**31 - 1  # beyond this, destinations need 64 bits


class Rows(NamedTuple):
    """Which row each node has, and where the rows of each batch and type are; `Plan` has those that it keeps."""

    type_ptr: IntArray
    row: IntArray
    node_at: IntArray
    batch_of: IntArray  # [N]
    segments: LongArray  # for all variadic group blocks one after another, the first edge row of each node row
    segment_base: LongArray  # [blocks+1] where each block's begin
    block_rows: LongArray
    base_ptr: LongArray
    base: LongArray
    origin: LongArray  # as base, but of row 0 of the block: row r of the batch's block is at origin + r * width


class Areas(NamedTuple):
    """Where what is no input lies."""

    slot_base: LongArray
    slot_rows: LongArray
    saved_base: LongArray
    mirror: int
    size: int


def place(graph: Graph, schedule: Schedule, cells: PlannedTypes) -> Plan:
    """Place a scheduled graph: rows in schedule order, a destination for every edge and every output.

    Cost: O(N + E), and in inference O(K) per batch at worst.
    """
    tables, arrays = cells.tables, graph.types.arrays()
    slot_width = np.array(cells.slot_widths, np.int64)
    rows, areas, ints = place_rows(
        graph.words, schedule.batch_type, schedule.batch_ptr, schedule.order, tables, slot_width, cells.saved_width,
        arrays.int_width, cells.training,
    )  # fmt: skip
    dest: NDArray[Any] = np.empty(
        graph.n_edges + graph.n_outputs, np.int32 if areas.size <= INT32_ELEMENTS else np.int64
    )
    dest_base, dest_ptr, adds = list_destinations(graph.words, rows, tables, areas.slot_base, slot_width, dest)
    floats = graph.floats
    if floats.size:
        floats = gather_rows(floats, arrays.float_width, graph.type_id, rows.node_at, rows.type_ptr)
    ends = rows.segment_base.tolist()
    return Plan(
        graph, schedule, rows.row, rows.type_ptr, rows.node_at, rows.block_rows, rows.base_ptr, rows.base,
        areas.saved_base,
        {b: rows.segments[ends[b] : ends[b + 1]] for b in range(len(ends) - 1) if ends[b] < ends[b + 1]},
        dest_base, dest_ptr, dest, adds, areas.slot_base, areas.slot_rows, areas.mirror, areas.size,
        _by_type(ints, arrays.int_width, rows.type_ptr), _by_type(floats, arrays.float_width, rows.type_ptr), tables,
    )  # fmt: skip


def _by_type(flat: NDArray[Any], width: IntArray, type_ptr: IntArray) -> list[NDArray[Any]]:
    """Per type, its attributes `[N_type, width]`, of those of all types one after another."""
    found, start, counts = [], 0, np.diff(type_ptr).tolist()
    for kind, columns in enumerate(width.tolist()):
        end = start + (counts[kind] * columns if kind < len(counts) else 0)
        found.append(flat[start:end].reshape(-1, columns) if columns else flat[:0].reshape(0, 0))
        start = end
    return found


@compiled
def place_rows(
    words: IntArray,
    batch_type: IntArray,
    batch_ptr: IntArray,
    order: IntArray,
    tables: TypeTables,
    slot_width: LongArray,
    saved_width: LongArray,
    int_width: IntArray,
    training: bool,
) -> tuple[Rows, Areas, IntArray]:
    """Give nodes rows in schedule order, all rows their places in the buffer, and the int attributes theirs by row."""
    graph = sections(words)
    type_ptr, row, node_at, batch_of = _number_rows(batch_type, batch_ptr, order, tables.block_ptr.size - 1)
    segments, segment_base = _count_segments(graph, tables, type_ptr, node_at)
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
    ints = gather_rows(graph.attr, int_width, graph.type_id, node_at, type_ptr)
    return rows, Areas(slot_base, slot_rows, saved_base, mirror, size), ints


@compiled
def _number_rows(
    batch_type: IntArray, batch_ptr: IntArray, order: IntArray, n_types: int
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Number the nodes of each type by schedule order: type_ptr[T+1], row[N], node_at[N], and their batches [N]."""
    type_ptr = np.zeros(n_types + 1, np.int32)
    for k in range(batch_type.size):
        type_ptr[batch_type[k] + 1] += batch_ptr[k + 1] - batch_ptr[k]
    for kind in range(n_types):
        type_ptr[kind + 1] += type_ptr[kind]
    row, batch_of = np.empty(order.size, np.int32), np.empty(order.size, np.int32)
    node_at, n_placed = np.empty(order.size, np.int32), np.zeros(n_types, np.int32)
    for k in range(batch_type.size):
        kind, n = batch_type[k], batch_ptr[k + 1] - batch_ptr[k]
        own = n_placed[kind]
        nodes = order[batch_ptr[k] : batch_ptr[k + 1]]
        first = type_ptr[kind] + own
        for i in range(n):
            node_at[first + i] = nodes[i]
            row[nodes[i]] = own + i
            batch_of[nodes[i]] = k
        n_placed[kind] += n
    return type_ptr, row, node_at, batch_of


@compiled
def _count_segments(
    graph: Sections, tables: TypeTables, type_ptr: IntArray, node_at: IntArray
) -> tuple[LongArray, LongArray]:
    """Find the first edge row of each node row of all variadic group blocks; and where in that each block's begin."""
    block_ptr, port_ptr = tables.block_ptr, tables.port_ptr
    leads, port_block = tables.port_leads, tables.port_block
    edge_ptr, edge_in = graph.edge_ptr, graph.edge_in
    segment_base = np.zeros(block_ptr[-1] + 1, np.int64)
    for kind in range(type_ptr.size - 1):
        for block in range(block_ptr[kind], block_ptr[kind + 1]):
            n = 0 if block == block_ptr[kind] else type_ptr[kind + 1] - type_ptr[kind] + 1
            segment_base[block + 1] = segment_base[block] + n
    segments = np.zeros(segment_base[-1], np.int64)
    for kind in range(type_ptr.size - 1):
        first, end = block_ptr[kind], block_ptr[kind + 1]
        if end - first <= 1:
            continue
        for own in range(type_ptr[kind + 1] - type_ptr[kind]):
            node = node_at[type_ptr[kind] + own]
            for block in range(first + 1, end):
                segments[segment_base[block] + own + 1] = segments[segment_base[block] + own]
            for e in range(edge_ptr[node], edge_ptr[node + 1]):
                port = port_ptr[kind] + edge_in[e]
                if leads[port]:
                    segments[segment_base[first + port_block[port]] + own + 1] += 1
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
    """Where areas of so many rows start when they follow `start` one after another, aligned; and the end."""
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
    """Place the blocks of each batch, one area a batch, behind `start`; fill in `base` and return the end."""
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
def list_destinations(
    words: IntArray, rows: Rows, tables: TypeTables, slot_base: LongArray, slot_width: LongArray, dest: LongArray
) -> tuple[LongArray, LongArray, NDArray[np.bool_]]:
    """Sort the places where values go, and whether they are added there, by the node output: (type, output, row).

    Args:
        dest: [E+O] written to; its dtype is that of places.

    Returns:
        dest_base, dest_ptr and adds, as `Plan` has them.
    """
    graph = sections(words)
    type_id, row, out_ptr, type_ptr = graph.type_id, rows.row, tables.out_ptr, rows.type_ptr
    base = np.zeros(out_ptr[-1] + 1, np.int64)
    for kind in range(type_ptr.size - 1):
        for out in range(out_ptr[kind], out_ptr[kind + 1]):
            base[out + 1] = base[out] + type_ptr[kind + 1] - type_ptr[kind]
    ptr = np.zeros(base[-1] + 1, np.int64)
    n_edges, n_outputs = graph.edge_src.size, graph.out_node.size
    place, rank = np.empty(n_edges + n_outputs, np.int32), np.empty(n_edges + n_outputs, np.int32)
    _count_readers(graph.edge_src, graph.edge_out, type_id, row, out_ptr, base, ptr, place[:n_edges], rank[:n_edges])
    _count_readers(graph.out_node, graph.out_port, type_id, row, out_ptr, base, ptr, place[n_edges:], rank[n_edges:])
    total = 0
    for k in range(ptr.size):
        total, ptr[k] = total + ptr[k], total
    adds = np.zeros(dest.size, np.bool_)
    _write_edges(graph, rows, tables, ptr, place, rank, dest, adds)
    n_used = np.zeros(slot_base.size, np.int64)
    for o in range(n_outputs):
        slot = graph.out_slot[o]
        dest[ptr[place[n_edges + o]] + rank[n_edges + o]] = slot_base[slot] + n_used[slot] * slot_width[slot]
        n_used[slot] += 1
    return base, ptr, adds


@compiled
def _count_readers(
    sources: IntArray,
    outputs: IntArray,
    type_ids: IntArray,
    rows: IntArray,
    out_ptr: IntArray,
    base: LongArray,
    count: LongArray,
    place: IntArray,
    rank: IntArray,
) -> None:
    """For each output read, write which it is, by (type, output, row), and how many have read it before."""
    source, output, type_id, row = indices(sources), indices(outputs), indices(type_ids), indices(rows)
    first, start = indices(out_ptr), long_indices(base)
    for e in range(source.size):
        node = source[e]
        k = start[first[type_id[node]] + output[e]] + row[node]
        place[e], rank[e] = k, count[k]
        count[k] += 1


@compiled
def _write_edges(
    graph: Sections,
    rows: Rows,
    tables: TypeTables,
    ptr: LongArray,
    places: IntArray,
    ranks: IntArray,
    dest: LongArray,
    adds: NDArray[np.bool_],
) -> None:
    """Write where the reader of each edge finds the value, to the entry of the output that it comes from.

    Of the edges of a plain port, whose values are added up, the one whose value is made first stores. Nodes go by type,
    so that what one does all do, and the processor guesses right.
    """
    width, port_column, origin, edge_src = tables.block_width, tables.port_column, rows.origin, graph.edge_src
    segments, segment_base = rows.segments, rows.segment_base
    port_block, edge_in, start, end = (
        indices(tables.port_block), indices(graph.edge_in), indices(graph.edge_ptr[:-1]), indices(graph.edge_ptr[1:]),
    )  # fmt: skip
    row, batch_of, base_ptr = indices(rows.row), indices(rows.batch_of), long_indices(rows.base_ptr)
    entries, place, rank = long_indices(ptr), indices(places), indices(ranks)
    nodes = _sort_by_type(graph.type_id, rows.type_ptr)
    for kind in range(rows.type_ptr.size - 1):
        first, first_port = np.uint64(tables.block_ptr[kind]), np.uint64(tables.port_ptr[kind])
        for node in nodes[rows.type_ptr[kind] : rows.type_ptr[kind + 1]]:
            own, at = row[node], base_ptr[batch_of[node]]
            plain = origin[at] + np.int64(own) * width[first]
            before, run = (
                np.uint64(0),
                start[node],
            )  # the port of the edge before; its first edge, or the one that stores
            for e in range(start[node], end[node]):
                port = first_port + edge_in[e]
                block, entry = port_block[port], entries[place[e]] + rank[e]
                again = e > start[node] and port == before
                before = port
                if not again:
                    run = e
                if block == 0:
                    dest[entry] = plain + port_column[port]
                    if again:
                        adds[entry] = not _is_earlier(edge_src[e], edge_src[run], row, batch_of)
                        if not adds[entry]:
                            adds[entries[place[run]] + rank[run]] = True
                            run = e
                else:
                    n = segments[segment_base[first + block] + np.int64(own)] + np.int64(e - run)
                    dest[entry] = origin[at + block] + n * width[first + block] + port_column[port]


@compiled
def _is_earlier(a: int, b: int, row: IndexArray, batch_of: IndexArray) -> bool:
    """Say whether node a runs before node b."""
    if batch_of[a] == batch_of[b]:
        return bool(row[a] < row[b])
    return bool(batch_of[a] < batch_of[b])


@compiled
def _sort_by_type(type_id: IntArray, type_ptr: IntArray) -> IndexArray:
    """Sort the nodes by type."""
    nodes, at = np.empty(type_id.size, np.uint32), type_ptr.copy()
    free, types = indices(at), indices(type_id)
    for node in range(types.size):
        nodes[free[types[node]]] = node
        free[types[node]] += 1
    return nodes


@compiled
def gather_rows(
    data: NDArray[Any], width: IntArray, type_id: IntArray, node_at: IntArray, type_ptr: IntArray
) -> NDArray[Any]:
    """Attributes of the nodes, type by type in row order."""
    start = indices(value_starts(type_id, width))
    flat = np.empty(data.size, data.dtype)
    at = 0
    for kind in range(type_ptr.size - 1):
        n = width[kind]
        if n:
            for node in indices(node_at[type_ptr[kind] : type_ptr[kind + 1]]):
                for word in range(start[node], start[node] + np.uint32(n)):
                    flat[at] = data[word]
                    at += 1
    return flat
