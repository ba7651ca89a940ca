"""Where the values of a mini-batch live between cells: each is written, when it is made, to the rows of its readers.

Rows of a type are in schedule order, so a batch is a contiguous range of rows, and reading needs no gather. In training
the rows of a type are one block, for they are read again: backwards, and all at once for the gradients of weights. In
inference a batch's rows live from their first writer to its run, and their memory is used again (`lifetimes`). A plain
port with several edges, from the pass `fold`, is their sum: what is made first is stored, the others are added.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch._jit import compiled
from autobatch.graph import Graph
from autobatch.memplan.lifetimes import place_areas
from autobatch.plan import ALIGNMENT, Plan, PlannedTypes, TypeTables
from autobatch.schedule import Schedule
from autobatch.words import IntArray, value_starts

LongArray = NDArray[np.int64]
INT32_ELEMENTS = 2**31 - 1  # beyond this, destinations need 64 bits


class Edges(NamedTuple):
    """What placement reads of a scheduled graph."""

    type_id: IntArray  # [N]
    edge_ptr: IntArray  # [N+1]
    edge_src: IntArray  # [E]
    edge_out: IntArray  # [E]
    edge_in: IntArray  # [E]
    batch_type: IntArray  # [K]
    batch_ptr: IntArray  # [K+1]
    order: IntArray  # [N]


def place(graph: Graph, schedule: Schedule, cells: PlannedTypes) -> Plan:
    """Place a scheduled graph: rows in schedule order, a destination for every edge and every output.

    Cost: O(N + E), and in inference O(K) per batch at worst.
    """
    tables, arrays = cells.tables, graph.types.arrays()
    edges = Edges(
        graph.type_id, graph.edge_ptr, graph.edge_src, graph.edge_out, graph.edge_in,
        schedule.batch_type, schedule.batch_ptr, schedule.order,
    )  # fmt: skip
    type_ptr, base_ptr, rows, block_rows = count_rows(edges, tables)
    slot_rows = np.bincount(graph.out_slot, minlength=len(cells.slot_widths)).astype(np.int64)
    slot_sizes = slot_rows * np.array(cells.slot_widths, np.int64)
    if cells.training:
        input_base, end = _bases(block_rows * tables.block_width, 0)
        slot_base, end = _bases(slot_sizes, end)
        base = follow_in_blocks(edges, tables, base_ptr, rows, input_base)
        saved_base, size = _bases(block_rows * cells.saved_width, 2 * end)
    else:
        slot_base, end = _bases(slot_sizes, 0)
        base, size = place_areas(edges, tables, base_ptr, rows, end)
        saved_base = np.zeros(0, np.int64)
    row, node_at, edge_offset, edge_adds, segments, segment_base = place_rows(edges, type_ptr, base_ptr, base, tables)
    dtype = np.int32 if size <= INT32_ELEMENTS else np.int64
    out_offset = _output_offsets(graph.out_slot, slot_base, np.array(cells.slot_widths, np.int64))
    dest_base, dest_ptr, dest, adds = list_destinations(
        edges, edge_offset, edge_adds, graph.out_node, graph.out_port, out_offset, row, type_ptr, tables.out_ptr,
        np.empty(graph.n_edges + graph.n_outputs, dtype),
    )  # fmt: skip
    grouped = np.flatnonzero(np.diff(segment_base)).tolist()
    return Plan(
        graph, schedule, row, type_ptr, node_at, block_rows, base_ptr, base, saved_base,
        {b: segments[segment_base[b] : segment_base[b + 1]] for b in grouped},
        dest_base, dest_ptr, dest, adds, slot_base, slot_rows, end if cells.training else 0, size,
        _data_by_row(graph.attr, arrays.int_width, graph.type_id, node_at, type_ptr),
        _data_by_row(graph.floats, arrays.float_width, graph.type_id, node_at, type_ptr),
        tables,
    )  # fmt: skip


def _bases(sizes: LongArray, start: int) -> tuple[LongArray, int]:
    """Where areas of these sizes start when they follow `start` one after another, aligned; and the end."""
    aligned = -(-sizes // ALIGNMENT) * ALIGNMENT
    ends = start + np.cumsum(aligned)
    return ends - aligned, int(ends[-1]) if ends.size else start


def _output_offsets(out_slot: IntArray, slot_base: LongArray, widths: LongArray) -> LongArray:
    """Where each output that the user asked for goes: its slot's rows are in instance order."""
    offsets = np.empty(out_slot.size, np.int64)
    for slot in np.unique(out_slot):
        chosen = out_slot == slot
        offsets[chosen] = slot_base[slot] + widths[slot] * np.arange(np.count_nonzero(chosen))
    return offsets


