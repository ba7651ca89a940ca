"""Counts and times of a call."""

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
from autobatch.graph.rewrite.passes import Rewrites
from autobatch.plan.budget import Figures, Part
from autobatch.plan.plan import PlannedTypes
from autobatch.schedule.schedule import min_batches

FIGURES = attrgetter("figures")


class Span(NamedTuple):
    """The time span of a stage, or of a batch with its type and rows: seconds of `time.perf_counter`."""

    stage: str
    start: float
    end: float
    n_bytes: int = 0
    type_id: int = -1
    rows: int = 0

    @property
    def ms(self) -> float:
        """The length of the span in milliseconds."""
        return 1e3 * (self.end - self.start)


class Clock:
    """Milliseconds per stage; a lap counts for the stage that it ends.

    Attributes:
        start: the time at which the clock was started.
        spans: every lap while a profile is taken; else None.
    """

    def __init__(self, profiled: bool = False) -> None:
        self.ms: dict[str, float] = {}
        self.spans: list[Span] | None = [] if profiled else None
        self.start = self._since = perf_counter()

    def lap(self, stage: str, seconds: float | None = None) -> None:
        """Add the time since the last lap, or only the first `seconds` of it, to `stage`."""
        now = perf_counter() if seconds is None else self._since + seconds
        self.ms[stage] = self.ms.get(stage, 0.0) + 1e3 * (now - self._since)
        if self.spans is not None:
            self.spans.append(Span(stage, self._since, now))
        self._since = now

    def total(self, *stages: str) -> float:
        """The sum of several stages, in milliseconds."""
        return sum(self.ms.get(stage, 0.0) for stage in stages)


class RoundCounts(NamedTuple):
    """What a round of async programs did.

    Attributes:
        batches: that it ran.
        nodes: that it ran; those of type `kept`, which only read what an earlier round computed, count too.
        waited: the instances that waited for it, by their positions in the call.
    """

    batches: int
    nodes: int
    waited: tuple[int, ...]


