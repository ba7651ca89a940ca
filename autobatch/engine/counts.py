"""Record the counts and times of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from time import perf_counter
from typing import NamedTuple

from autobatch.backends.base import Counts
from autobatch.graph.build import merge_graphs
from autobatch.graph.graph import Graph
from autobatch.graph.rewrite import Rewrites
from autobatch.plan.budget import Figures, Part
from autobatch.plan.plan import PlannedTypes
from autobatch.schedule.schedule import min_batches

FIGURES = attrgetter("figures")


class Span(NamedTuple):
    """The time span of a stage, or of a batch of some type and rows, in seconds of `time.perf_counter`."""

    stage: str
    start: float
    end: float
    n_bytes: int = 0
    type_id: int = -1
    rows: int = 0

    @property
    def ms(self) -> float:
        return 1e3 * (self.end - self.start)


class Clock:
    """A stopwatch that adds up milliseconds per stage.

    Attributes:
        ms: the milliseconds of each stage so far.
        start: the time at which the clock was started, in seconds of `time.perf_counter`.
        spans: all marks while a profile is taken; else None.
    """

    def __init__(self, profiled: bool = False) -> None:
        self.ms: dict[str, float] = {}
        self.spans: list[Span] | None = [] if profiled else None
        self.start = self._since = perf_counter()

    def mark(self, stage: str, seconds: float | None = None) -> None:
        """Add the time since the last mark, or only the first `seconds` of it, to `stage`."""
        now = perf_counter() if seconds is None else self._since + seconds
        self.ms[stage] = self.ms.get(stage, 0.0) + 1e3 * (now - self._since)
        if self.spans is not None:
            self.spans.append(Span(stage, self._since, now))
        self._since = now

    def total(self, *stages: str) -> float:
        """Return the sum of several stages in milliseconds."""
        return sum(self.ms.get(stage, 0.0) for stage in stages)


class RoundCounts(NamedTuple):
    """The counts of one round of async programs.

    Attributes:
        batches: the number of batches that ran.
        nodes: the number of nodes that ran, including nodes of type `kept`, which only read values of earlier rounds.
        waited: the positions in the call of the instances that waited for the round.
    """

    batches: int
    nodes: int
    waited: tuple[int, ...]


@dataclass(eq=False)
class LastCall:
    """The counts and times of one call; properties compute totals over the parts on access.

    Attributes:
        figures: the figures of each part, in order; there are several parts if the whole would exceed `max_bytes`.
        counts: the work of each part.
        ms: milliseconds per stage.
        plan_hit: whether the plan came from the cache; None if it was not looked up; only recorded graphs are.
        plan_hit_rate: the share of all lookups so far that found a plan.
        per_round: the counts of each round of async programs.
        n_sources: the number of nodes that only read values of earlier rounds; `nodes` does not count them.
    """

    figures: Sequence[Figures]
    counts: list[Counts]
    ms: dict[str, float]
    plan_hit: bool | None
    plan_hit_rate: float
    per_round: tuple[RoundCounts, ...] = ()
    n_sources: int = 0

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """Return the scheduled graphs of the parts; a cached plan has those of the mini-batch that it was made for."""
        return tuple(part.graph for part in self.figures)

    @property
    def batches(self) -> int:
        """Return the number of batches of all parts."""
        return count_batches(self.figures)

    @property
    def planned_bytes(self) -> int:
        """Return the bytes of values and scratch memory of the largest part."""
        return largest_bytes(self.figures)

    @property
    def unseen_share(self) -> float | None:
        """Return the share of batches chosen in states that the policy had not learned; see `Figures`."""
        return unseen_share(self.figures)

    @property
    def rounds(self) -> int:
        """Return the number of rounds of async programs, without the last step, which computes the results."""
        return len(self.per_round)

    @property
    def launches(self) -> int:
        """Return the number of kernel calls, including scatters, gathers and copies."""
        return add_up(self.counts).launches

    @property
    def copied_bytes(self) -> int:
        """Return the bytes moved by launches that compute nothing."""
        return add_up(self.counts).copied_bytes

    @property
    def allocations(self) -> int:
        """Return the number of times that memory was allocated for runs."""
        return add_up(self.counts).allocations

    @property
    def buffer_bytes(self) -> int:
        """Return the bytes that the backend held for values."""
        return add_up(self.counts).buffer_bytes

    @property
    def record_ms(self) -> float:
        """Return the milliseconds of recording, plan lookup and merging."""
        return self._ms("record", "lookup", "merge")

    @property
    def schedule_ms(self) -> float:
        """Return the milliseconds of rewriting and scheduling."""
        return self._ms("rewrite", "schedule")

    @property
    def place_ms(self) -> float:
        """Return the milliseconds of laying out cells and placing values."""
        return self._ms("layout", "place")

    @property
    def execute_ms(self) -> float:
        """Return the milliseconds of the run, forward and backward."""
        return self._ms("forward", "backward")

    def _ms(self, *stages: str) -> float:
        return sum(self.ms.get(stage, 0.0) for stage in stages)

    @property
    def parts(self) -> int:
        """Return the number of parts in which the mini-batch ran; 1 unless the whole would exceed `max_bytes`."""
        return len(self.graphs)

    @cached_property
    def graph(self) -> Graph:
        """Return the scheduled graph after the rewrites; several parts are merged on first access."""
        return self.graphs[0] if len(self.graphs) == 1 else merge_graphs(self.graphs)

    @property
    def nodes(self) -> int:
        """Return the number of nodes that ran."""
        return sum(graph.n_nodes for graph in self.graphs) - self.n_sources

    @cached_property
    def lower_bound(self) -> int:
        """Return the number of batches that no schedules of the parts can go below; computed on first access."""
        return sum(map(min_batches, self.graphs))


@dataclass(eq=False)
class Step:
    """A planned mini-batch and the counts of its run.

    Attributes:
        graph: the graph of the whole mini-batch, before the rewrites.
        whole_bytes: the bytes that the values of the whole would take.
        parts: the parts, which run one after the other; a single one unless the whole takes more than `max_bytes`.
        plan_hit, plan_hit_rate: as in `LastCall`.
        loss_slot: the slot of the losses; -1 without a single loss.
        counts: the counts of each part that has run.
        on_end: called with the seconds per node of the run; None if they are not measured.
        rounds, n_sources: `per_round` and `n_sources` of `LastCall`.
        dropped: the figures of earlier parts whose plans were dropped.
    """

    graph: Graph
    whole_bytes: int
    max_bytes: int | None
    parts: tuple[Part, ...]
    cells: PlannedTypes
    clock: Clock
    plan_hit: bool | None = None
    plan_hit_rate: float = 0.0
    loss_slot: int = -1
    counts: list[Counts] = field(default_factory=list)
    on_end: Callable[[float], None] | None = None
    rounds: tuple[RoundCounts, ...] = ()
    n_sources: int = 0
    dropped: Sequence[Figures] = ()

    @property
    def figures(self) -> list[Figures]:
        return [*self.dropped, *map(FIGURES, self.parts)]

    @property
    def n_nodes(self) -> int:
        """Return the number of nodes of all parts, after the rewrites."""
        return sum([part.plan.graph.n_nodes for part in self.parts])

    @property
    def rewrites(self) -> Rewrites:
        """Return the sum of the rewrites of all parts."""
        return Rewrites(*map(sum, zip(*(astuple(part.rewrites) for part in self.parts), strict=True)))

    def divided(self) -> Iterator[tuple[Part, slice]]:
        """Yield each part with the positions of its instances."""
        first = 0
        for part in self.parts:
            end = first + part.graph.keys.size
            yield part, slice(first, end)
            first = end

    def finish(self) -> LastCall:
        """Return the counts and times of the call, after its end."""
        if self.on_end is not None:
            self.on_end(self.clock.total("forward", "backward") / 1e3 / max(self.graph.n_nodes, 1))
        known = self.plan_hit, self.plan_hit_rate, self.rounds, self.n_sources
        return LastCall([*self.dropped, *map(FIGURES, self.parts)], self.counts, self.clock.ms, *known)


class RoundsSoFar:
    """The counts of the rounds of async programs that have run.

    Args:
        keeps_plans: whether to keep the plans too, for a profile or a report.

    Attributes:
        per_round: the counts of each round.
        n_sources: as in `LastCall`.
    """

    def __init__(self, keeps_plans: bool) -> None:
        self._keeps_plans = keeps_plans
        self.per_round: list[RoundCounts] = []
        self._figures: list[Figures] = []
        self._parts: list[Part] = []
        self._counts: list[Counts] = []
        self._whole_bytes = self.n_sources = 0

    def add(self, step: Step, waited: tuple[int, ...]) -> None:
        """Add a round that has run, given the positions of the instances that waited for it."""
        figures = step.figures
        self.per_round.append(RoundCounts(count_batches(figures), step.n_nodes, waited))
        if self._keeps_plans:
            self._parts += step.parts
        else:
            self._figures += figures
        self._counts += step.counts
        self._whole_bytes = max(self._whole_bytes, step.whole_bytes)

    def joined(self, last: Step) -> Step:
        """Join all rounds and the last step into one step."""
        return replace(
            last, parts=(*self._parts, *last.parts), counts=[*self._counts, *last.counts],
            whole_bytes=max(self._whole_bytes, last.whole_bytes), rounds=tuple(self.per_round),
            n_sources=self.n_sources, dropped=self._figures,
        )  # fmt: skip


def count_batches(figures: Sequence[Figures]) -> int:
    """Count the batches of all parts."""
    return sum(part.n_batches for part in figures)


def largest_bytes(figures: Sequence[Figures]) -> int:
    """Return the bytes of values and scratch memory of the largest part."""
    return max((part.n_bytes for part in figures), default=0)


def unseen_share(figures: Sequence[Figures]) -> float | None:
    """Return the share of the batches of all parts that were chosen in states that the policy had not learned."""
    shares = [(part.unseen_share, part.n_batches) for part in figures if part.unseen_share is not None]
    if len(shares) <= 1:
        return shares[0][0] if shares else None
    return sum(share * n for share, n in shares) / max(sum(n for _, n in shares), 1)


def add_up(counts: Sequence[Counts]) -> Counts:
    """Add up the counts of several parts; of `buffer_bytes`, return the largest."""
    launches, copied, allocations, held = zip(Counts(0, 0, 0, 0), *counts, strict=True)  # there may be no parts
    return Counts(sum(launches), sum(copied), sum(allocations), max(held))
