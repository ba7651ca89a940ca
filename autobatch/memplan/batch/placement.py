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
from autobatch.jit.arrays import IntArray
from autobatch.memplan.batch.destinations import list_destinations
from autobatch.memplan.batch.rows import Batches, Widths, gather_rows, place_rows
from autobatch.plan.plan import Plan, PlannedTypes
from autobatch.schedule.schedule import Schedule

INT32_ELEMENTS = 2**31 - 1  # beyond this, destinations need 64 bits


def place(graph: Graph, schedule: Schedule, cells: PlannedTypes) -> Plan:
    """Place a scheduled graph: rows in schedule order, a destination for every edge and every output.

    Cost: O(N + E), and in inference O(K) per batch at worst.
    """
    tables, arrays = cells.tables, graph.types.arrays()
    batches = Batches(schedule.batch_type, schedule.batch_ptr, schedule.order)
    widths = Widths(np.array(cells.slot_widths, np.int64), cells.saved_width, arrays.int_width)
    rows, areas, ints = place_rows(graph.words, batches, tables, widths, cells.training)
    dest: NDArray[Any] = np.empty(
        graph.n_edges + graph.n_outputs, np.int32 if areas.size <= INT32_ELEMENTS else np.int64
    )
    dest_base, dest_ptr, adds = list_destinations(graph.words, rows, tables, areas.slot_base, widths.slot, dest)
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
    """Split the attributes of all types into one array `[N_type, width]` per type."""
    found, start, counts = [], 0, np.diff(type_ptr).tolist()
    for kind, columns in enumerate(width.tolist()):
        end = start + (counts[kind] * columns if kind < len(counts) else 0)
        found.append(flat[start:end].reshape(-1, columns) if columns else flat[:0].reshape(0, 0))
        start = end
    return found
