"""What a call did, and how long each part of it took."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from functools import cached_property
from time import perf_counter
from typing import NamedTuple

from autobatch.graph.build import merge_graphs
from autobatch.graph.graph import Graph
from autobatch.graph.rewrite.passes import Rewrites
from autobatch.plan.budget import Part
from autobatch.plan.plan import PlannedTypes
from autobatch.runtime.backend import Counts
from autobatch.schedule.schedule import min_batches


class Span(NamedTuple):
    """When a stage, or a batch in it, ran: seconds of `time.perf_counter`; of a batch also its type and rows."""

    stage: str
    start: float
    end: float
    n_bytes: int = 0
    kind: int = -1
    rows: int = 0

    @property
    def ms(self) -> float:
        """How long it took."""
        return 1e3 * (self.end - self.start)


class Clock:
    """Milliseconds per stage; a lap goes to the stage that it ends.

    Attributes:
        start: when it began.
        spans: every lap, while a profile is taken; else None.
    """

    def __init__(self, profiled: bool = False) -> None:
        self.ms: dict[str, float] = {}
        self.spans: list[Span] | None = [] if profiled else None
        self.start = self._since = perf_counter()

    def lap(self, stage: str) -> None:
        """Add the time since the last lap to `stage`."""
        now = perf_counter()
        self.ms[stage] = self.ms.get(stage, 0.0) + 1e3 * (now - self._since)
        if self.spans is not None:
            self.spans.append(Span(stage, self._since, now))
        self._since = now

    def total(self, *stages: str) -> float:
        """Milliseconds of several stages."""
        return sum(self.ms.get(stage, 0.0) for stage in stages)


@dataclass(frozen=True, eq=False)
class LastCall:
    """Counts and times of one call.

    Attributes:
        graphs: what was scheduled, after the rewrites: one, or where `max_bytes` would have been exceeded one for each
            part, in order. With a plan from the cache, those of the mini-batch that it was made for.
        batches, launches, copied_bytes, allocations: of all parts.
        planned_bytes: what the largest plan's values take, with scratch memory.
        buffer_bytes: what the backend held for them.
        unseen_share: the share of batches for which the policy met a state that it had not learned; None for policies
            that do not learn.
        plan_hit: whether the plan came from the cache; None if it was not looked for, which it is for recorded graphs.
        plan_hit_rate: the share of such lookups so far that found a plan.
    """

    graphs: tuple[Graph, ...]
    batches: int
    launches: int
    copied_bytes: int
    allocations: int
    buffer_bytes: int
    planned_bytes: int
    record_ms: float
    schedule_ms: float
    place_ms: float
    execute_ms: float
    unseen_share: float | None = None
    plan_hit: bool | None = None
    plan_hit_rate: float = 0.0

    @property
    def parts(self) -> int:
        """How many parts the mini-batch ran in; 1 unless `max_bytes` would have been exceeded."""
        return len(self.graphs)

    @cached_property
    def graph(self) -> Graph:
        """What was scheduled, after the rewrites; that of all parts is merged when asked for."""
        return self.graphs[0] if len(self.graphs) == 1 else merge_graphs(self.graphs)

    @property
    def nodes(self) -> int:
        """Nodes that ran."""
        return sum(graph.n_nodes for graph in self.graphs)

    @cached_property
    def lower_bound(self) -> int:
        """Batches that no schedules of the parts can go below; computed when asked for."""
        return sum(map(min_batches, self.graphs))


@dataclass(frozen=True, eq=False)
class Step:
    """One mini-batch on its way: what each stage made of it.

    Attributes:
        graph: of the whole, before the rewrites.
        whole_bytes: what the values of the whole would take.
        parts: what runs, one after the other; the whole, unless that takes more than `max_bytes`.
        plan_hit, plan_hit_rate: as in `LastCall`.
        counts: of each part that has run.
    """

    graph: Graph
    whole_bytes: int
    max_bytes: int | None
    parts: tuple[Part, ...]
    cells: PlannedTypes
    clock: Clock
    plan_hit: bool | None = None
    plan_hit_rate: float = 0.0
    counts: list[Counts] = field(default_factory=list)

    @property
    def planned_bytes(self) -> int:
        """What the values of the largest part take."""
        return max(part.n_bytes for part in self.parts)

    @property
    def unseen_share(self) -> float | None:
        """The share of all batches that a learned policy did not know the state for."""
        shares = [(part.unseen_share, part.n_batches) for part in self.parts if part.unseen_share is not None]
        if len(shares) <= 1:
            return shares[0][0] if shares else None
        return sum(share * n for share, n in shares) / max(sum(n for _, n in shares), 1)

    @property
    def rewrites(self) -> Rewrites:
        """What was done to all parts."""
        return Rewrites(*map(sum, zip(*(astuple(part.rewrites) for part in self.parts), strict=True)))

    def totals(self) -> Counts:
        """What running all parts took."""
        launches, copied, allocations, held = zip(*self.counts, strict=True)
        return Counts(sum(launches), sum(copied), sum(allocations), max(held))

    def finish(self) -> LastCall:
        """The counts and times of the call."""
        total, known = self.clock.total, (self.unseen_share, self.plan_hit, self.plan_hit_rate)
        times = (
            total("record", "lookup", "merge"), total("rewrite", "schedule"), total("layout", "place"),
            total("forward", "backward"),
        )  # fmt: skip
        graphs, n_batches = tuple(p.plan.graph for p in self.parts), sum(p.n_batches for p in self.parts)
        return LastCall(graphs, n_batches, *self.totals(), self.planned_bytes, *times, *known)
