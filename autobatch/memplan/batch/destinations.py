"""List the destinations of every node output: the places in its readers' rows to which it is written.

Loops visit nodes in graph order where possible, and not batch by batch: an instance then stays in the cache while its
nodes are placed, and each batch's rows are written consecutively. From a million nodes on, where the cache holds little
of a graph, this takes a third of the time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.graph.words import OUTPUT, OUTPUT_BITS, Sections, sections
from autobatch.jit.arrays import IndexArray, IntArray, indices, long_indices
from autobatch.jit.loops import compiled
from autobatch.memplan.batch.rows import Rows
from autobatch.plan.plan import TypeTables

LongArray = NDArray[np.int64]


class Outputs(NamedTuple):
    """The rows of the outputs of all nodes, numbered by type, output of the type, and row."""

    ptr: IntArray  # [T+1] outputs of each type
    base: LongArray  # the number of the first row of each of them
    edges: LongArray  # where the first edges of each node are in the segments; -1 for an output with a row per node
    n_readers: LongArray  # readers of each row, a running count


@compiled
def list_destinations(
    words: IntArray, rows: Rows, tables: TypeTables, slot_base: LongArray, slot_width: LongArray, dest: NDArray[Any]
) -> tuple[LongArray, LongArray, NDArray[np.bool_]]:
    """List the places that each node output is written to, and whether it is added there, by (type, output, row).

    Args:
        dest: [E+O], overwritten; its dtype is that of places.

    Returns:
        dest_base, dest_ptr and adds, as `Plan` has them.
    """
    graph = sections(words)
    type_ids, out_ptr, type_ptr = graph.type_id, tables.out_ptr, rows.type_ptr
    base, edges = np.zeros(out_ptr[-1] + 1, np.int64), np.empty(out_ptr[-1], np.int64)
    for type_id in range(type_ptr.size - 1):
        for out in range(out_ptr[type_id], out_ptr[type_id + 1]):
            block = tables.block_ptr[type_id] + tables.out_block[out]
            base[out + 1] = base[out] + rows.block_rows[block]
            edges[out] = rows.segment_base[block] if tables.out_block[out] else -1
    ptr = np.zeros(base[-1] + 1, np.int64)
    n_edges, n_outputs = graph.edge_src.size, graph.out_node.size
    place, rank = np.empty(n_edges + n_outputs, np.int32), np.empty(n_edges + n_outputs, np.int32)
    outputs = Outputs(out_ptr, base, edges, ptr)
    _count_readers(graph.edge_src, graph.edge_out, type_ids, rows, outputs, place[:n_edges], rank[:n_edges])
    _count_readers(graph.out_node, graph.out_port, type_ids, rows, outputs, place[n_edges:], rank[n_edges:])
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
    ports: IntArray,
    type_ids: IntArray,
    rows: Rows,
    outputs: Outputs,
    place: IntArray,
    rank: IntArray,
) -> None:
    """Number the output that each edge reads, by (type, output, row), and count its earlier readers."""
    source, output, type_id, row = indices(sources), indices(ports), indices(type_ids), indices(rows.row)
    first, start, count = indices(outputs.ptr), long_indices(outputs.base), outputs.n_readers
    for e in range(source.size):
        node = source[e]
        number = first[type_id[node]] + (output[e] & OUTPUT)
        edges, own = outputs.edges[number], np.int64(row[node])
        if edges >= 0:
            own = rows.segments[edges + own] + np.int64(output[e] >> OUTPUT_BITS)
        k = np.int64(start[number]) + own
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
    dest: NDArray[Any],
    adds: NDArray[np.bool_],
) -> None:
    """Write the place where each edge's reader finds its value, as a destination of the output that it reads.

    Several edges of a plain port are summed: the value that is made first is stored, the others are added. Nodes are
    visited by type, so that branches are predictable.
    """
    width, port_column, origin, edge_src = tables.block_width, tables.port_column, rows.origin, graph.edge_src
    segments, segment_base = rows.segments, rows.segment_base
    port_block, edge_in, edge_out, start, end = (
        indices(tables.port_block), indices(graph.edge_in), indices(graph.edge_out), indices(graph.edge_ptr[:-1]),
        indices(graph.edge_ptr[1:]),
    )  # fmt: skip
    row, batch_of, base_ptr = indices(rows.row), indices(rows.batch_of), long_indices(rows.base_ptr)
    entries, place, rank = long_indices(ptr), indices(places), indices(ranks)
    nodes = _sort_by_type(graph.type_id, rows.type_ptr)
    for type_id in range(rows.type_ptr.size - 1):
        first, first_port = np.uint64(tables.block_ptr[type_id]), np.uint64(tables.port_ptr[type_id])
        for node in nodes[rows.type_ptr[type_id] : rows.type_ptr[type_id + 1]]:
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
                        if edge_src[e] == edge_src[run]:
                            adds[entry] = edge_out[e] >= edge_out[run]
                        else:
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
