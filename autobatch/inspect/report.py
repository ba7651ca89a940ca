"""The counts of the last call, and the report on one mini-batch that `explain` prints."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from autobatch.engine.counts import RoundCounts, Step, add_up, largest_bytes, unseen_share
from autobatch.graph.rewrite.passes import Rewrites, Shared
from autobatch.inspect.plotting import Picture, plot_schedules, show_as_text
from autobatch.ir.arguments import Key
from autobatch.ir.program import Instruction
from autobatch.ir.typetable import NodeType, TypeTable, group_by_shape, name_group
from autobatch.schedule.schedule import Policy, Schedule, chain_lengths

if TYPE_CHECKING:
    from autobatch.inspect.lines import LineReport
    from autobatch.memplan.report.memory import MemoryReport

SHOWN = 5  # rounds at either end, instances of a round, functions that record single ops


@dataclass(frozen=True)
class TypeReport:
    """One node type in a mini-batch.

    Attributes:
        group: of the types that differ in nothing but shapes; such types have a line in common.
        apart: what sets the type apart from the others of its cell; empty if it is the only one.
        bound: batches that the type needs at least: the largest number of its nodes on one path.
        alone: nodes that ran in a batch of their own; `why` gives the reason if all nodes did.
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
    """The quality of a schedule, see `autobatch.policies.search.judging`."""

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
    """The result of `explain`; prints as a table, to which notebooks add the picture of the schedule.

    Attributes:
        compacted: batches that would be left if superfluous ones were deleted; `batches` counts those that ran.
        lower_bound: batches that no schedule can go below, by `bound_kind`: "chain", or "pairs" for the better one.
        launches: as counted by the backend.
        copied_bytes: as counted by the backend.
        planned_bytes: bytes of the values of the largest part, as planned.
        buffer_bytes: the same, as held by the backend.
        parts: the number of parts that the mini-batch ran in.
        whole_bytes: bytes of the values of the mini-batch as a whole.
        max_bytes: the limit of these bytes; None for no limit.
        unseen_share: the share of batches in which a learned policy did not know the state.
        plan_hit: as in `LastCall`.
        plan_hit_rate: as in `LastCall`.
        memory: the places of values and the copies; None unless asked for.
        precision: of matrix products.
        decided: how mini-batches of this class run, and why, if that is measured or pinned.
        of_one_length: cells that have a type for each length of an argument; which, why, and what to do.
        notes: on cells, each with the name of its cell.
        picture: of the schedule; a notebook shows it by itself, too.
        rounds: what each round of async programs did.
        sharing: of each type whose nodes were looked up for equal ones, in each part, what that gave.
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
        """Whether it is proven that no schedule has fewer batches."""
        return self.batches == self.lower_bound

    @property
    def gap(self) -> float:
        """Batches above the lower bound, as a fraction of it."""
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

        memory = "" if self.memory is None else fold("where values lie, and what moves", write_fixed(str(self.memory)))
        table = write_table(("type", "nodes", "batches", "bound", "alone", ""), self._rows())
        return write_lines(self._facts()) + table + write_lines(self._remarks()) + memory + self.picture.draw()

    def _facts(self) -> Iterator[str]:
        """What concerns the whole mini-batch, in lines."""
        yield (
            f"policy {self.policy}: {self.instances} instances, {self.nodes} nodes, {self.batches} batches "
            f"({self.compacted} compacted); lower bound {self.lower_bound} ({self.bound_kind}), "
        ) + ("proven optimal" if self.optimal else f"gap {self.gap:.0%}")
        yield f"{self.launches} launches, {self.copied_bytes} bytes copied; rewrites: {self.rewrites}"
        yield f"memory of values: {self.planned_bytes} bytes planned, {self.buffer_bytes} held"
        if self.rounds:
            yield from _describe_rounds(self.rounds)
        elif self.parts > 1:
            yield (
                f"run in {self.parts} parts, one after the other: the whole needs {self.whole_bytes} bytes and "
                f"max_bytes is {self.max_bytes}"
            )
        if self.plan_hit:
            yield f"the plan was made before and kept; so were {self.plan_hit_rate:.0%} of those looked for"
        if self.precision != "float32":
            yield f"operands of matrix products rounded to {self.precision}; sums, and all else, in float32"
        if self.decided:
            yield f"decided for {self.decided}"
        if self.unseen_share is not None:
            yield f"{self.unseen_share:.0%} of the batches were chosen in states that the policy did not know"

    def _groups(self) -> list[list[TypeReport]]:
        """The types, those together that differ in nothing but shapes."""
        groups: dict[int, list[TypeReport]] = defaultdict(list)
        for t in self.types:
            groups[t.group].append(t)
        return list(groups.values())

    def _rows(self) -> Iterator[tuple[str, int, int, int, int, str]]:
        """For each group of types its name; nodes, batches, bound and nodes alone; and what sets it apart."""
        for group in self._groups():
            nodes, batches, bound, alone = (sum(column) for column in zip(*map(_counts, group), strict=True))
            yield _name(group), nodes, batches, bound, alone, group[0].apart if len(group) == 1 else ""

    def _remarks(self) -> Iterator[str]:
        """What concerns single types, in lines."""
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
        """Draw the schedule into a file.

        Args:
            path: ends in .png, .pdf or .svg.

        Raises:
            AutobatchError: Matplotlib is missing, or the file cannot be written.
        """
        plot_schedules([self.picture], path)


def _describe_shared(found: Shared) -> str:
    """What looking for equal nodes of a type gave, and what followed."""
    among = f"{found.nodes}" if found.looked_up == found.nodes else f"the {found.looked_up} looked up of {found.nodes}"
    return f"{found.equal} of {among} nodes equal an earlier one, " + (
        "and are not computed again" if found.is_shared else "but sharing them costs more than it saves"
    )


def _describe_rounds(rounds: Sequence[RoundCounts]) -> Iterator[str]:
    """The number of rounds, and for the first and the last ones what they ran and who waited."""
    yield f"{len(rounds)} rounds, then a last step for the results; nodes of type kept read values of earlier rounds"
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
    """Describe a mini-batch that has run, and the quality of its parts' schedules by a judgement of each."""
    schedule, counts = join_schedules([part.plan.schedule for part in step.parts]), add_up(step.counts)
    compacted, lower = sum(j.compacted for j in judgements), sum(j.bound for j in judgements)
    kind = judgements[0].bound_kind
    title = f"{policy.name}: {schedule.n_batches} batches, lower bound {lower} ({kind})"
    return Report(
        policy.name, step.graph.n_instances, schedule.n_nodes, schedule.n_batches, compacted, lower, kind,
        counts.launches, counts.copied_bytes, largest_bytes(step.figures), counts.buffer_bytes, len(step.parts),
        step.whole_bytes, step.max_bytes, step.rewrites, tuple(_report_types(step, schedule, types)),
        Picture(title, schedule, types.names), unseen_share(step.figures), step.plan_hit, step.plan_hit_rate,
        memory, precision, decided, _cells_of_one_length(schedule, types), tuple(_notes(schedule, types)),
        step.rounds, tuple((types.names[found.type_id], found) for found in sharing), lines,
    )  # fmt: skip


