"""Plan mini-batches: record or merge, rewrite, schedule and place; or find the plan in the cache."""

from __future__ import annotations

import math
from collections.abc import Hashable
from functools import cache
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any

from autobatch.backends.base import Backend
from autobatch.backends.options import Options
from autobatch.engine.counts import Clock, Step
from autobatch.engine.results import loss_slot
from autobatch.graph.build import merge_graphs
from autobatch.graph.graph import Graph, digests_of
from autobatch.graph.queued import QueuedBatch
from autobatch.graph.rewrite import rewrite
from autobatch.ir.typetable import NodeType
from autobatch.plan.budget import Figures, Part, fit_parts
from autobatch.plan.plan import Plan, PlannedCell, PlannedTypes, Planner
from autobatch.plan.plan_cache import PlanCache, Planned
from autobatch.plan.plan_check import check_made, check_plan
from autobatch.plan.stopping import Stopping
from autobatch.schedule.make import make_schedule
from autobatch.system.processor import usable_cores
from autobatch.system.unchecked import checking, is_unchecked
from autobatch.trace.record import MiniBatch, Recorder

if TYPE_CHECKING:
    from autobatch.engine.ahead import PlanAhead
    from autobatch.engine.kept_values import KeptValues
    from autobatch.graph.growing import Chosen, Request
    from autobatch.memplan.placement import CoreOptions, PlannedGraph
    from autobatch.trace.phases import Phases

TYPES = attrgetter("types")
MOST_PURPOSES = 4  # cached at once: inference, and sets of trainable parameters, such as when layers are unfrozen
MOST_LAYOUTS = 16  # cached per type, over all its traces and purposes


