"""The report on a mini-batch that `explain` returns."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from autobatch.engine.counts import RoundCounts, Step, add_up, largest_bytes, unseen_share
from autobatch.graph.rewrite import Rewrites, Shared
from autobatch.inspect.plotting import Picture, plot_schedules, show_as_text
from autobatch.ir.arguments import Key
from autobatch.ir.program import Instruction
from autobatch.ir.typetable import NodeType, TypeTable, group_by_shape, name_group
from autobatch.schedule.schedule import Policy, Schedule, chain_lengths

if TYPE_CHECKING:
    from autobatch.inspect.lines import LineReport
    from autobatch.memplan.report import MemoryReport

SHOWN = 5  # rounds at either end, instances of a round, functions that record single ops


@dataclass(frozen=True)
class TypeReport:
    """One node type in a mini-batch.

    Attributes:
        group: number shared by types that differ only in shapes, which are printed as one line.
        apart: difference from the other types of its cell; empty if it is the only one.
        bound: lower bound on the type's batches: the largest number of its nodes on one path.
        alone: number of nodes that ran in batches of their own.
        why: reason if all nodes ran alone; else empty.
    """

    name: str
    signature: str
    group: int
    apart: str
    nodes: int
    batches: int
    bound: int
    alone: int
    why: str


class Judgement(Protocol):
    """The quality of a schedule, see `autobatch.policies.search.bounds`."""

    @property
    def compacted(self) -> int:
        """Return the number of batches left after deleting superfluous ones."""

    @property
    def bound(self) -> int:
        """Return the lower bound on batches of all schedules."""

    @property
    def bound_kind(self) -> str:
        """Return the method of the bound: "chain" or "pairs"."""


@dataclass(frozen=True)
class Report:
    """The result of `explain`; prints as a table, and notebooks add a drawing of the schedule.

    Attributes:
        batches: batches that ran.
        compacted: batches that would be left after deleting superfluous ones.
        lower_bound: lower bound on the batches of any schedule.
        bound_kind: method of the bound: "chain", or "pairs" for the tighter one.
        launches, copied_bytes: as counted by the backend.
        planned_bytes: planned bytes of the values of the largest part.
        buffer_bytes: bytes that the backend allocated for values.
        parts: number of parts that the mini-batch ran in.
        whole_bytes: bytes of the values of the whole mini-batch.
        max_bytes: limit on these bytes; None for no limit.
        unseen_share: fraction of batches chosen in states unknown to a learned policy.
        plan_hit, plan_hit_rate: as in `LastCall`.
        memory: placement of values, and copies; None unless requested.
        precision: precision of matrix products.
        decided: the class of this mini-batch, its number of threads, and the reason, if that was measured or pinned.
        of_one_length: cells with a type per length of an argument: name, and the reason and advice.
        notes: notes on cells: name and text.
        picture: drawing of the schedule, also shown by notebooks on its own.
        rounds: counts of each round of async programs.
        sharing: result of the search for equal nodes: type name and counts, per part.
        lines: source lines that recorded single ops outside cells, most nodes first.
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
    planned_bytes: int
    buffer_bytes: int
    parts: int
    whole_bytes: int
    max_bytes: int | None
    rewrites: Rewrites
    types: tuple[TypeReport, ...]
    picture: Picture
    unseen_share: float | None = None
    plan_hit: bool | None = None
    plan_hit_rate: float = 0.0
    memory: MemoryReport | None = None
    precision: str = "float32"
    decided: str = ""
    of_one_length: tuple[tuple[str, str], ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    rounds: tuple[RoundCounts, ...] = ()
    sharing: tuple[tuple[str, Shared], ...] = ()
    lines: tuple[LineReport, ...] = ()

    @property
    def optimal(self) -> bool:
        """Return whether the schedule provably has the fewest batches."""
        return self.batches == self.lower_bound

    @property
    def gap(self) -> float:
        """Return the batches above the lower bound, as a fraction of it."""
        return self.batches / self.lower_bound - 1 if self.lower_bound else 0.0

    def __str__(self) -> str:
        rows = list(self._rows())
        width = max((len(row[0]) for row in rows), default=4)
        lines = [*self._facts(), f"  {'type':<{width}}  {'nodes':>7}  {'batches':>7}  {'bound':>5}  {'alone':>5}"]
        for name, nodes, batches, bound, alone, apart in rows:
            lines.append(
                f"  {name:<{width}}  {nodes:>7}  {batches:>7}  {bound:>5}  {alone:>5}" + (f"  {apart}" if apart else "")
            )
        lines += (f"  {remark}" for remark in self._remarks())
        return "\n".join(lines + ([str(self.memory)] if self.memory is not None else []))

    _repr_pretty_ = show_as_text

    def _repr_html_(self) -> str:
        from autobatch.display.html import fold, write_fixed, write_lines, write_table

        memory = "" if self.memory is None else fold("placement of values, and copies", write_fixed(str(self.memory)))
        table = write_table(("type", "nodes", "batches", "bound", "alone", ""), self._rows())
        return write_lines(self._facts()) + table + write_lines(self._remarks()) + memory + self.picture.draw()

    def _facts(self) -> Iterator[str]:
        """Yield the lines about the whole mini-batch."""
        from autobatch.policies.rules.rules import with_origin

        yield (
            f"policy {with_origin(self.policy)}: {self.instances} instances, {self.nodes} nodes, "
            f"{self.batches} batches ({self.compacted} compacted); lower bound {self.lower_bound} ({self.bound_kind}), "
        ) + ("proven optimal" if self.optimal else f"gap {self.gap:.0%}")
        yield f"{self.launches} launches, {self.copied_bytes} bytes copied; rewrites: {self.rewrites}"
        yield f"memory of values: {self.planned_bytes} bytes planned, {self.buffer_bytes} held"
        if self.rounds:
            yield from _describe_rounds(self.rounds)
        elif self.parts > 1:
            yield (
                f"run in {self.parts} parts, one after the other: the whole mini-batch needs {self.whole_bytes} bytes, "
                f"and max_bytes is {self.max_bytes}"
            )
        if self.plan_hit:
            yield f"the plan came from the cache; hit rate {self.plan_hit_rate:.0%}"
        if self.precision != "float32":
            yield f"operands of matrix products rounded to {self.precision}; sums and all other ops in float32"
        if self.decided:
            yield f"threads for {self.decided}"
        if self.unseen_share is not None:
            yield f"{self.unseen_share:.0%} of the batches were chosen in states unknown to the policy"

    def _groups(self) -> list[list[TypeReport]]:
        """Group the types that differ only in shapes."""
        groups: dict[int, list[TypeReport]] = defaultdict(list)
        for t in self.types:
            groups[t.group].append(t)
        return list(groups.values())

    def _rows(self) -> Iterator[tuple[str, int, int, int, int, str]]:
        """Yield name, nodes, batches, bound, nodes alone and `apart` of each group of types."""
        for group in self._groups():
            nodes, batches, bound, alone = (sum(column) for column in zip(*map(_counts, group), strict=True))
            yield _name(group), nodes, batches, bound, alone, group[0].apart if len(group) == 1 else ""

    def _remarks(self) -> Iterator[str]:
        """Yield the lines about single types."""
        from autobatch.inspect.lines import describe_lines

        for group in self._groups():
            single = [t for t in group if t.why]
            others = f" and {len(single) - 1} like it" if len(single) > 1 else ""
            yield from (f"{t.name}{others} ran one node at a time: {t.why}" for t in single[:1])
        yield from (f"{name} has a type for each length {note}" for name, note in self.of_one_length)
        yield from (f"{name} {note}" for name, note in self.notes)
        yield from (f"{name}: {_describe_shared(found)}" for name, found in self.sharing if found.equal)
        yield from describe_lines(self.lines, SHOWN)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the schedule to a file.

        Args:
            path: ends in .png, .pdf or .svg.

        Raises:
            AutobatchError: Matplotlib is missing, or the file cannot be written.
        """
        plot_schedules([self.picture], path)


def _describe_shared(found: Shared) -> str:
    """Describe the result of the search for equal nodes of a type."""
    among = f"{found.nodes}" if found.looked_up == found.nodes else f"the {found.looked_up} looked up of {found.nodes}"
    return f"{found.equal} of {among} nodes equal an earlier one, " + (
        "and are not computed again" if found.is_shared else "but sharing them costs more than it saves"
    )


def _describe_rounds(rounds: Sequence[RoundCounts]) -> Iterator[str]:
    """Yield the number of rounds, and the counts and waiting instances of the first and last rounds."""
    yield f"{len(rounds)} rounds, then a last step for the results; nodes of type 'kept' read values of earlier rounds"
    for number, one in enumerate(rounds):
        if number < SHOWN or number >= len(rounds) - SHOWN:
            named = ", ".join(map(str, one.waited[:SHOWN])) + (", ..." if len(one.waited) > SHOWN else "")
            ran, n = f"{one.batches} batches, {one.nodes} nodes", len(one.waited)
            yield f"  round {number}: {ran}; {n} instance{'s' if n > 1 else ''} waited: {named}"
        elif number == SHOWN:
            yield "  ..."


def _name(group: Sequence[TypeReport]) -> str:
    return name_group([t.name for t in group])


def _counts(t: TypeReport) -> tuple[int, int, int, int]:
    return t.nodes, t.batches, t.bound, t.alone


def make_report(
    step: Step,
    policy: Policy,
    types: TypeTable,
    judgements: Sequence[Judgement],
    memory: MemoryReport | None,
    precision: str = "float32",
    decided: str = "",
    sharing: Sequence[Shared] = (),
    lines: tuple[LineReport, ...] = (),
) -> Report:
    """Describe a mini-batch that has run; `judgements` are the qualities of its parts' schedules."""
    from autobatch.policies.rules.rules import with_origin

    schedule, counts = join_schedules([part.plan.schedule for part in step.parts]), add_up(step.counts)
    compacted, lower = sum(j.compacted for j in judgements), sum(j.bound for j in judgements)
    kind = judgements[0].bound_kind
    title = f"{with_origin(policy.name)}: {schedule.n_batches} batches, lower bound {lower} ({kind})"
    return Report(
        policy.name, step.graph.n_instances, schedule.n_nodes, schedule.n_batches, compacted, lower, kind,
        counts.launches, counts.copied_bytes, largest_bytes(step.figures), counts.buffer_bytes, len(step.parts),
        step.whole_bytes, step.max_bytes, step.rewrites, tuple(_report_types(step, schedule, types)),
        Picture(title, schedule, types.names), unseen_share(step.figures), step.plan_hit, step.plan_hit_rate,
        memory, precision, decided, _cells_of_one_length(schedule, types), tuple(_notes(schedule, types)),
        step.rounds, tuple((types.names[found.type_id], found) for found in sharing), lines,
    )  # fmt: skip


def join_schedules(schedules: Sequence[Schedule]) -> Schedule:
    """Concatenate schedules of graphs into a schedule of the merged graph."""
    order, ptr, n_nodes = [], [np.zeros(1, np.int32)], 0
    for schedule in schedules:
        order.append(schedule.order + n_nodes)
        ptr.append(schedule.batch_ptr[1:] + n_nodes)
        n_nodes += schedule.n_nodes
    types = [schedule.batch_type for schedule in schedules]
    return Schedule(np.concatenate(types), np.concatenate(ptr), np.concatenate(order))


def _report_types(step: Step, schedule: Schedule, types: TypeTable) -> Iterator[TypeReport]:
    """Yield a report on each type that ran; its bound is the sum over the parts."""
    bounds = np.sum([chain_lengths(part.plan.graph) for part in step.parts], axis=0)
    sizes, present = np.diff(schedule.batch_ptr), set(schedule.batch_type.tolist())
    groups = group_by_shape([node_type for node_type in types.types if node_type.number in present])
    for node_type in types.types:
        own = sizes[schedule.batch_type == node_type.number]
        if own.size:
            bound = int(bounds[node_type.number])
            why = why_alone(node_type, types, present, own.size, bound, len(step.parts)) if own.max() == 1 else ""
            alone, name = int(np.count_nonzero(own == 1)), types.names[node_type.number]
            group, apart = groups[node_type.number], what_sets_apart(node_type, _siblings(node_type, types, present))
            yield TypeReport(name, node_type.signature, group, apart, int(own.sum()), own.size, bound, alone, why)


def _cells_of_one_length(schedule: Schedule, types: TypeTable) -> tuple[tuple[str, str], ...]:
    """Return the cells that ran and have a type per length of a list, with their notes."""
    present = {types[number].name for number in set(schedule.batch_type.tolist())}
    return tuple((name, note) for name, note in types.of_one_length.items() if name in present)


def _notes(schedule: Schedule, types: TypeTable) -> dict[tuple[str, str], None]:
    """Collect the notes of ops on the cells that ran, each once."""
    ran = (types[number] for number in sorted(set(schedule.batch_type.tolist())))
    sources = ((node_type.name, var.source) for node_type in ran for var in node_type.program.vars)
    return {
        (name, source.op.note(**source.static)): None
        for name, source in sources
        if isinstance(source, Instruction) and source.op.note is not None
    }


def what_sets_apart(node_type: NodeType, siblings: Sequence[NodeType]) -> str:
    """Describe the arguments in which a type differs from others of its cell, and a parameter that only it reads.

    A list of several equal elements is written as `list(3 x value[8])`.
    """
    others = [dict(sibling.arguments) for sibling in siblings]
    found = [
        f"{name}: {_brief(key)}" for name, key in node_type.arguments if any(other.get(name) != key for other in others)
    ]
    equal = [sibling.program.weights for sibling in siblings if sibling.arguments == node_type.arguments]
    known = {source.name for weights in equal for source in weights}
    own = [source.name for source in node_type.program.weights if source.name not in known]
    return ", ".join(found + [f"reads {name}" for name in own[:1] if equal])


def _brief(key: Key) -> str:
    parts = list(map(str, key.children))
    repeats = key.kind in ("list", "tuple") and len(parts) > 1 and len(set(parts)) == 1
    return f"{key.kind}({len(parts)} x {parts[0]})" if repeats else str(key)


def _siblings(node_type: NodeType, types: TypeTable, present: Collection[int]) -> list[NodeType]:
    """Return the other types of the cell in the mini-batch."""
    return [t for t in types.types if t.name == node_type.name and t is not node_type and t.number in present]


def why_alone(
    node_type: NodeType, types: TypeTable, present: Collection[int], n_nodes: int, bound: int, n_parts: int
) -> str:
    """Explain why no two nodes of a type ran together; `present` are the numbers of the mini-batch's types."""
    if n_nodes == 1:
        siblings = _siblings(node_type, types, present)
        if siblings:
            names = types.names
            return f"its only node differs from {names[siblings[0].number]} in {_difference(node_type, siblings[0])}"
        return "the mini-batch has one node of this type"
    if bound == n_nodes:
        apart = ", or run in different parts" if n_parts > 1 else ": all are on one path"
        return f"its nodes wait for each other{apart}"
    return f"the policy ran them separately; {bound} batches would suffice for this type"


def _difference(one: NodeType, other: NodeType) -> str:
    """Describe the first argument in which two types of one cell differ."""
    for (name, key), (_, other_key) in zip(one.arguments, other.arguments, strict=False):
        if key != other_key:
            return f"argument {name!r}: {key} instead of {other_key}"
    return "its module, and so its parameters"