def join_schedules(schedules: Sequence[Schedule]) -> Schedule:
    """Join the schedules of graphs, one after the other, into a schedule of the merged graph."""
    order, ptr, n_nodes = [], [np.zeros(1, np.int32)], 0
    for schedule in schedules:
        order.append(schedule.order + n_nodes)
        ptr.append(schedule.batch_ptr[1:] + n_nodes)
        n_nodes += schedule.n_nodes
    types = [schedule.batch_type for schedule in schedules]
    return Schedule(np.concatenate(types), np.concatenate(ptr), np.concatenate(order))


def _report_types(step: Step, schedule: Schedule, types: TypeTable) -> Iterator[TypeReport]:
    """Describe each type that ran; its bound is the sum over the parts."""
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
    """The cells that ran and have a type for each length of a list."""
    present = {types[number].name for number in set(schedule.batch_type.tolist())}
    return tuple((name, note) for name, note in types.of_one_length.items() if name in present)


def _notes(schedule: Schedule, types: TypeTable) -> dict[tuple[str, str], None]:
    """What ops have to say about the cells that ran, each once."""
    ran = (types[number] for number in sorted(set(schedule.batch_type.tolist())))
    sources = ((node_type.name, var.source) for node_type in ran for var in node_type.program.vars)
    return {
        (name, source.op.note(**source.static)): None
        for name, source in sources
        if isinstance(source, Instruction) and source.op.note is not None
    }


def what_sets_apart(node_type: NodeType, siblings: Sequence[NodeType]) -> str:
    """The arguments in which a type differs from others of its cell, and a parameter that only this one reads.

    A list with several elements of one kind is written as `list(3 x value[8])`.
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
    """The other types of a cell among those of the mini-batch."""
    return [t for t in types.types if t.name == node_type.name and t is not node_type and t.number in present]


def why_alone(
    node_type: NodeType, types: TypeTable, present: Collection[int], n_nodes: int, bound: int, n_parts: int
) -> str:
    """The reason why no two nodes of a type ran together; `present` are the types of the mini-batch by number."""
    if n_nodes == 1:
        siblings = _siblings(node_type, types, present)
        if siblings:
            names = types.names
            return f"its only node differs from {names[siblings[0].number]} in {_difference(node_type, siblings[0])}"
        return "the mini-batch has one node of this type"
    if bound == n_nodes:
        apart = ", or run in different parts" if n_parts > 1 else ": all lie on one path"
        return f"its nodes wait for each other{apart}"
    return f"the policy ran them apart; {bound} batches would do for this type"


def _difference(one: NodeType, other: NodeType) -> str:
    """The first argument in which two types of one cell differ."""
    for (name, key), (_, other_key) in zip(one.arguments, other.arguments, strict=False):
        if key != other_key:
            return f"argument {name!r}: {key} against {other_key}"
    return "the module, and so the parameters, that it reads"