class Planning:
    """The planning of the mini-batches of one function, with caches of layouts and plans.

    Args:
        recorder: the recorder of the function.
        planner: lays out the types and places the mini-batches.
        backend: prepares plans to run.
        cache_size: the number of plans to keep.
    """

    def __init__(self, recorder: Recorder, planner: Planner, backend: Backend, cache_size: int) -> None:
        self.cache, self.planner, self.backend = PlanCache(cache_size), planner, backend
        self._recorder = recorder
        self._stopping = Stopping(recorder.types)
        self._cells: dict[frozenset[str] | None, tuple[Any, PlannedTypes]] = {}
        self._planned: dict[tuple[frozenset[str] | None, int], PlannedCell] = {}

    def prepare(self, minibatch: MiniBatch, options: Options, clock: Clock) -> Step:
        """Plan a mini-batch, in parts if the whole does not fit, or find its plan in the cache.

        Raises:
            GraphError: in training, the function did not return one scalar loss for each instance.
            DataError: in training, there are no instances.
            PlanError: a single instance needs more than `max_bytes`.
        """
        cells = self.cells(options.purpose, clock)  # covers all its types, even if other types are recorded later
        key = self._key(minibatch, options, cells)
        found = self.cache.find(key, options.policy) if key is not None else None
        if found is not None:
            graph = found.graph.of_instances(minibatch.instances)
            if self._recorder.n_states:
                self._recorder.check_states(minibatch.instances)
            if self._recorder.types.outdated:
                self._recorder.types.check(graph.type_id)
            clock.mark("lookup")
            has_loss = options.purpose is not None and options.has_aux is not None
            slot = loss_slot(graph.structures, options.has_aux is True) if has_loss else -1
            parts, n_bytes, rate = found.parts, found.whole_bytes, self.cache.hit_rate
            return Step(graph, n_bytes, options.max_bytes, parts, cells, clock, True, rate, slot)
        if key is not None:
            clock.mark("lookup")
        graphs = self._recorder.graphs_of(minibatch)
        slot = _loss_slot(graphs, options)
        if slot >= 0 and cells.singular:
            graphs, cells = self._stop(graphs, slot, options, cells, clock)
        made = None
        if type(minibatch.instances) is QueuedBatch:
            made = self._take(minibatch.instances, options, cells, slot)
            clock.mark("lookup")
        if made is None:
            made = self._place(graphs, options, cells, clock, slot)
        planned = self._fit(made, options, cells, clock, slot)
        if key is not None:
            # A policy in Python may have learned, and then has a new revision; stopped gradients add types. Neither has
            # happened if the core has made tables for the given graphs.
            is_key = made.tables is not None and graphs is minibatch.instances
            self.cache.keep(key if is_key else self._key(minibatch, options, cells) or key, planned)
        return self._step(planned.graph, planned, options, cells, clock, slot, plan_hit=None if key is None else False)

    def prepare_round(
        self, phases: Phases, kept: KeptValues, request: Request, options: Options, clock: Clock
    ) -> tuple[Chosen, Step | None]:
        """Choose and plan the nodes of the next round of a growing graph; the step is None if there are no nodes.

        One call of the core does both, unless a Python policy or planner takes part, checks are on, or the round reads
        a kept value of a shape that no earlier round has read.

        Raises:
            PlanError: as for `prepare`.
        """
        self._recorder.check_parameters()
        graph, types, cells = phases.graph, self._recorder.types, self.cells(options.purpose, clock)
        core = self._core_options(options, cells)
        if core is None:
            chosen = graph.choose(request, types)
            if not chosen.nodes.size and request.results is None:
                return chosen, None
            # Between the choice, which marks the values that the round reads, and the run, which reads them in tables.
            kept.settle()
        else:
            chosen, moved, planned = _placement().plan_round(graph, request, kept.rows, kept.last_values, types, core)
            if moved is None:
                return chosen, None
            kept.copy(moved)
            if planned is not None:
                _mark(clock, planned)
                found = self._fit(planned, options, cells, clock, -1)
                return chosen, self._step(planned.graph, found, options, cells, clock, -1, plan_hit=None)
        with self._recorder.turn.lock:  # adds types, as a recording does
            phases.make_source_types(chosen.sources)
        emitted = graph.emit(chosen, request._replace(slots=phases.output_slots), types)
        return chosen, self.prepare(MiniBatch([], emitted), options, clock)

    def cells(self, purpose: frozenset[str] | None, clock: Clock | None = None) -> PlannedTypes:
        """Return the layouts of all types met so far, from their current traces; cached per purpose.

        Args:
            clock: counts the time of new layouts as "layout".
        """
        types, shapes = self._recorder.types, self._recorder.slots.shapes
        state = types.state, len(shapes)
        known = self._cells.pop(purpose, None)  # put back below, as the most recently used
        if known is None or known[0] != state:
            self._drop(state)
            # Usually types are only added. Layouts of earlier types, and results derived from them, stay valid.
            n_known = 0 if known is None else _n_same(known[0], state)
            cells = [self._cell(node_type, purpose) for node_type in types.types[n_known : len(state[0])]]
            self._forget(len(types))
            planned = PlannedTypes(cells, list(shapes), purpose is not None)
            known = state, planned if known is None or not n_known else known[1].followed(planned)
            if clock is not None:
                clock.mark("layout")
        self._cells[purpose] = known
        if len(self._cells) > MOST_PURPOSES:
            del self._cells[next(iter(self._cells))]
        return known[1]

    def _cell(self, node_type: NodeType, purpose: frozenset[str] | None) -> PlannedCell:
        """Return the layout of one trace of a type, moved to the end of the cache, which drops its first entries."""
        key = purpose, node_type.trace
        known = self._planned.pop(key, None) or self.planner.plan_cell(node_type, training=purpose is not None)
        self._planned[key] = known
        return known

    def _drop(self, state: Any) -> None:
        """Drop the layouts of outdated and forgotten traces."""
        self._cells = {purpose: known for purpose, known in self._cells.items() if _n_same(known[0], state)}
        if forgotten := self._recorder.types.forgotten:
            self._planned = {key: cell for key, cell in self._planned.items() if key[1] not in forgotten}
            forgotten.clear()
            self.cache.clear()  # its plans would keep replaced parameters and modules alive

    def _forget(self, n_types: int) -> None:
        """Drop the least recently used layouts, which accumulate if cells are traced repeatedly."""
        for key in list(self._planned)[: -MOST_LAYOUTS * n_types]:
            del self._planned[key]

    def _stop(
        self, graphs: list[Graph], slot: int, options: Options, cells: PlannedTypes, clock: Clock
    ) -> tuple[list[Graph], PlannedTypes]:
        """Merge, and stop gradients that may not be finite at outputs that the loss does not depend on."""
        graph = merge_graphs(graphs, self._recorder.types)
        if len(graphs) > 1:
            clock.mark("merge")
        stopped = self._stopping.stop(graph, cells.singular, cells.flows, len(self._recorder.slots.shapes), slot)
        if stopped is not graph:
            cells = self.cells(options.purpose)
            clock.mark("layout")
        return [stopped], cells

    def _key(self, minibatch: MiniBatch, options: Options, cells: PlannedTypes) -> Hashable | None:
        """Return the cache key of a mini-batch, all facts that its plan depends on; None if it is not cached."""
        graphs, types, policy = minibatch.instances, self._recorder.types, options.policy
        if not self.cache.size or not graphs or minibatch.graph is not None:
            return None
        if {*map(TYPES, graphs)} != {types}:
            return None  # digests hold type numbers, which differ between tables
        # Left out: the policy, which `PlanCache.find` compares; the planner and the backend, because assigning another
        # one replaces the cache; and options on which no plan depends, such as the seed.
        return (
            digests_of(graphs), cells.traces, len(cells.slot_shapes), policy.revision,
            options.purpose, options.dtype, options.rewrites, options.max_bytes,
            options.precision, options.threads, options.has_aux, options.store, options.by_instance,
        )  # fmt: skip

    def plan_following(self, batch: QueuedBatch, options: Options, step: Step) -> None:
        """Begin to plan the mini-batches that follow one, with the same options, in another thread.

        Nothing is planned if the thread would take a core from the run, if Python takes part in planning, or if the
        mini-batch runs in parts, which are planned one by one. Errors are left to the calls that run the mini-batches.

        Args:
            batch: the mini-batch of the step.
            step: runs next; with `max_bytes`, plans may wait only if they and the memory of this run stay below it, by
                an estimate from the bytes of its own plan.
        """
        if not batch.following or usable_cores() <= options.threads or len(step.parts) != 1:
            return
        cells, slot = self.cells(options.purpose), step.loss_slot
        core = self._core_options(options, cells)
        if core is None or self._recorder.types.outdated or (slot >= 0 and cells.singular):
            return
        (part,) = step.parts
        left = math.inf if options.max_bytes is None else options.max_bytes - part.n_bytes
        per_word = 0.0 if options.max_bytes is None else part.plan.host_bytes / step.graph.words.size
        for following in batch.following:
            if {*map(type, following)} != {Graph}:
                return
            left -= per_word * sum([graph.words.size for graph in following]) if per_word else 0
            if left < 0:
                return
            self._plan_ahead(following, options, cells, core, slot)

    def _plan_ahead(
        self, batch: QueuedBatch, options: Options, cells: PlannedTypes, core: CoreOptions, slot: int
    ) -> None:
        """Begin to plan a mini-batch, unless that was done, its plan is cached, or it cannot be planned ahead."""
        from autobatch.engine.ahead import PlanAhead

        try:
            graphs = self._recorder.arrived(batch)
            place = self, options.purpose
            known: PlanAhead | None = batch.plans.get(place)
            if known is not None and known.is_for(graphs, options, cells, slot):
                return
            types = self._recorder.types
            if {*map(TYPES, graphs)} != {types}:
                return
            if self.cache.size and self._key(MiniBatch(graphs, None), options, cells) in self.cache:
                return
            job = _placement().PlanJob([*graphs], types, core, slot)
        except Exception:  # of its instances, or of cells that are traced again: the run raises it
            return
        batch.plans[place] = PlanAhead.begin([*graphs], options, cells, slot, job)

    def _take(self, batch: QueuedBatch, options: Options, cells: PlannedTypes, slot: int) -> PlannedGraph | None:
        """Wait for the plan that was begun ahead, and return it; return None unless it was begun for these options."""
        # A job gives its plan only once; later runs of the mini-batch find it in the cache, or plan again.
        known: PlanAhead | None = batch.plans.pop((self, options.purpose), None)
        if known is None or not known.is_for(batch, options, cells, slot):
            return None
        return known.job.result()

    def _fit(self, planned: PlannedGraph, options: Options, cells: PlannedTypes, clock: Clock, slot: int) -> Planned:
        """Prepare a plan to run; if the whole exceeds `max_bytes`, plan and prepare parts of it instead."""

        def to_part(planned: PlannedGraph) -> Part:
            graph, plan, rewrites, tables, _ = planned
            executable = self.backend.prepare(plan, cells, options, tables)
            n_bytes = executable.n_bytes
            if options.by_instance is not None:
                n_bytes += bytes_of_instances(plan, cells, options)
            figures = Figures(plan.graph, plan.schedule.n_batches, n_bytes, options.policy.unseen_share)
            return Part(graph, rewrites, plan, executable, figures)

        whole = to_part(planned)
        parts = fit_parts(
            whole, lambda graphs: to_part(self._place(graphs, options, cells, clock, slot)), options.max_bytes
        )
        return Planned(whole.graph, tuple(parts), whole.n_bytes)

    def _core_options(self, options: Options, cells: PlannedTypes) -> CoreOptions | None:
        """Return the options of the core's planning calls; None if Python takes part or checks are on."""
        rule = options.policy.core_rule
        if rule is None or not is_unchecked(options.policy) or not is_unchecked(self.planner) or checking():
            return None
        sizes, n_threads = self.backend.table_sizes(cells, options) or (None, 1)
        core: CoreOptions = _placement().CoreOptions(options.rewrites, rule, cells, sizes, n_threads)
        return core

    def _place(
        self, graphs: list[Graph], options: Options, cells: PlannedTypes, clock: Clock, slot: int
    ) -> PlannedGraph:
        """Merge, rewrite, schedule and place; in one call of the core unless Python takes part or checks are on.

        Returns:
            The plan, with tables for the backend if the core has made them.
        """
        types, core = self._recorder.types, self._core_options(options, cells)
        if core is not None:
            planned: PlannedGraph = _placement().plan_graphs(graphs, types, core, slot)
            _mark(clock, planned, merges=len(graphs) > 1)
            return planned
        graph = merge_graphs(graphs, types)
        if len(graphs) > 1:
            clock.mark("merge")
        rewritten, rewrites = rewrite(graph, options.rewrites)
        clock.mark("rewrite")
        schedule = make_schedule(rewritten, options.policy)
        clock.mark("schedule")
        plan = self.planner.place(rewritten, schedule, cells)
        if not is_unchecked(self.planner):
            check_made(plan, rewritten, schedule, cells, self.planner)
        elif checking():
            check_plan(plan, cells)
        clock.mark("place")
        found: PlannedGraph = _placement().PlannedGraph(graph, plan, rewrites)
        return found

    def _step(
        self, graph: Graph, planned: Planned, options: Options, cells: PlannedTypes, clock: Clock, slot: int,
        plan_hit: bool | None,
    ) -> Step:  # fmt: skip
        rate, parts = self.cache.hit_rate, planned.parts
        return Step(graph, planned.whole_bytes, options.max_bytes, parts, cells, clock, plan_hit, rate, slot)


