"""Place the values that cells pass to each other: each is written to the rows of its readers when it is made.

The core gives rows to nodes, and a destination to every edge and every output of the graph (`native/plan/`). A plain
port with several edges, made by the pass `fold`, reads their sum: the value that is made first is stored, the others
are added.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from autobatch._native import place_values
from autobatch._native import plan_graphs as plan_in_core
from autobatch.graph.build import merge_graphs, merged_graph
from autobatch.graph.graph import Graph, Types
from autobatch.graph.graph_check import check_order
from autobatch.graph.rewrite.passes import Rewrites, bits_of, rewritten
from autobatch.plan.plan import CellSizes, Plan, PlannedTypes
from autobatch.schedule.schedule import CoreRule, Schedule


def place(graph: Graph, schedule: Schedule, cells: PlannedTypes) -> Plan:
    """Place a scheduled graph: rows in schedule order, a destination for every edge and every output.

    Cost: O(N + E), and in inference O(K) per batch at worst.
    """
    batches = schedule.batch_type, schedule.batch_ptr, schedule.order
    parts = place_values(graph.words, graph.floats, batches, cells.arrays, cells.layout)
    return _plan_of(graph, schedule, parts, cells)


class PlannedGraph(NamedTuple):
    """The plan of graphs, and what it was made of.

    Attributes:
        graph: merged, before it was rewritten.
        rewrites: the changes made to it before it was scheduled.
        tables: the parts of a `PlanTables`; None if no sizes were given, if a type of the plan has none yet, or if
            Python took part.
        seconds: that merging, rewriting, scheduling, and placing with the tables took, if one call did it all.
    """

    graph: Graph
    plan: Plan
    rewrites: Rewrites
    tables: tuple[Any, ...] | None = None
    seconds: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)


def plan_graphs(
    graphs: list[Graph],
    types: Types,
    passes: Collection[str],
    rule: CoreRule,
    cells: PlannedTypes,
    sizes: CellSizes | None = None,
    n_threads: int = 1,
    slot: int = -1,
) -> PlannedGraph:
    """Merge, rewrite, schedule and place graphs and make their tables in one call; other threads run Python meanwhile.

    Args:
        graphs: as recorded or merged.
        types: the table of their types.
        passes: see `autobatch.graph.rewrite.passes.rewrite`.
        rule: of the policy.
        cells: all types of the graphs, planned.
        sizes: of the compiled cells, for tables; None for none.
        n_threads: that tiles are for.
        slot: that of the loss; -1 for none.

    Raises:
        GraphError, DataError: as for `merge_graphs`; also GraphError if an edge points backwards.
    """
    try:
        merged, words, floats, changes, batches, parts, tables, is_whole, seconds = plan_in_core(
            graphs, cells.arrays, bits_of(passes), rule, cells.layout, sizes, n_threads,
            None if slot < 0 else cells.flows, slot,
        )  # fmt: skip
    except (ValueError, OverflowError):
        check_order(merge_graphs(graphs, types))
        raise
    graph = merged_graph(graphs, merged, types)
    result, done = rewritten(graph, words, floats, changes)
    plan = _plan_of(result, Schedule(*batches), parts, cells)
    if is_whole:
        plan.whole_slot = slot
    return PlannedGraph(graph, plan, done, tables, seconds)


def _plan_of(graph: Graph, schedule: Schedule, parts: tuple[Any, ...], cells: PlannedTypes) -> Plan:
    found: Any = (graph, schedule, *parts, cells.arrays, cells.tables)
    return Plan(*found)
