"""What one mini-batch took, and why: the counts of the last call, and the report that `explain` prints."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import Protocol

import numpy as np

from autobatch.executor import Counts
from autobatch.graph import Graph
from autobatch.plan import Plan, PlannedTypes
from autobatch.plotting import Picture, plot_schedules
from autobatch.rewrite import Rewrites
from autobatch.schedule import Policy, chain_lengths, min_batches
from autobatch.typetable import NodeType, TypeTable


@dataclass
class Clock:
    """Milliseconds per stage; a lap goes to the stage that it ends."""

    ms: dict[str, float] = field(default_factory=dict)
    _since: float = field(default_factory=perf_counter)

    def lap(self, stage: str) -> None:
        """Add the time since the last lap to `stage`."""
        now = perf_counter()
        self.ms[stage] = self.ms.get(stage, 0.0) + 1e3 * (now - self._since)
        self._since = now


@dataclass(frozen=True, eq=False)
class LastCall:
    """Counts and times of one call.

    Attributes:
        graph: what was scheduled, after the rewrites.
        unseen_share: the share of batches for which the policy met a state that it had not learned; None for policies
            that do not learn.
    """

    graph: Graph
    batches: int
    launches: int
    copied_bytes: int
    allocations: int
    record_ms: float
    schedule_ms: float
    place_ms: float
    execute_ms: float
    unseen_share: float | None = None

    @property
    def nodes(self) -> int:
        """Nodes that ran."""
        return self.graph.n_nodes

    @cached_property
    def lower_bound(self) -> int:
        """Batches that no schedule can go below; computed when asked for."""
        return min_batches(self.graph)


@dataclass(frozen=True, eq=False)
class Step:
    """One mini-batch on its way: what each stage made of it."""

    graph: Graph
    rewrites: Rewrites
    plan: Plan
    cells: PlannedTypes
    clock: Clock
    unseen_share: float | None = None

    def finish(self, counts: Counts) -> LastCall:
        """The counts and times of the call."""
        ms = self.clock.ms
        times = (ms["record_ms"], ms["schedule_ms"], ms["place_ms"], ms["execute_ms"])
        return LastCall(self.plan.graph, self.plan.schedule.n_batches, *counts, *times, self.unseen_share)


@dataclass(frozen=True)
class TypeReport:
    """One node type in a mini-batch.

    Attributes:
        bound: batches that the type needs at least: its nodes on the path that has most of them.
        alone: nodes that ran in a batch of their own; `why`, if all of them did.
    """

    name: str
    signature: str
    nodes: int
    batches: int
    bound: int
    alone: int
    why: str


class Judgement(Protocol):
    """How good a schedule is, see `autobatch.policies.judging`."""

    @property
    def compacted(self) -> int:
        """Batches that are left when superfluous ones are deleted."""

    @property
    def bound(self) -> int:
        """Batches that no schedule can go below."""

    @property
    def bound_kind(self) -> str:
        """How the bound was found."""


@dataclass(frozen=True)
class Report:
    """What `explain` found; prints as a table.

    Attributes:
        compacted: batches that would be left if superfluous ones were deleted; `batches` counts those that ran.
        lower_bound: batches that no schedule can go below, by `bound_kind`: "chain", or "pairs" for the better one.
        gap, optimal: how far `batches` is above it, and whether it is not.
        launches, copied_bytes: what the backend did.
        unseen_share: of the batches, those in which a learned policy did not know the state.
        why: the policy was chosen, if it was not the user who chose it.
    """

    policy: str
    instances: int
    nodes: int
    batches: int
    compacted: int
    lower_bound: int
    bound_kind: str
    launches: int
    copied_bytes: int
    rewrites: Rewrites
    types: tuple[TypeReport, ...]
    picture: Picture
    unseen_share: float | None = None
    why: str = ""

    @property
    def optimal(self) -> bool:
        """Whether it is proven that no schedule has fewer batches."""
        return self.batches == self.lower_bound

    @property
    def gap(self) -> float:
        """Batches above the lower bound, as a fraction of it."""
        return self.batches / self.lower_bound - 1 if self.lower_bound else 0.0

    def __str__(self) -> str:
        lines = [
            f"policy {self.policy}: {self.instances} instances, {self.nodes} nodes, {self.batches} batches "
            f"({self.compacted} compacted); lower bound {self.lower_bound} ({self.bound_kind}), "
            + ("proven optimal" if self.optimal else f"gap {self.gap:.0%}"),
            f"{self.launches} launches, {self.copied_bytes} bytes copied; rewrites: {self.rewrites}",
        ]
        if self.why:
            lines.append(f"the policy was chosen by auto: {self.why}")
        if self.unseen_share is not None:
            lines.append(f"{self.unseen_share:.0%} of the batches were chosen in states that the policy did not know")
        width = max((len(t.name) for t in self.types), default=4)
        lines.append(f"  {'type':<{width}}  {'nodes':>7}  {'batches':>7}  {'bound':>5}  {'alone':>5}")
        lines += [f"  {t.name:<{width}}  {t.nodes:>7}  {t.batches:>7}  {t.bound:>5}  {t.alone:>5}" for t in self.types]
        return "\n".join(lines + [f"  {t.name} ran one node at a time: {t.why}" for t in self.types if t.why])

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw what ran when into a PNG, PDF or SVG file.

        Raises:
            AutobatchError: Matplotlib is missing, or the file cannot be written.
        """
        plot_schedules([self.picture], path)