@cache
def _placement() -> ModuleType:
    """Return the module that places values, which is loaded with the first plan only."""
    from autobatch.memplan import placement

    return placement


def _mark(clock: Clock, planned: PlannedGraph, merges: bool = False) -> None:
    """Add the times of the stages that the core has run to the clock."""
    merging, rewriting, scheduling, _ = planned.seconds
    if merges:
        clock.mark("merge", merging)
    clock.mark("rewrite", rewriting)
    clock.mark("schedule", scheduling)
    clock.mark("place")


def _loss_slot(graphs: list[Graph], options: Options) -> int:
    """Return the slot of the losses; -1 in inference, and for PyTorch, whose functions return any tensors."""
    if options.purpose is None or options.has_aux is None:
        return -1
    one = len(graphs) == 1
    structures = graphs[0].structures if one else [structure for graph in graphs for structure in graph.structures]
    return loss_slot(structures, options.has_aux)


def bytes_of_instances(plan: Plan, cells: PlannedTypes, options: Options) -> int:
    """Return the bytes that per-instance gradients or norms take.

    Raises:
        GraphError: instances share nodes.
    """
    from autobatch.backends.by_instance import bytes_by_instance
    from autobatch.engine.each_instance import refuse_shared

    assert options.by_instance is not None
    refuse_shared(plan.graph)
    return bytes_by_instance(plan, cells, options.by_instance, options.dtype)


def _n_same(before: tuple[Any, int], now: tuple[Any, int]) -> int:
    """Return the number of types in `before` if they are a prefix of those in `now`, with equal traces; else 0."""
    return len(before[0]) if before[0] == now[0][: len(before[0])] else 0