def _data_by_row(
    data: NDArray[Any], width: IntArray, type_id: IntArray, node_at: IntArray, type_ptr: IntArray
) -> list[NDArray[Any]]:
    """Per type, its attributes `[N_type, width]` in row order."""
    flat, bases = gather_rows(data, width, value_starts(type_id, width), node_at, type_ptr)
    return [
        flat[bases[t] : bases[t + 1]].reshape(-1, w) if w else flat[:0].reshape(0, 0)
        for t, w in enumerate(width.tolist())
    ]


@compiled
def count_rows(edges: Edges, tables: TypeTables) -> tuple[IntArray, LongArray, LongArray, LongArray]:
    """Count nodes and rows.

    Returns:
        the nodes of the types as pointers [T+1]; per batch where its blocks start in the next array [K+1]; the rows of
        each block of each batch; and the rows of each block of all batches.
    """
    block_ptr, port_ptr = tables.block_ptr, tables.port_ptr
    leads, port_block = tables.port_leads, tables.port_block
    edge_ptr, edge_in, order = edges.edge_ptr, edges.edge_in, edges.order
    batch_type, batch_ptr = edges.batch_type, edges.batch_ptr
    n_types, n_batches = block_ptr.size - 1, batch_type.size
    type_ptr = np.zeros(n_types + 1, np.int32)
    base_ptr = np.zeros(n_batches + 1, np.int64)
    for k in range(n_batches):
        kind = batch_type[k]
        base_ptr[k + 1] = base_ptr[k] + block_ptr[kind + 1] - block_ptr[kind]
        type_ptr[kind + 1] += batch_ptr[k + 1] - batch_ptr[k]
    for kind in range(n_types):
        type_ptr[kind + 1] += type_ptr[kind]
    rows = np.zeros(base_ptr[n_batches], np.int64)
    total = np.zeros(block_ptr[n_types], np.int64)
    for k in range(n_batches):
        kind, at = batch_type[k], base_ptr[k]
        rows[at] = batch_ptr[k + 1] - batch_ptr[k]
        if block_ptr[kind + 1] - block_ptr[kind] > 1:
            for i in range(batch_ptr[k], batch_ptr[k + 1]):
                node = order[i]
                for e in range(edge_ptr[node], edge_ptr[node + 1]):
                    port = port_ptr[kind] + edge_in[e]
                    if leads[port]:
                        rows[at + port_block[port]] += 1
        for b in range(base_ptr[k + 1] - at):
            total[block_ptr[kind] + b] += rows[at + b]
    return type_ptr, base_ptr, rows, total


@compiled
def follow_in_blocks(
    edges: Edges, tables: TypeTables, base_ptr: LongArray, rows: LongArray, input_base: LongArray
) -> LongArray:
    """Where each block of each batch starts when those of a type follow one another from `input_base` on."""
    base, end = np.empty(rows.size, np.int64), input_base.copy()
    block_ptr, width, batch_type = tables.block_ptr, tables.block_width, edges.batch_type
    for k in range(batch_type.size):
        first = block_ptr[batch_type[k]]
        for at in range(base_ptr[k], base_ptr[k + 1]):
            block = first + at - base_ptr[k]
            base[at] = end[block]
            end[block] += rows[at] * width[block]
    return base


