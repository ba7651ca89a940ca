"""The simple planner: ports side by side, and every value written to the rows of every reader.

Rows of a type are in schedule order, so a batch is a contiguous range of rows. Reading needs no gather; a value
with several readers is written several times.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch._jit import compiled
from autobatch.autodiff import Derivative
from autobatch.graph import Graph
from autobatch.plan import ALIGNMENT, Layout, Place, Plan, PlannedTypes, TypeTables
from autobatch.program import NODE, CellProgram, Var
from autobatch.schedule import Schedule
from autobatch.words import IntArray, value_starts

LongArray = NDArray[np.int64]
INT32_ELEMENTS = 2**31 - 1  # beyond this, destinations need 64 bits


class WriteToReaders:
    """Every value is copied, when it is made, to the rows of each of its readers."""

    def layout(self, program: CellProgram, derivative: Derivative | None) -> Layout:
        """Give ports, and saved values, columns side by side in the order of their numbers."""
        n_domains = 1 + program.n_groups
        inputs, input_width = _side_by_side(program.vars, program.ports, n_domains)
        vars, saved = (derivative.vars, derivative.saved) if derivative is not None else ((), ())
        places, saved_width = _side_by_side(vars, saved, n_domains)
        return Layout(tuple(inputs[p] for p in program.ports), places, input_width, saved_width)

    def place(self, graph: Graph, schedule: Schedule, cells: PlannedTypes) -> Plan:
        """Place a scheduled graph: rows in schedule order, a destination for every edge and every output."""
        tables, arrays = cells.tables, graph.types.arrays()
        n_types = len(cells.cells)
        block_rows, type_ptr = count_rows(graph.type_id, graph.edge_ptr, graph.edge_in, n_types, tables)
        slot_rows = np.bincount(graph.out_slot, minlength=len(cells.slot_widths)).astype(np.int64)
        input_base, end = _bases(block_rows * tables.block_width, 0)
        slot_base, end = _bases(slot_rows * np.array(cells.slot_widths, np.int64), end)
        mirror = end if cells.training else 0
        saved_base, size = (
            _bases(block_rows * cells.saved_width, 2 * end) if cells.training else (np.zeros(0, np.int64), end)
        )
        row, node_at, edge_offset, segments, segment_base = place_rows(
            graph.type_id, graph.edge_ptr, graph.edge_in, schedule.order, type_ptr, input_base, block_rows, tables
        )
        dtype = np.int32 if size <= INT32_ELEMENTS else np.int64
        out_offset = _output_offsets(graph.out_slot, slot_base, np.array(cells.slot_widths, np.int64))
        dest_base, dest_ptr, dest = list_destinations(
            graph.type_id, graph.edge_src, graph.edge_out, edge_offset, graph.out_node, graph.out_port, out_offset,
            row, type_ptr, tables, np.empty(graph.n_edges + graph.n_outputs, dtype),
        )  # fmt: skip
        grouped = np.flatnonzero(np.diff(segment_base)).tolist()
        return Plan(
            graph, schedule, row, type_ptr, node_at, input_base, saved_base, block_rows,
            {b: segments[segment_base[b] : segment_base[b + 1]] for b in grouped},
            dest_base, dest_ptr, dest, slot_base, slot_rows, mirror, size,
            _data_by_row(graph.attr, arrays.int_width, graph.type_id, node_at, type_ptr),
            _data_by_row(graph.floats, arrays.float_width, graph.type_id, node_at, type_ptr),
            tables,
        )  # fmt: skip


def _side_by_side(
    vars: tuple[Var, ...], chosen: tuple[int, ...], n_domains: int
) -> tuple[dict[int, Place], tuple[int, ...]]:
    places, width = {}, [0] * n_domains
    for index in chosen:
        domain = vars[index].domain
        places[index] = Place(domain, width[domain - NODE], vars[index].size)
        width[domain - NODE] += vars[index].size
    return places, tuple(width)


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
def count_rows(
    type_id: IntArray, edge_ptr: IntArray, edge_in: IntArray, n_types: int, tables: TypeTables
) -> tuple[LongArray, IntArray]:
    """Count the rows of each block, and the nodes of the types as pointers [T+1]."""
    rows = np.zeros(tables.block_width.size, np.int64)
    type_ptr = np.zeros(n_types + 1, np.int32)
    port_ptr, block_ptr, leads, port_block = tables.port_ptr, tables.block_ptr, tables.port_leads, tables.port_block
    for node in range(type_id.size):
        kind = type_id[node]
        type_ptr[kind + 1] += 1
        for e in range(edge_ptr[node], edge_ptr[node + 1]):
            port = port_ptr[kind] + edge_in[e]
            if leads[port]:
                rows[block_ptr[kind] + port_block[port]] += 1
    for kind in range(n_types):
        rows[block_ptr[kind]] = type_ptr[kind + 1]
        type_ptr[kind + 1] += type_ptr[kind]
    return rows, type_ptr


@compiled
def place_rows(
    type_id: IntArray,
    edge_ptr: IntArray,
    edge_in: IntArray,
    order: IntArray,
    type_ptr: IntArray,
    input_base: LongArray,
    block_rows: LongArray,
    tables: TypeTables,
) -> tuple[IntArray, IntArray, LongArray, LongArray, LongArray]:
    """Give nodes rows in schedule order, and each edge the offset at which its reader finds the value.

    Returns:
        row[N], node_at[N], edge_offset[E], and for all variadic group blocks one after another the first edge row of
        each node row (segments), with where each block's begin (segment_base[blocks + 1]).
    """
    port_ptr, block_ptr, leads = tables.port_ptr, tables.block_ptr, tables.port_leads
    port_block, port_column, width = tables.port_block, tables.port_column, tables.block_width
    row, node_at = np.empty(type_id.size, np.int32), np.empty(type_id.size, np.int32)
    edge_offset = np.empty(edge_in.size, np.int64)
    filled = np.zeros(block_rows.size, np.int64)
    segment_base = np.zeros(block_rows.size + 1, np.int64)
    for kind in range(type_ptr.size - 1):
        for block in range(block_ptr[kind], block_ptr[kind + 1]):
            n = 0 if block == block_ptr[kind] else type_ptr[kind + 1] - type_ptr[kind] + 1
            segment_base[block + 1] = segment_base[block] + n
    segments = np.zeros(segment_base[-1], np.int64)
    for node in order:
        kind = type_id[node]
        first = block_ptr[kind]
        own = filled[first]
        row[node] = own
        node_at[type_ptr[kind] + own] = node
        port, place = -1, 0
        for e in range(edge_ptr[node], edge_ptr[node + 1]):
            if port_ptr[kind] + edge_in[e] != port:
                port, place = port_ptr[kind] + edge_in[e], 0
            block = first + port_block[port]
            at = filled[block] + place
            place += 1
            edge_offset[e] = input_base[block] + at * width[block] + port_column[port]
        for e in range(edge_ptr[node], edge_ptr[node + 1]):
            port = port_ptr[kind] + edge_in[e]
            if leads[port]:
                segments[segment_base[first + port_block[port]] + own + 1] += 1
        for block in range(first + 1, block_ptr[kind + 1]):
            at = segment_base[block] + own
            filled[block] += segments[at + 1]
            segments[at + 1] = filled[block]
        filled[first] += 1
    return row, node_at, edge_offset, segments, segment_base


@compiled
def list_destinations(
    type_id: IntArray,
    edge_src: IntArray,
    edge_out: IntArray,
    edge_offset: LongArray,
    out_node: IntArray,
    out_port: IntArray,
    out_offset: LongArray,
    row: IntArray,
    type_ptr: IntArray,
    tables: TypeTables,
    dest: LongArray,
) -> tuple[LongArray, LongArray, LongArray]:
    """Sort the offsets by the node output that is written there: (type, output, row)."""
    out_ptr = tables.out_ptr
    base = np.zeros(out_ptr[-1] + 1, np.int64)
    for kind in range(type_ptr.size - 1):
        for out in range(out_ptr[kind], out_ptr[kind + 1]):
            base[out + 1] = base[out] + type_ptr[kind + 1] - type_ptr[kind]
    ptr = np.zeros(base[-1] + 1, np.int64)
    for e in range(edge_src.size):
        src = edge_src[e]
        ptr[base[out_ptr[type_id[src]] + edge_out[e]] + row[src] + 1] += 1
    for o in range(out_node.size):
        src = out_node[o]
        ptr[base[out_ptr[type_id[src]] + out_port[o]] + row[src] + 1] += 1
    for k in range(ptr.size - 1):
        ptr[k + 1] += ptr[k]
    fill = ptr[:-1].copy()
    for e in range(edge_src.size):
        src = edge_src[e]
        k = base[out_ptr[type_id[src]] + edge_out[e]] + row[src]
        dest[fill[k]] = edge_offset[e]
        fill[k] += 1
    for o in range(out_node.size):
        src = out_node[o]
        k = base[out_ptr[type_id[src]] + out_port[o]] + row[src]
        dest[fill[k]] = out_offset[o]
        fill[k] += 1
    return base, ptr, dest


@compiled
def gather_rows(
    data: LongArray, width: IntArray, starts: IntArray, node_at: IntArray, type_ptr: IntArray
) -> tuple[LongArray, LongArray]:
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
