"""Place the values that cells pass to each other: each is written to the rows of its readers when it is made.

Nodes get rows (`rows`), then every edge and every output of the graph gets a destination (`destinations`). A plain port
with several edges, made by the pass `fold`, reads their sum: the value that is made first is stored, the others are
added.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.graph.graph import Graph
from autobatch.graph.words import sections
from autobatch.ir.type_arrays import TypeArrays
from autobatch.jit.arrays import FloatArray, IntArray
from autobatch.jit.joining import join_longs
from autobatch.jit.loops import compiled
from autobatch.memplan.batch.destinations import list_destinations
from autobatch.memplan.batch.rows import Batches, LongArray, Widths, find_data, gather_rows, place_rows
from autobatch.plan.plan import Plan, PlannedTypes, TypeTables
from autobatch.schedule.schedule import Schedule

INT32_ELEMENTS = 2**31 - 1  # beyond this, destinations need 64 bits
N_NUMBERS = 11  # of `place_values`: two of the plan, and where nine arrays end


def place(graph: Graph, schedule: Schedule, cells: PlannedTypes) -> Plan:
    """Place a scheduled graph: rows in schedule order, a destination for every edge and every output.

    Cost: O(N + E), and in inference O(K) per batch at worst.
    """
    tables, arrays = cells.tables, graph.types.arrays()
    batches = Batches(schedule.batch_type, schedule.batch_ptr, schedule.order)
    widths, n_destinations = Widths(cells.slot_width, cells.saved_width), graph.n_edges + graph.n_outputs
    for places in (np.int32, np.int64):
        dest: NDArray[Any] = np.empty(n_destinations, places)
        row, node_at, segments, ints, floats, dest_ptr, adds, numbers = place_values(
            graph.words, graph.floats, batches, tables, widths, arrays, cells.training, dest
        )
        mirror, size, *ends = numbers[:N_NUMBERS].tolist()
        if size <= INT32_ELEMENTS:
            break
    type_ptr, block_rows, base_ptr, base, segment_base, saved_base, slot_base, slot_rows, dest_base = [
        numbers[first:end] for first, end in pairwise((N_NUMBERS, *ends))
    ]
    return Plan(
        graph, schedule, row, type_ptr, node_at, block_rows, base_ptr, base, saved_base, segments, segment_base,
        dest_base, dest_ptr, dest, adds, slot_base, slot_rows, mirror, size, ints, floats, arrays, tables,
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
    dest: NDArray[Any],
) -> tuple[IntArray, IntArray, LongArray, IntArray, FloatArray, LongArray, NDArray[np.bool_], LongArray]:
    """Place rows, sort attributes by row, and list destinations.

    Args:
        dest: [E+O], overwritten; its dtype is that of places, which are wrong if they do not fit.

    Returns:
        row, node_at, segments, ints, floats, dest_ptr and adds, as `Plan` has them; and numbers, since each array that
        compiled code returns takes half a microsecond: mirror, size, and then where each of these ends, which follow:
        type_ptr, block_rows, base_ptr, base, segment_base, saved_base, slot_base, slot_rows, dest_base.
    """
    graph = sections(words)
    data = find_data(graph, types)
    rows, areas = place_rows(words, batches, tables, widths, data, training)
    ints, reals = gather_rows(graph, floats, data, tables, rows.node_at, rows.type_ptr)
    dest_base, dest_ptr, adds = list_destinations(words, rows, tables, areas.slot_base, widths.slot, dest)
    parts = (
        rows.type_ptr.astype(np.int64), rows.block_rows, rows.base_ptr, rows.base, rows.segment_base, areas.saved_base,
        areas.slot_base, areas.slot_rows, dest_base,
    )  # fmt: skip
    numbers = join_longs(parts, N_NUMBERS)
    numbers[0], numbers[1] = areas.mirror, areas.size
    return rows.row, rows.node_at, rows.segments, ints, reals, dest_ptr, adds, numbers