@compiled
def place_rows(
    edges: Edges, type_ptr: IntArray, base_ptr: LongArray, base: LongArray, tables: TypeTables
) -> tuple[IntArray, IntArray, LongArray, NDArray[np.bool_], LongArray, LongArray]:
    """Give nodes rows in schedule order, and each edge the offset at which its reader finds the value.

    Of the edges of a plain port, whose values are added up, the one whose value is made first stores.

    Returns:
        row[N], node_at[N], edge_offset[E], edge_adds[E], and for all variadic group blocks one after another the first
        edge row of each node row (segments), with where each block's begin (segment_base[blocks + 1]).
    """
    port_ptr, block_ptr, leads = tables.port_ptr, tables.block_ptr, tables.port_leads
    port_block, port_column, width = tables.port_block, tables.port_column, tables.block_width
    edge_ptr, edge_src, edge_in, order = edges.edge_ptr, edges.edge_src, edges.edge_in, edges.order
    batch_type, batch_ptr = edges.batch_type, edges.batch_ptr
    n_nodes, n_edges, n_blocks = edges.type_id.size, edge_in.size, width.size
    row, node_at = np.empty(n_nodes, np.int32), np.empty(n_nodes, np.int32)
    position = np.empty(n_nodes, np.int32)
    edge_offset, edge_adds = np.empty(n_edges, np.int64), np.zeros(n_edges, np.bool_)
    segment_base = np.zeros(n_blocks + 1, np.int64)
    for kind in range(type_ptr.size - 1):
        for block in range(block_ptr[kind], block_ptr[kind + 1]):
            n = 0 if block == block_ptr[kind] else type_ptr[kind + 1] - type_ptr[kind] + 1
            segment_base[block + 1] = segment_base[block] + n
    segments = np.zeros(segment_base[n_blocks], np.int64)
    n_placed = np.zeros(type_ptr.size - 1, np.int32)
    in_batch = np.zeros(n_blocks, np.int64)  # rows of each block that this batch has used
    for k in range(batch_type.size):
        kind, at = batch_type[k], base_ptr[k]
        first, first_port = block_ptr[kind], port_ptr[kind]
        n_groups = block_ptr[kind + 1] - first - 1
        in_batch[first : first + n_groups + 1] = 0
        for i in range(batch_ptr[k], batch_ptr[k + 1]):
            node = order[i]
            own = n_placed[kind]
            n_placed[kind] += 1
            row[node], position[node] = own, i
            node_at[type_ptr[kind] + own] = node
            port = -1
            place = store = 0
            for e in range(edge_ptr[node], edge_ptr[node + 1]):
                again = first_port + edge_in[e] == port
                port = first_port + edge_in[e]
                block = port_block[port]
                if block > 0:
                    place = place + 1 if again else 0
                    if leads[port]:
                        segments[segment_base[first + block] + own + 1] += 1
                else:
                    place = 0
                    if not again:
                        store = e
                    elif position[edge_src[e]] < position[edge_src[store]]:
                        edge_adds[store] = True
                        store = e
                    else:
                        edge_adds[e] = True
                offset = (in_batch[first + block] + place) * width[first + block]
                edge_offset[e] = base[at + block] + offset + port_column[port]
            in_batch[first] += 1
            for block in range(first + 1, first + n_groups + 1):
                s = segment_base[block] + own
                in_batch[block] += segments[s + 1]
                segments[s + 1] += segments[s]
    return row, node_at, edge_offset, edge_adds, segments, segment_base


@compiled
def list_destinations(
    edges: Edges,
    edge_offset: LongArray,
    edge_adds: NDArray[np.bool_],
    out_node: IntArray,
    out_port: IntArray,
    out_offset: LongArray,
    row: IntArray,
    type_ptr: IntArray,
    out_ptr: IntArray,
    dest: LongArray,
) -> tuple[LongArray, LongArray, LongArray, NDArray[np.bool_]]:
    """Sort the offsets, and whether values are added there, by the node output that goes there: (type, output, row)."""
    type_id, edge_src, edge_out = edges.type_id, edges.edge_src, edges.edge_out
    base = np.zeros(out_ptr[-1] + 1, np.int64)
    for kind in range(type_ptr.size - 1):
        for out in range(out_ptr[kind], out_ptr[kind + 1]):
            base[out + 1] = base[out] + type_ptr[kind + 1] - type_ptr[kind]
    ptr = np.zeros(base[-1] + 2, np.int64)  # of place k: counts at k + 2, then where to write next at k + 1
    place = np.empty(edge_src.size, np.int32)
    for e in range(edge_src.size):
        src = edge_src[e]
        place[e] = base[out_ptr[type_id[src]] + edge_out[e]] + row[src]
        ptr[place[e] + 2] += 1
    for o in range(out_node.size):
        src = out_node[o]
        ptr[base[out_ptr[type_id[src]] + out_port[o]] + row[src] + 2] += 1
    for k in range(ptr.size - 1):
        ptr[k + 1] += ptr[k]
    adds = np.zeros(dest.size, np.bool_)
    for e in range(edge_src.size):
        at = ptr[place[e] + 1]
        ptr[place[e] + 1] += 1
        dest[at], adds[at] = edge_offset[e], edge_adds[e]
    for o in range(out_node.size):
        src = out_node[o]
        k = base[out_ptr[type_id[src]] + out_port[o]] + row[src]
        dest[ptr[k + 1]] = out_offset[o]
        ptr[k + 1] += 1
    return base, ptr[:-1], dest, adds


@compiled
def gather_rows(
    data: NDArray[Any], width: IntArray, starts: IntArray, node_at: IntArray, type_ptr: IntArray
) -> tuple[NDArray[Any], LongArray]:
    """Attributes of the nodes, type by type in row order; and where each type's begin."""
    bases = np.zeros(width.size + 1, np.int64)
    flat = np.empty(data.size, data.dtype)
    at = 0
    for kind in range(width.size):
        if width[kind]:
            for k in range(type_ptr[kind], type_ptr[kind + 1]):
                first = starts[node_at[k]]
                for word in range(first, first + width[kind]):
                    flat[at] = data[word]
                    at += 1
        bases[kind + 1] = at
    return flat, bases
