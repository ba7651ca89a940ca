"""Turn mini-batches into plans: record or merge, rewrite, schedule and place; or find the plan in the cache."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from autobatch.devices.store import HOST, Store
from autobatch.graph.graph import Graph
from autobatch.graph.rewrite.passes import rewrite
from autobatch.ir.typetable import NodeType
from autobatch.plan.budget import Part, fit_parts
from autobatch.plan.plan import PlannedCell, PlannedTypes, Planner
from autobatch.plan.plan_cache import PlanCache, Planned
from autobatch.plan.plan_check import check_made, check_plan
from autobatch.plan.stopping import Stopping
from autobatch.runtime.backend import Backend, RunOptions
from autobatch.runtime.losses import loss_slot
from autobatch.runtime.step import Clock, Step
from autobatch.schedule.make import make_schedule
from autobatch.schedule.schedule import BasePolicy
from autobatch.system.trust import checking, is_trusted
from autobatch.trace.record import MiniBatch, Recorder

MOST_PURPOSES = 4  # inference, and sets of trainable parameters, as when layers are unfrozen one after the other
MOST_LAYOUTS = 16  # per type, over its traces and purposes


@dataclass(frozen=True, eq=False)
class Choices:
    """The settings that a plan depends on, beside its graphs and the planner.

    Attributes:
        purpose: the names of the trainable parameters in training; None in inference.
        backend, precision: the backend and the precision of the run; they determine the scratch memory.
        matmul: the library that multiplies matrices; None: the backend chooses.
        store: the memory of the device on which the parameters are.
        threads: how many threads the run asks for.
        has_aux: in training, whether the function returns more than the loss; None if all may have gradients.
    """

    policy: BasePolicy
    rewrites: tuple[str, ...]
    max_bytes: int | None
    dtype: np.dtype[Any]
    purpose: frozenset[str] | None
    backend: Backend
    precision: str
    threads: int = 1
    has_aux: bool | None = False
    matmul: str | None = None
    store: Store = HOST

    @property
    def n_threads(self) -> int:
        """The number of threads of the run; each takes scratch memory, which counts in `max_bytes`."""
        from autobatch.blas.threads import most_threads

        return min(self.threads, most_threads()) if self.threads > 1 else 1

    @property
    def options(self) -> RunOptions:
        """The options for the backend."""
        return RunOptions(self.dtype, self.precision, self.n_threads, self.max_bytes, self.matmul, self.store)


class Planning:
    """Plans the mini-batches of one function, and caches layouts and plans.

    Args:
        recorder: the function's recorder.
        planner: lays out the types and places the mini-batches.
        cache_size: how many plans to keep.
    """

    def __init__(self, recorder: Recorder, planner: Planner, cache_size: int) -> None:
        self.cache, self.planner = PlanCache(cache_size), planner
        self._recorder = recorder
        self._stopping = Stopping(recorder.types)
        self._cells: dict[frozenset[str] | None, tuple[Any, PlannedTypes]] = {}
        self._planned: dict[tuple[frozenset[str] | None, int], PlannedCell] = {}

    def prepare(self, minibatch: MiniBatch, choices: Choices, clock: Clock) -> Step:
        """Plan a mini-batch, in parts if the whole does not fit, or find its plan in the cache."""
        known = self._cells.get(choices.purpose)
        cells = self.cells(choices.purpose)  # covers all its types, even if other types are recorded later
        if known is None or cells is not known[1]:
            clock.lap("layout")
        key = self._key(minibatch, choices, cells)
        found = self.cache.find(key, choices.policy, self.planner, choices.backend) if key is not None else None
        if found is not None:
            graph = found.graph.of_instances(minibatch.instances)
            self._recorder.types.check(graph.type_id)
            clock.lap("lookup")
            return self._step(graph, found, choices, cells, clock, plan_hit=True)
        if key is not None:
            clock.lap("lookup")
        graph = self._recorder.to_graph(minibatch)
        if minibatch.graph is None:
            clock.lap("merge")
        if choices.purpose is not None and graph.n_instances and choices.has_aux is not None:
            graph, cells = self._stop(graph, choices, cells, clock)
        planned = self._plan(graph, choices, cells, clock)
        if key is not None:
            self.cache.keep(self._key(minibatch, choices, cells) or key, planned)
        return self._step(graph, planned, choices, cells, clock, plan_hit=None if key is None else False)

    def cells(self, purpose: frozenset[str] | None) -> PlannedTypes:
        """The layouts of all types met so far, from their current traces; cached per purpose."""
        types, shapes = self._recorder.types, self._recorder.slots.shapes
        state = types.state, len(shapes)
        known = self._cells.pop(purpose, None)
        if known is None or known[0] != state:
            cells = [self._cell(node_type, purpose) for node_type in types.types]
            self._forget(len(types))
            known = state, PlannedTypes(cells, list(shapes), purpose is not None)
        self._cells[purpose] = known
        if len(self._cells) > MOST_PURPOSES:
            del self._cells[next(iter(self._cells))]
        return known[1]

    def _cell(self, node_type: NodeType, purpose: frozenset[str] | None) -> PlannedCell:
        """The layout of one trace of a type."""
        key = purpose, node_type.trace
        known = self._planned.pop(key, None) or self.planner.plan_cell(node_type, training=purpose is not None)
        self._planned[key] = known
        return known

    def _forget(self, n_types: int) -> None:
        """Drop the least recently used layouts; they pile up if cells are traced again and again."""
        for key in list(self._planned)[: -MOST_LAYOUTS * n_types]:
            del self._planned[key]

    def _stop(self, graph: Graph, choices: Choices, cells: PlannedTypes, clock: Clock) -> tuple[Graph, PlannedTypes]:
        """Stop gradients at outputs that the loss does not depend on, where they may not be finite."""
        slots = self._recorder.slots
        slot = loss_slot(graph, slots, bool(choices.has_aux))
        stopped = self._stopping.stop(graph, cells.flows, len(slots.shapes), slot)
        if stopped is not graph:
            cells = self.cells(choices.purpose)
            clock.lap("layout")
        return stopped, cells

    def _key(self, minibatch: MiniBatch, choices: Choices, cells: PlannedTypes) -> Hashable | None:
        """The cache key of a mini-batch: all that its plan depends on; None if the cache is not used for it."""
        graphs, types, policy = minibatch.instances, self._recorder.types, choices.policy
        if not self.cache.size or not graphs or minibatch.graph is not None:
            return None
        if not all(graph.types is types for graph in graphs):
            return None
        return (
            tuple([graph.digest for graph in graphs]), cells.traces, len(cells.slot_shapes), policy.name,
            policy.revision, choices.purpose, choices.dtype, choices.rewrites, choices.max_bytes,
            choices.precision, choices.n_threads, choices.has_aux, choices.matmul, choices.store,
        )  # fmt: skip

    def _plan(self, graph: Graph, choices: Choices, cells: PlannedTypes, clock: Clock) -> Planned:
        """Rewrite, schedule and place, in parts if the whole does not fit."""
        options = choices.options

        def plan_part(graph: Graph) -> Part:
            rewritten, rewrites = rewrite(graph, choices.rewrites)
            clock.lap("rewrite")
            schedule = make_schedule(rewritten, choices.policy)
            clock.lap("schedule")
            plan = self.planner.place(rewritten, schedule, cells)
            if not is_trusted(self.planner):
                check_made(plan, rewritten, schedule, cells, self.planner)
            elif checking():
                check_plan(plan, cells)
            clock.lap("place")
            executable = choices.backend.prepare(plan, cells, options)
            return Part(graph, rewrites, plan, executable, choices.policy.unseen_share)

        def plan_again(graph: Graph) -> Part:
            clock.lap("merge")
            return plan_part(graph)

        whole = plan_part(graph)
        parts = fit_parts(whole, plan_again, choices.max_bytes)
        return Planned(graph, tuple(parts), whole.n_bytes)

    def _step(
        self, graph: Graph, planned: Planned, choices: Choices, cells: PlannedTypes, clock: Clock, plan_hit: bool | None
    ) -> Step:
        rate = self.cache.hit_rate
        return Step(graph, planned.whole_bytes, choices.max_bytes, planned.parts, cells, clock, plan_hit, rate)
