"""Place the values that cells pass to each other: each is written to the rows of its readers when it is made.

The core gives rows to nodes, and a destination to every edge and every output of the graph (`native/plan/`). A plain
port with several edges, made by the pass `fold`, reads their sum: the value that is made first is stored, the others
are added.
"""

from __future__ import annotations

from typing import Any

from autobatch._native import place_values
from autobatch.graph.graph import Graph
from autobatch.plan.plan import Plan, PlannedTypes
from autobatch.schedule.schedule import Schedule


def place(graph: Graph, schedule: Schedule, cells: PlannedTypes) -> Plan:
    """Place a scheduled graph: rows in schedule order, a destination for every edge and every output.

    Cost: O(N + E), and in inference O(K) per batch at worst.
    """
    tables, arrays = cells.tables, cells.arrays
    batches = schedule.batch_type, schedule.batch_ptr, schedule.order
    parts = place_values(
        graph.words, graph.floats, batches, arrays, tables, cells.slot_width, cells.saved_width, cells.training
    )
    found: Any = (graph, schedule, *parts, arrays, tables)
    return Plan(*found)
