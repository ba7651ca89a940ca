"""From instances to plans: record or merge, rewrite, schedule and place; or find what was planned before."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from autobatch.graph.build import of_instances
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
from autobatch.schedule.make import make_schedule, repeat_schedule
from autobatch.schedule.schedule import Policy, Schedule, revision_of
from autobatch.system.trust import checking, is_trusted
from autobatch.trace.record import MiniBatch, Recorder

MOST_PURPOSES = 4  # inference, and sets of trainable parameters, as where layers are unfrozen one after the other
MOST_LAYOUTS = 16  # for each type, of its traces and for its purposes


@dataclass(frozen=True, eq=False)
class Choices:
    """What a plan depends on beside its graphs and the planner.

    Attributes:
        purpose: in training the names of the trainable parameters; None in inference.
        backend, precision: that it runs on and with, which say how much scratch memory it takes.
        matmul: the library that multiplies; None leaves it to the backend.
        threads: of matrix products, when it runs: as many are asked for.
        has_aux: in training, whether the function returns more than the loss.
    """

    policy: Policy
    rewrites: tuple[str, ...]
    max_bytes: int | None
    dtype: np.dtype[Any]
    purpose: frozenset[str] | None
    backend: Backend
    precision: str
    threads: int = 1
    has_aux: bool = False
    matmul: str | None = None

    @property
    def n_threads(self) -> int:
        """How many threads there will be; each takes scratch memory, which counts in `max_bytes`."""
        from autobatch.blas.threads import most_threads

        return min(self.threads, most_threads()) if self.threads > 1 else 1

    @property
    def options(self) -> RunOptions:
        """How the backend runs."""
        return RunOptions(self.dtype, self.precision, self.n_threads, self.max_bytes, self.matmul)


class Planning:
    """Plans the mini-batches of one function, and keeps what can be used again.

    Args:
        recorder: of the function.
        planner: lays out all types, and places all mini-batches.
        cache_size: how many plans to keep.
    """

    def __init__(self, recorder: Recorder, planner: Planner, cache_size: int) -> None:
        self.cache, self.planner = PlanCache(cache_size), planner
        self._recorder = recorder
        self._stopping = Stopping(recorder.types)
        self._cells: dict[frozenset[str] | None, tuple[Any, PlannedTypes]] = {}
        self._planned: dict[tuple[frozenset[str] | None, int], PlannedCell] = {}

    def prepare(self, minibatch: MiniBatch, choices: Choices, clock: Clock) -> Step:
        """Plan a mini-batch, in parts if the whole does not fit, or find its plan."""
        known = self._cells.get(choices.purpose)
        cells = self.cells(choices.purpose)  # of all its types, whatever is recorded from now on
        if known is None or cells is not known[1]:
            clock.lap("layout")
        key = self._key(minibatch, choices, cells)
        found = self.cache.find(key, choices.policy, self.planner, choices.backend) if key is not None else None
        if found is not None:
            graph = of_instances(minibatch.instances, found.graph.words, found.graph.floats, found.graph.types)
            self._recorder.types.check(graph.type_id)
            for scheduled in found.scheduled:
                repeat_schedule(choices.policy, *scheduled)
            clock.lap("lookup")
            return self._step(graph, found, choices, cells, clock, plan_hit=True)
        if key is not None:
            clock.lap("lookup")
        graph = self._recorder.to_graph(minibatch)
        if minibatch.graph is None:
            clock.lap("merge")
        if choices.purpose is not None and graph.n_instances:
            graph, cells = self._stop(graph, choices, cells, clock)
        planned = self._plan(graph, choices, cells, clock)
        if key is not None:
            self.cache.keep(self._key(minibatch, choices, cells) or key, planned)
        return self._step(graph, planned, choices, cells, clock, plan_hit=None if key is None else False)

    def cells(self, purpose: frozenset[str] | None) -> PlannedTypes:
        """Layouts of all types met so far, as they are traced now; kept for each purpose."""
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
        """Let go of the layouts that were used longest ago, where cells are traced again and again."""
        for key in list(self._planned)[: -MOST_LAYOUTS * n_types]:
            del self._planned[key]

    def _stop(self, graph: Graph, choices: Choices, cells: PlannedTypes, clock: Clock) -> tuple[Graph, PlannedTypes]:
        """Let no gradient through outputs that the loss does not depend on, where it may not be finite."""
        slots = self._recorder.slots
        slot = loss_slot(graph, slots, choices.has_aux)
        stopped = self._stopping.stop(graph, cells.flows, len(slots.shapes), slot)
        if stopped is not graph:
            cells = self.cells(choices.purpose)
            clock.lap("layout")
        return stopped, cells

    def _key(self, minibatch: MiniBatch, choices: Choices, cells: PlannedTypes) -> Hashable | None:
        """What the plan of a mini-batch depends on; None if it is not looked for."""
        graphs, types, policy = minibatch.instances, self._recorder.types, choices.policy
        if not self.cache.size or not graphs or minibatch.graph is not None:
            return None
        if not all(graph.types is types for graph in graphs):
            return None
        return (
            tuple([graph.digest for graph in graphs]), cells.traces, len(cells.slot_shapes), policy.name,
            revision_of(policy), choices.purpose, choices.dtype, choices.rewrites, choices.max_bytes,
            choices.precision, choices.n_threads, choices.has_aux, choices.matmul,
        )  # fmt: skip

    def _plan(self, graph: Graph, choices: Choices, cells: PlannedTypes, clock: Clock) -> Planned:
        """Rewrite, schedule and place, in parts if the whole does not fit."""
        scheduled: list[tuple[Graph, Schedule]] = []
        options = choices.options

        def plan_part(graph: Graph) -> Part:
            rewritten, rewrites = rewrite(graph, choices.rewrites)
            clock.lap("rewrite")
            schedule = make_schedule(rewritten, choices.policy)
            scheduled.append((rewritten, schedule))
            clock.lap("schedule")
            plan = self.planner.place(rewritten, schedule, cells)
            if not is_trusted(self.planner):
                check_made(plan, rewritten, schedule, cells, self.planner)
            elif checking():
                check_plan(plan, cells)
            clock.lap("place")
            unseen_share = getattr(choices.policy, "unseen_share", None)
            executable = choices.backend.prepare(plan, cells, options)
            return Part(graph, rewrites, plan, executable, unseen_share)

        def plan_again(graph: Graph) -> Part:
            clock.lap("merge")
            return plan_part(graph)

        whole = plan_part(graph)
        parts = fit_parts(whole, plan_again, choices.max_bytes)
        return Planned(graph, tuple(parts), whole.n_bytes, tuple(scheduled))

    def _step(
        self, graph: Graph, planned: Planned, choices: Choices, cells: PlannedTypes, clock: Clock, plan_hit: bool | None
    ) -> Step:
        rate = self.cache.hit_rate
        return Step(graph, planned.whole_bytes, choices.max_bytes, planned.parts, cells, clock, plan_hit, rate)
