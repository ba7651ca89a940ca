"""Place the values that cells pass to each other: each is written to the rows of its readers when it is made.

Nodes get rows (`rows`), then every edge and every output of the graph gets a destination (`destinations`). A plain port
with several edges, made by the pass `fold`, reads their sum: the value that is made first is stored, the others are
added.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.graph.graph import Graph
from autobatch.graph.words import sections
from autobatch.ir.type_arrays import TypeArrays
from autobatch.jit.arrays import FloatArray, IntArray
from autobatch.jit.loops import compiled
from autobatch.memplan.batch.destinations import list_destinations
from autobatch.memplan.batch.rows import Areas, Batches, LongArray, Rows, Widths, find_data, gather_rows, place_rows
from autobatch.plan.plan import Plan, PlannedTypes, TypeTables
from autobatch.schedule.schedule import Schedule

INT32_ELEMENTS = 2**31 - 1  # beyond this, destinations need 64 bits


def place(graph: Graph, schedule: Schedule, cells: PlannedTypes) -> Plan:
    """Place a scheduled graph: rows in schedule order, a destination for every edge and every output.

    Cost: O(N + E), and in inference O(K) per batch at worst.
    """
    tables, arrays = cells.tables, graph.types.arrays()
    batches = Batches(schedule.batch_type, schedule.batch_ptr, schedule.order)
    widths = Widths(cells.slot_width, cells.saved_width)
    rows, areas, ints, floats, narrow, dest_base, dest_ptr, adds = place_values(
        graph.words, graph.floats, batches, tables, widths, arrays, cells.training
    )
    dest: NDArray[Any] = narrow
    if areas.size > INT32_ELEMENTS:
        dest = np.empty(narrow.size, np.int64)
        dest_base, dest_ptr, adds = list_destinations(graph.words, rows, tables, areas.slot_base, widths.slot, dest)
    return Plan(
        graph, schedule, rows.row, rows.type_ptr, rows.node_at, rows.block_rows, rows.base_ptr, rows.base,
        areas.saved_base, rows.segments, rows.segment_base, dest_base, dest_ptr, dest, adds, areas.slot_base,
        areas.slot_rows, areas.mirror, areas.size, ints, floats, arrays, tables,
    )  # fmt: skip


@compiled
def place_values(
    words: IntArray,
    floats: FloatArray,
    batches: Batches,
    tables: TypeTables,
    widths: Widths,
    types: TypeArrays,
    training: bool,
) -> tuple[Rows, Areas, IntArray, FloatArray, IntArray, LongArray, LongArray, NDArray[np.bool_]]:
    """Place rows, sort attributes by row, and list destinations; none if they do not fit 32 bits."""
    graph = sections(words)
    data = find_data(graph, types)
    rows, areas = place_rows(words, batches, tables, widths, data, training)
    ints, reals = gather_rows(graph, floats, data, tables, rows.node_at, rows.type_ptr)
    dest = np.empty(graph.edge_src.size + graph.out_node.size, np.int32)
    base, ptr, adds = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_)
    if areas.size <= INT32_ELEMENTS:
        base, ptr, adds = list_destinations(words, rows, tables, areas.slot_base, widths.slot, dest)
    return rows, areas, ints, reals, dest, base, ptr, adds
