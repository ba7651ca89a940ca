"""From instances to plans: record or merge, rewrite, schedule and place; or find what was planned before."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from autobatch.budget import Part, fit_parts
from autobatch.executor import Backend
from autobatch.graph import Graph, checking, of_instances
from autobatch.plan import PlannedTypes, Planner
from autobatch.plan_cache import PlanCache, Planned
from autobatch.plan_check import check_plan
from autobatch.record import Recorder, list_instances
from autobatch.report import Clock, Step
from autobatch.rewrite import rewrite
from autobatch.schedule import Policy, Schedule, make_schedule, repeat_schedule, revision_of


@dataclass(frozen=True, eq=False)
class Choices:
    """What a plan depends on beside its graphs.

    Attributes:
        purpose: in training the names of the trainable parameters; None in inference.
        backend, precision: that it runs on and with, which say how much scratch memory it takes.
        threads: of matrix products, when it runs; the plan is the same for any number.
    """

    policy: Policy
    planner: Planner
    rewrites: tuple[str, ...]
    max_bytes: int | None
    dtype: np.dtype[Any]
    purpose: frozenset[str] | None
    backend: Backend
    precision: str
    threads: int = 1


class Planning:
    """Plans the mini-batches of one function, and keeps what can be used again.

    Args:
        recorder: of the function.
        cache_size: how many plans to keep.
    """

    def __init__(self, recorder: Recorder, cache_size: int) -> None:
        self.cache = PlanCache(cache_size)
        self._recorder = recorder
        self._cells: dict[frozenset[str] | None, PlannedTypes] = {}

    def prepare(self, instances: Iterable[Any], choices: Choices, clock: Clock) -> Step:
        """Plan a mini-batch, in parts if the whole does not fit, or find its plan."""
        listed = list_instances(instances)
        key = self._key(listed, choices)
        found = self.cache.find(key, choices.policy, choices.planner) if key is not None else None
        if found is not None:
            graph = of_instances(listed, found.graph.words, found.graph.floats, found.graph.types)
            for scheduled in found.scheduled:
                repeat_schedule(choices.policy, *scheduled)
            cells = self.cells(choices.planner, choices.purpose)
            clock.lap("lookup")
            return self._step(graph, found, choices, cells, clock, plan_hit=True)
        if key is not None:
            clock.lap("lookup")
        graph = self._recorder.to_graph(listed)
        clock.lap("merge" if listed and isinstance(listed[0], Graph) else "record")
        cells = self.cells(choices.planner, choices.purpose)
        clock.lap("layout")
        planned = self._plan(graph, choices, cells, clock)
        if key is not None:
            self.cache.keep(key, planned)
        return self._step(graph, planned, choices, cells, clock, plan_hit=None if key is None else False)

    def cells(self, planner: Planner, purpose: frozenset[str] | None) -> PlannedTypes:
        """Layouts of all types met so far; those of known types are kept, for each purpose."""
        types, shapes = self._recorder.types, self._recorder.slots.shapes
        known = self._cells.get(purpose)
        if known is None or len(known.cells) < len(types) or len(known.slot_shapes) < len(shapes):
            cells, training = list(known.cells) if known is not None else [], purpose is not None
            for node_type in types.types[len(cells) :]:
                cells.append(planner.plan_cell(node_type, training))
            known = self._cells[purpose] = PlannedTypes(cells, list(shapes), training)
        return known

    def _key(self, listed: list[Any], choices: Choices) -> Hashable | None:
        """What the plan of a mini-batch depends on; None if it is not looked for."""
        types = self._recorder.types
        if not self.cache.size or not listed:
            return None
        if not all(isinstance(graph, Graph) and graph.types is types for graph in listed):
            return None
        policy = choices.policy
        return (
            tuple([graph.digest for graph in listed]), len(types), len(self._recorder.slots.shapes), policy.name,
            revision_of(policy), choices.purpose, choices.dtype, choices.rewrites, choices.max_bytes,
            choices.backend.name, choices.precision,
        )  # fmt: skip

    def _plan(self, graph: Graph, choices: Choices, cells: PlannedTypes, clock: Clock) -> Planned:
        """Rewrite, schedule and place, in parts if the whole does not fit."""
        from autobatch.blas.threads import most_threads

        scheduled: list[tuple[Graph, Schedule]] = []

        def plan_part(graph: Graph) -> Part:
            rewritten, rewrites = rewrite(graph, choices.rewrites)
            clock.lap("rewrite")
            schedule = make_schedule(rewritten, choices.policy)
            scheduled.append((rewritten, schedule))
            clock.lap("schedule")
            plan = choices.planner.place(rewritten, schedule, cells)
            if checking():
                check_plan(plan, cells)
            clock.lap("place")
            unseen_share = getattr(choices.policy, "unseen_share", None)
            n_threads = min(choices.threads, most_threads()) if choices.threads > 1 else 1
            scratch = choices.backend.scratch_size(plan, cells, choices.dtype, choices.precision, n_threads)
            n_bytes = plan.n_bytes(choices.dtype) + scratch * choices.dtype.itemsize
            return Part(graph, rewrites, plan, n_bytes, unseen_share)

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
        return Step(
            graph, planned.whole_bytes, choices.max_bytes, planned.parts, cells, clock, plan_hit, rate, choices.threads
        )
