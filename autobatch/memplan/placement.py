"""Place the values that cells pass to each other: each is written to the rows of its readers when it is computed.

The core assigns rows to nodes, and destinations to edges and to the outputs of the graph (`native/plan/`). A plain port
with several edges, made by the pass `fold`, reads their sum: the first value computed is stored, the others are added.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from autobatch._native import PlanJob as CoreJob
from autobatch._native import place_values
from autobatch._native import plan_graphs as plan_in_core
from autobatch._native import plan_round as plan_round_in_core
from autobatch.arrays import IntArray
from autobatch.graph.build import merge_graphs, merged_graph
from autobatch.graph.graph import Graph, Types
from autobatch.graph.graph_check import check_order
from autobatch.graph.growing import Chosen, GrowingGraph, KeptRows, Moved, Request
from autobatch.graph.rewrite import Rewrites, bits_of, rewritten
from autobatch.plan.plan import CellSizes, Plan, PlannedTypes
from autobatch.schedule.schedule import CoreRule, Schedule


def place(graph: Graph, schedule: Schedule, cells: PlannedTypes) -> Plan:
    """Place a scheduled graph: rows in schedule order, a destination for every edge and every output.

    Cost: O(N + E) for N nodes and E edges; in inference also O(K) for each of the K batches at worst.
    """
    batches = schedule.batch_type, schedule.batch_ptr, schedule.order
    parts = place_values(graph.words, graph.floats, batches, cells.arrays, cells.layout)
    return _plan_of(graph, schedule, parts, cells)


class PlannedGraph(NamedTuple):
    """The plan of graphs, and its origin.

    Attributes:
        graph: merged, before it was rewritten.
        rewrites: the changes made to it before it was scheduled.
        tables: the parts of a `PlanTables`; None if no sizes were given, if a type of the plan has none yet, or if
            Python took part.
        seconds: the times of merging, rewriting, scheduling, and placing with the tables, if the core did it all.
    """

    graph: Graph
    plan: Plan
    rewrites: Rewrites
    tables: tuple[Any, ...] | None = None
    seconds: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)


class PlannedRound(NamedTuple):
    """The nodes of a round, and their plan.

    Attributes:
        chosen: its nodes, sources and kept values.
        moved: the new rows of values of the last run; None if the round has no nodes.
        planned: None if the round has no nodes, or if a source has no type yet; then the graph was not emitted.
    """

    chosen: Chosen
    moved: Moved | None
    planned: PlannedGraph | None


class CoreOptions(NamedTuple):
    """The options of planning calls of the core.

    Attributes:
        passes: see `autobatch.graph.rewrite.rewrite`.
        rule: the rule of the policy.
        cells: all types of the graphs, planned.
        sizes: the sizes of the compiled cells, for tables; None for none.
        n_threads: the number of threads that tiles are made for.
    """

    passes: Collection[str]
    rule: CoreRule
    cells: PlannedTypes
    sizes: CellSizes | None = None
    n_threads: int = 1

    @property
    def arguments(self) -> tuple[Any, int, CoreRule, Any, CellSizes | None, int]:
        cells = self.cells
        return cells.arrays, bits_of(self.passes), self.rule, cells.layout, self.sizes, self.n_threads


def plan_graphs(graphs: list[Graph], types: Types, options: CoreOptions, slot: int = -1) -> PlannedGraph:
    """Merge, rewrite, schedule and place graphs and make their tables in one call; other threads run Python meanwhile.

    Args:
        graphs: as recorded or merged.
        types: the table of their types.
        options: the options of the core.
        slot: the slot of the loss; -1 for none.

    Raises:
        GraphError, DataError: as for `merge_graphs`; also GraphError if an edge points backwards.
    """
    flows = None if slot < 0 else options.cells.flows
    try:
        made = plan_in_core(graphs, *options.arguments, flows, slot)
    except (ValueError, OverflowError):
        # The core's error does not say where. The check raises an error that names the edge or number at fault; if it
        # passes, the core's error is raised.
        check_order(merge_graphs(graphs, types))
        raise
    return _whole(made, graphs, types, options.cells, slot)


class PlanJob:
    """The planning of graphs ahead of their run, by another thread; takes the arguments of `plan_graphs`.

    Raises:
        ValueError, OverflowError: the core refuses the graphs; `plan_graphs` raises the error for users.
    """

    def __init__(self, graphs: list[Graph], types: Types, options: CoreOptions, slot: int = -1) -> None:
        self._job = CoreJob(graphs, *options.arguments, None if slot < 0 else options.cells.flows, slot)
        self._given = graphs, types, options.cells, slot

    def run(self) -> None:
        """Plan, unless another thread does so or has done so; other threads run Python meanwhile."""
        self._job.run()

    def result(self) -> PlannedGraph:
        """Return what `plan_graphs` returns, after planning or waiting for the thread that plans; call it once.

        Raises:
            GraphError, DataError: as for `plan_graphs`.
        """
        try:
            made = self._job.result()
        except (ValueError, OverflowError):
            check_order(merge_graphs(*self._given[:2]))
            raise
        return _whole(made, *self._given)


def plan_round(
    graph: GrowingGraph, request: Request, rows: KeptRows, last: IntArray, types: Types, options: CoreOptions
) -> PlannedRound:
    """Plan a round in one call: choose its nodes, assign rows to kept values, emit its graph, and plan that.

    Args:
        graph: the growing graph.
        request: the values that the round must compute.
        rows: the rows of its kept values.
        last: the values that the last run keeps, which get rows.
        types: the table of the types of its nodes.
        options: the options of the core.
    """
    asked = graph.ask(request, options.cells.arrays.out_ptr)
    tables = rows.tables(request.slots.source.size, last.size)
    found, moved, emitted, planned = plan_round_in_core(
        (*asked, last, *tables, request.slots.source, request.results), *options.arguments
    )
    chosen, moves = graph.note(found), None if moved is None else Moved(*moved)
    if emitted is None or planned is None:
        return PlannedRound(chosen, moves, None)
    return PlannedRound(chosen, moves, _planned(graph.emitted(*emitted, types, request), planned, options.cells))


def _whole(made: tuple[Any, ...], graphs: list[Graph], types: Types, cells: PlannedTypes, slot: int) -> PlannedGraph:
    merged, planned, is_whole, merging = made
    found = _planned(merged_graph(graphs, merged, types), planned, cells, merging)
    if is_whole:
        found.plan.whole_slot = slot
    return found


def _planned(graph: Graph, parts: tuple[Any, ...], cells: PlannedTypes, merging: float = 0.0) -> PlannedGraph:
    words, floats, changes, batches, placed, tables, seconds = parts
    result, rewrites = rewritten(graph, words, floats, changes)
    plan = _plan_of(result, Schedule(*batches), placed, cells)
    return PlannedGraph(graph, plan, rewrites, tables, (merging, *seconds))


def _plan_of(graph: Graph, schedule: Schedule, parts: tuple[Any, ...], cells: PlannedTypes) -> Plan:
    found: Any = (graph, schedule, *parts, cells.arrays, cells.tables)
    return Plan(*found)