def make_report(step: Step, policy: Policy, counts: Counts, types: TypeTable, judgement: Judgement) -> Report:
    """Describe a mini-batch that has run, and how good its schedule is."""
    graph, schedule = step.plan.graph, step.plan.schedule
    bounds = chain_lengths(graph)
    sizes = np.diff(schedule.batch_ptr)
    names = types.names
    reports = []
    for node_type in types.types:
        own = sizes[schedule.batch_type == node_type.number]
        if own.size:
            bound = int(bounds[node_type.number])
            why = why_alone(node_type, types, graph, own.size, bound) if own.max() == 1 else ""
            alone = int(np.count_nonzero(own == 1))
            reports.append(
                TypeReport(names[node_type.number], node_type.signature, int(own.sum()), own.size, bound, alone, why)
            )
    title = f"{policy.name}: {schedule.n_batches} batches, lower bound {judgement.bound} ({judgement.bound_kind})"
    return Report(
        policy.name, graph.n_instances, graph.n_nodes, schedule.n_batches, judgement.compacted, judgement.bound,
        judgement.bound_kind, counts.launches, counts.copied_bytes, step.rewrites, tuple(reports),
        Picture(title, schedule, names), step.unseen_share, getattr(policy, "why", ""),
    )  # fmt: skip


def why_alone(node_type: NodeType, types: TypeTable, graph: Graph, n_nodes: int, bound: int) -> str:
    """Why no two nodes of a type ran together."""
    if n_nodes == 1:
        present = set(np.unique(graph.type_id).tolist())
        siblings = [t for t in types.types if t.name == node_type.name and t is not node_type and t.number in present]
        if siblings:
            names = types.names
            return f"its only node differs from {names[siblings[0].number]} in {_difference(node_type, siblings[0])}"
        return "the mini-batch has one node of this type"
    if bound == n_nodes:
        return "its nodes wait for each other: all lie on one path"
    return f"the policy ran them apart; {bound} batches would do for this type"


def _difference(one: NodeType, other: NodeType) -> str:
    """The first argument in which two types of one cell differ."""
    for (name, key), (_, other_key) in zip(one.arguments, other.arguments, strict=False):
        if key != other_key:
            return f"argument {name!r}: {key} against {other_key}"
    return "the module, and so the parameters, that it reads"