@dataclass(eq=False)
class LastCall:
    """Counts and times of one call; all figures but the counts of its parts are added up when they are asked for.

    Attributes:
        figures: what is known of each part, in order: there is one, or several if the whole would have exceeded
            `max_bytes`.
        counts: the work of each part.
        ms: milliseconds per stage.
        plan_hit: whether the plan came from the cache; None if the cache was not asked. Recorded graphs ask it.
        plan_hit_rate: the share of such lookups so far that found a plan.
        per_round: what each round of async programs did.
        n_sources: nodes of rounds that only read what an earlier round computed; `nodes` does not count them.
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
        """The scheduled graphs of the parts; with a plan from the cache, of the mini-batch that it was made for."""
        return tuple(part.graph for part in self.figures)

    @property
    def batches(self) -> int:
        """The number of batches of all parts."""
        return count_batches(self.figures)

    @property
    def planned_bytes(self) -> int:
        """Bytes of the values and scratch memory of the largest plan."""
        return largest_bytes(self.figures)

    @property
    def unseen_share(self) -> float | None:
        """The share of batches for which the policy met a state that it had not learned; see `Figures`."""
        return unseen_share(self.figures)

    @property
    def rounds(self) -> int:
        """The number of rounds of async programs; the last step, which gives the results, is none."""
        return len(self.per_round)

    @property
    def launches(self) -> int:
        """Calls of kernels, scatters, gathers and copies included."""
        return add_up(self.counts).launches

    @property
    def copied_bytes(self) -> int:
        """Bytes moved by launches that compute nothing."""
        return add_up(self.counts).copied_bytes

    @property
    def allocations(self) -> int:
        """How often memory of runs was allocated anew."""
        return add_up(self.counts).allocations

    @property
    def buffer_bytes(self) -> int:
        """Bytes that the backend held for the values."""
        return add_up(self.counts).buffer_bytes

    @property
    def record_ms(self) -> float:
        """Milliseconds of recording, or of looking for a plan and merging."""
        return self._ms("record", "lookup", "merge")

    @property
    def schedule_ms(self) -> float:
        """Milliseconds of rewriting and scheduling."""
        return self._ms("rewrite", "schedule")

    @property
    def place_ms(self) -> float:
        """Milliseconds of laying out cells and placing values."""
        return self._ms("layout", "place")

    @property
    def execute_ms(self) -> float:
        """Milliseconds of the run, forward and backward."""
        return self._ms("forward", "backward")

    def _ms(self, *stages: str) -> float:
        return sum(self.ms.get(stage, 0.0) for stage in stages)

    @property
    def parts(self) -> int:
        """The number of parts that the mini-batch ran in; 1 unless `max_bytes` would have been exceeded."""
        return len(self.graphs)

    @cached_property
    def graph(self) -> Graph:
        """The scheduled graph, after the rewrites; several parts are merged when it is asked for."""
        return self.graphs[0] if len(self.graphs) == 1 else merge_graphs(self.graphs)

    @property
    def nodes(self) -> int:
        """The number of nodes that ran."""
        return sum(graph.n_nodes for graph in self.graphs) - self.n_sources

    @cached_property
    def lower_bound(self) -> int:
        """The number of batches that no schedules of the parts can go below; computed when asked for."""
        return sum(map(min_batches, self.graphs))


@dataclass(eq=False)
class Step:
    """A planned mini-batch and the counts of its run.

    Attributes:
        graph: the graph of the whole, before the rewrites.
        whole_bytes: bytes that the values of the whole would take.
        parts: the parts, which run one after the other; a single one unless the whole takes more than `max_bytes`.
        plan_hit, plan_hit_rate: as in `LastCall`.
        loss_slot: the slot of the losses; -1 where there is no single loss.
        counts: the counts of each part that has run.
        on_end: is called with the seconds per node of its run, where they are measured.
        rounds, n_sources: `per_round` and `n_sources` of `LastCall`.
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

    @property
    def figures(self) -> list[Figures]:
        """What is known of each part."""
        return [*map(FIGURES, self.parts)]

    @property
    def n_nodes(self) -> int:
        """The number of nodes of all parts, after the rewrites."""
        return sum([part.plan.graph.n_nodes for part in self.parts])

    @property
    def rewrites(self) -> Rewrites:
        """The rewrites of all parts, added up."""
        return Rewrites(*map(sum, zip(*(astuple(part.rewrites) for part in self.parts), strict=True)))

    def divided(self) -> Iterator[tuple[Part, slice]]:
        """Yield the parts, and the positions of the instances of each."""
        first = 0
        for part in self.parts:
            end = first + part.graph.keys.size
            yield part, slice(first, end)
            first = end

    def finish(self) -> LastCall:
        """The counts and times of the call, which has ended."""
        if self.on_end is not None:
            self.on_end(self.clock.total("forward", "backward") / 1e3 / max(self.graph.n_nodes, 1))
        known = self.plan_hit, self.plan_hit_rate, self.rounds, self.n_sources
        return LastCall([*map(FIGURES, self.parts)], self.counts, self.clock.ms, *known)


def join_steps(steps: Sequence[Step], waited: Sequence[tuple[int, ...]], n_sources: int) -> Step:
    """The rounds of async programs and the last step as one step, whose parts are those of all.

    Args:
        waited: for each round, the instances that waited for it.
        n_sources: as in `LastCall`.
    """
    rounds = tuple(RoundCounts(count_batches(s.figures), s.n_nodes, w) for s, w in zip(steps[:-1], waited, strict=True))
    parts, counts = tuple(part for s in steps for part in s.parts), [count for s in steps for count in s.counts]
    whole_bytes = max(s.whole_bytes for s in steps)
    return replace(steps[-1], parts=parts, counts=counts, whole_bytes=whole_bytes, rounds=rounds, n_sources=n_sources)


def count_batches(figures: Sequence[Figures]) -> int:
    """The number of batches of all parts."""
    return sum(part.n_batches for part in figures)


def largest_bytes(figures: Sequence[Figures]) -> int:
    """The bytes of the values and scratch memory of the largest part."""
    return max((part.n_bytes for part in figures), default=0)


def unseen_share(figures: Sequence[Figures]) -> float | None:
    """The share of the batches of all parts for which the policy met a state that it had not learned."""
    shares = [(part.unseen_share, part.n_batches) for part in figures if part.unseen_share is not None]
    if len(shares) <= 1:
        return shares[0][0] if shares else None
    return sum(share * n for share, n in shares) / max(sum(n for _, n in shares), 1)


def add_up(counts: Sequence[Counts]) -> Counts:
    """The counts of several parts: sums, and the largest `buffer_bytes`."""
    launches, copied, allocations, held = zip(Counts(0, 0, 0, 0), *counts, strict=True)
    return Counts(sum(launches), sum(copied), sum(allocations), max(held))
