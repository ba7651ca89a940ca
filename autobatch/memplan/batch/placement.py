"""Place the values that cells pass to each other: each is written to the rows of its readers when it is made.

The core gives rows to nodes, and a destination to every edge and every output of the graph (`native/plan/`). A plain
port with several edges, made by the pass `fold`, reads their sum: the value that is made first is stored, the others
are added.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from autobatch._native import place_values
from autobatch._native import plan_graph as plan_in_core
from autobatch.graph.graph import Graph
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
    """A plan that the core made by itself.

    Attributes:
        rewrites: the changes made to the graph before it was scheduled.
        tables: the parts of a `PlanTables`; None if no sizes were given, or if a type of the plan has none yet.
        seconds: that rewriting, scheduling, and placing with the tables took.
    """

    plan: Plan
    rewrites: Rewrites
    tables: tuple[Any, ...] | None
    seconds: tuple[float, float, float]


def plan_graph(
    graph: Graph,
    passes: Collection[str],
    rule: CoreRule,
    cells: PlannedTypes,
    sizes: CellSizes | None = None,
    n_threads: int = 1,
    slot: int = -1,
) -> PlannedGraph:
    """Rewrite, schedule and place a graph and make its tables in one call, during which other threads run Python.

    Args:
        graph: as recorded or merged.
        passes: see `autobatch.graph.rewrite.passes.rewrite`.
        rule: of the policy.
        cells: all types of the graph, planned.
        sizes: of the compiled cells, for tables; None for none.
        n_threads: that tiles are for.
        slot: that of the loss; -1 for none.

    Raises:
        GraphError: an edge points backwards.
    """
    try:
        words, floats, changes, batches, parts, tables, is_whole, seconds = plan_in_core(
            graph.words, graph.floats, cells.arrays, bits_of(passes), rule, cells.layout, sizes, n_threads,
            None if slot < 0 else cells.flows, slot,
        )  # fmt: skip
    except ValueError:  # as in `naming_cycles`, but without its generator, for which every call would pay
        check_order(graph)
        raise
    result, done = rewritten(graph, words, floats, changes)
    plan = _plan_of(result, Schedule(*batches), parts, cells)
    if is_whole:
        plan.whole_slot = slot
    return PlannedGraph(plan, done, tables, seconds)


def _plan_of(graph: Graph, schedule: Schedule, parts: tuple[Any, ...], cells: PlannedTypes) -> Plan:
    found: Any = (graph, schedule, *parts, cells.arrays, cells.tables)
    return Plan(*found)
