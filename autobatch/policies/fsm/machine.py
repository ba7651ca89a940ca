"""A learned finite state machine, which maps a state, computed from the ready nodes, to the type to run next.

The machine is a table of values, learned by `autobatch.policies.fsm.qlearning`. In a state it runs the type with the
highest value among those tried there. In an unknown state, or one where no type that may run has been tried, the rule
of `Score` decides, and the batch counts as unseen; a learner (`autobatch.policies.fsm.qlearning`) then adds the state.
A policy may hold several machines: each plans, and the cheapest schedule is kept. Source: ED-Batch (arXiv:2302.03851);
the critical set, the mask, the fallback and rivals are ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias, final

import numpy as np

from autobatch._native import plan_by_machine
from autobatch.arrays import IntArray
from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, reverse, to_dag, type_costs
from autobatch.graph.graph import Graph, Types
from autobatch.graph.graph_check import naming_cycles
from autobatch.keywords import suggesting
from autobatch.policies.fsm.table import (
    ENCODINGS,
    LISTED,
    Encoding,
    Table,
    describe_table,
    make_table,
    rebuild_table,
    widen_table,
)
from autobatch.policies.rules.directed import Batches, Directed, Direction, mirror
from autobatch.policies.rules.rules import LEARNED, Weights
from autobatch.schedule.schedule import Schedule
from autobatch.system.unchecked import unchecked

if TYPE_CHECKING:
    from autobatch.policies.fsm.walk import Choice, Walk

Way: TypeAlias = Literal["forward", "backward"]
WAYS: tuple[Way, ...] = ("forward", "backward")


@suggesting()
@dataclass(frozen=True)
class Machine:
    """The settings of a state machine: how it encodes states and chooses types.

    Attributes:
        encoding: how the state describes the ready nodes. "base" lists the ready types, "max" also marks the one with
            the most ready nodes, and "sort" ranks them by their numbers of ready nodes.
        critical: the state includes the set of critical types.
        mask: if a ready type is critical, only critical types may run.
    """

    encoding: Encoding = "sort"
    critical: bool = False
    mask: bool = False

    def __post_init__(self) -> None:
        if self.encoding not in ENCODINGS:
            raise PolicyError(
                f"encoding of a state machine must be one of {', '.join(ENCODINGS)}, got {self.encoding!r}."
            )

    def width(self, n_types: int) -> int:
        """Count the ints of a state."""
        return n_types * (2 if self.critical else 1)

    def in_words(self) -> str:
        critical = ", and which are critical" if self.critical else ""
        mask = ", and runs critical types if any are ready" if self.mask else ""
        return f"sees the {LISTED[self.encoding]}{critical}{mask}"

    def rules(self) -> MachineRules:
        return MachineRules(ENCODINGS.index(self.encoding), int(self.mask))


class MachineRules(NamedTuple):
    """The settings of a `Machine` as ints, for the core."""

    encoding: int
    mask: int


@dataclass(frozen=True)
class TypeNames:
    """The types that a policy was learned for: their names, and outlines that identify them."""

    names: tuple[str, ...]
    outlines: tuple[str, ...]

    @classmethod
    def of(cls, types: Types) -> TypeNames:
        return cls(tuple(types.names), tuple(types.outlines))


class Taught(NamedTuple):
    """A machine with a learned table for each direction."""

    machine: Machine
    tables: dict[Way, Table]

    def describe(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the settings of the machine, and its tables with types by name."""
        machine = self.machine
        return {
            "machine": {"encoding": machine.encoding, "critical": machine.critical, "mask": machine.mask},
            "tables": {way: describe_table(self.tables[way], machine.encoding, names) for way in WAYS},
        }

    @classmethod
    def rebuild(cls, content: Mapping[str, Any], names: Sequence[str]) -> Taught:
        """Rebuild the machine from the result of `describe`."""
        machine, tables = Machine(**content["machine"]), content["tables"]
        width = machine.width(len(names))
        return cls(machine, {way: rebuild_table(tables[way], machine.encoding, width, names) for way in WAYS})


Learner: TypeAlias = Callable[[Machine, Table, Dag, IntArray], Table]
"""A function of a machine, its table, a dag, and the sequence of types run on the dag; returns the updated table."""


@final
@unchecked
class Fsm(Directed):
    """A learned state machine.

    Args:
        machine: the settings of the first machine.
        types: the types it was learned for.
        tables: the learned tables, for "forward", "backward" or both; without a table, all states of a direction are
            unknown.
        direction: "forward", "backward" or "both", see `Directed`.
        compact: whether to delete superfluous batches, see `Directed`.
        about: how it was learned; saved with it.
        weights: the weights of the rule that decides in unknown states.
        rivals: other machines for the same types. All plan, so the kept schedule never costs more than that of
            any one machine; planning time grows with their number.
        example: a mini-batch for the drawing in notebooks, until the policy plans another one; not saved.

    Attributes:
        unseen: batches of the last schedule that the rule decided, over all machines and directions.
        decided: all batches of that schedule, over all machines and directions.
        learner: learns from plans in which the rule decided; None if the tables are fixed.
    """

    rule: ClassVar[str] = "fsm"

    def __init__(
        self,
        machine: Machine,
        types: TypeNames,
        tables: Mapping[Way, Table],
        direction: Direction = "forward",
        compact: bool = False,
        about: Mapping[str, Any] | None = None,
        weights: Weights = LEARNED,
        rivals: Sequence[Taught] = (),
        example: Dag | None = None,
    ) -> None:
        super().__init__(direction, compact)
        self.types, self.weights, n_types = types, weights, len(types.names)
        full = {way: tables.get(way) or make_table(n_types, machine.width(n_types)) for way in WAYS}
        self.machines = (Taught(machine, full), *rivals)
        self.about = dict(about or {})
        self.unseen = self.decided = 0
        self.learner: Learner | None = None
        self._n_lessons = 0
        self._placed: tuple[Types, IntArray] | None = None
        self._planned = example

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles, without references to the types of a batched function."""
        return {**vars(self), "_placed": None, "_planned": None}

    def _repr_html_(self) -> str:
        """Draw the first machine on the last mini-batch planned, or list its choice in each state if there is none."""
        from autobatch.display.html import write_heading, write_lines, write_table

        parts = [write_heading(self.name, f"a state machine that {self.machine.in_words()}")]
        for way in self.ways:
            choices = self.choices(way)
            parts += [write_lines([f"{way}, {len(choices)} states"])]
            if self._planned is None:
                rows = [(choice.state, choice.type_name) for choice in choices]
                parts.append(write_table((LISTED[self.machine.encoding], "runs"), rows))
            else:
                parts.append(self.follow(way, [self._planned]).write(self.types.names, self.machine.encoding))
        return "".join(parts)

    def with_rival(self, other: Fsm) -> Fsm:
        """Return a policy that plans with the machines of both, for the same types, and keeps the cheaper plan."""
        about = {**self.about, "rivals": [*self.about.get("rivals", []), other.about]}
        rivals = [*self.machines[1:], *other.machines]
        return Fsm(
            self.machine, self.types, self.tables, self.direction, self.compact, about, self.weights, rivals,
            self._planned,
        )  # fmt: skip

    def describe(self) -> dict[str, Any]:
        """Return the weights of the rule, the types, and each machine with its tables."""
        first, *rivals = (taught.describe(self.types.names) for taught in self.machines)
        types = [{"name": n, "outline": o} for n, o in zip(self.types.names, self.types.outlines, strict=True)]
        return {"weights": self.weights._asdict(), "types": types, **first, "rivals": rivals}

    @classmethod
    def rebuild(cls, content: Mapping[str, Any], direction: Direction, compact: bool) -> Fsm:
        names, outlines = (tuple(str(known[part]) for known in content["types"]) for part in ("name", "outline"))
        (machine, tables), *rivals = (Taught.rebuild(one, names) for one in (content, *content["rivals"]))
        weights = Weights.read(content["weights"])
        return cls(machine, TypeNames(names, outlines), tables, direction, compact, weights=weights, rivals=rivals)

    def apart(self) -> list[Fsm]:
        """Return each machine as a policy of its own."""
        return [
            Fsm(machine, self.types, tables, self.direction, self.compact, weights=self.weights)
            for machine, tables in self.machines
        ]

    @property
    def machine(self) -> Machine:
        """Return the settings of the first machine."""
        return self.machines[0].machine

    @property
    def tables(self) -> dict[Way, Table]:
        """Return the tables of the first machine."""
        return self.machines[0].tables

    @property
    def ways(self) -> list[Way]:
        """Return the directions in which the policy plans."""
        return [way for way in WAYS if self.direction in (way, "both")]

    def choices(self, way: Way) -> list[Choice]:
        """List the choice of the first machine in each state, in the order in which it met them.

        Args:
            way: "forward" or "backward".
        """
        from autobatch.policies.fsm.walk import list_choices

        return list_choices(self.tables[way], self.types.names, self.machine.encoding)

    def follow(self, way: Way, dags: Iterable[Dag]) -> Walk:
        """Run the first machine on mini-batches, and record the states it goes through, without learning.

        Args:
            way: the direction.
            dags: the mini-batches, with the types numbered as in `to_known`.
        """
        from autobatch.policies.fsm.walk import NEW, Walk, list_states

        walk = Walk()
        for dag in dags:
            table, known = self.tables[way], self.types.names
            dag = dag._replace(n_types=max(dag.n_types, len(known)))  # the machine may have learned more types since
            turned = dag if way == "forward" else reverse(dag)
            sequence = plan_by_machine(turned, table, self.machine.rules(), self.weights)[0][0]
            # Types that the policy does not know are numbered after the known ones.
            names = [*known, *(NEW for _ in range(dag.n_types))]
            states = list_states(turned, sequence, known, self.machine.encoding, table.states.shape[1])
            walk.add(states, [names[type_id] for type_id in sequence])
        walk.unseen = walk.visits.keys() - {choice.state for choice in self.choices(way)}
        return walk

    @property
    def revision(self) -> tuple[int, bool]:
        """Return a value that changes when the policy learns in use, and when that is switched on or off."""
        return self._n_lessons, self.learner is not None

    @property
    def unseen_share(self) -> float:
        """Return the share of the last schedule's batches that the rule decided; 0 before the first."""
        return self.unseen / self.decided if self.decided else 0.0

    def schedule(self, graph: Graph) -> Schedule:
        """Schedule a graph; see `plan_best`.

        Raises:
            PolicyError: a type of the graph differs from the known type of that name, or the policy knows none of its
                types.
            GraphError: the graph has a cycle.
        """
        dag = self._planned = self.to_known(graph)
        place = self._place(graph.types)
        number = np.zeros(dag.n_types, np.int32)
        number[place] = np.arange(place.size)  # from the policy's numbers to those of the graph
        self.unseen = self.decided = 0
        with naming_cycles(graph):
            planned = self.plan_best(dag)
        return Schedule(number[planned.batch_type], planned.batch_ptr, planned.order)

    def to_known(self, graph: Graph) -> Dag:
        """Return the dag of a graph with the policy's numbers for types; a policy that learns adds new types.

        Raises:
            PolicyError: the types belong to another model.
            GraphError: the graph has a cycle.
        """
        dag, place = to_dag(graph), self._place(graph.types)
        n_types = max(len(self.types.names), int(place.max(initial=-1)) + 1)
        if self.learner is not None and n_types > len(self.types.names):
            self._take_in(TypeNames.of(graph.types), place)
        costs = None
        if dag.costs is not None:
            costs = np.ones(n_types)
            costs[place] = type_costs(dag)
        return dag._replace(type_id=place[dag.type_id], n_types=n_types, costs=costs)

    def plan(self, dag: Dag) -> Batches:
        """Simulate batch by batch, from the inputs, with the first machine."""
        return self._plan(dag, "forward", self.machines[0])

    def plan_backward(self, dag: Dag) -> Batches:
        """Simulate batch by batch, from the outputs, with the first machine and its backward table."""
        return mirror(self._plan(reverse(dag), "backward", self.machines[0]))

    def plans(self, dag: Dag) -> Iterator[Batches]:
        """Plan with every machine in the requested directions."""
        backward = reverse(dag) if self.direction != "forward" else None
        for taught in self.machines:
            if self.direction != "backward":
                yield self._plan(dag, "forward", taught)
            if backward is not None:
                yield mirror(self._plan(backward, "backward", taught))

    def _plan(self, dag: Dag, way: Way, taught: Taught) -> Batches:
        machine, tables = taught
        batches, unseen = plan_by_machine(dag, tables[way], machine.rules(), self.weights)
        self.unseen += unseen
        self.decided += batches[0].size
        if self.learner is not None and unseen:
            tables[way] = self.learner(machine, tables[way], dag, batches[0])
            self._n_lessons += 1
        return batches

    def _place(self, types: Types) -> IntArray:
        """Return the policy's number for each type of a graph; unknown types are numbered after the known ones."""
        # A table of types grows while its function records, so the same object may have more types than before.
        if self._placed is None or self._placed[0] is not types or self._placed[1].size != len(types.names):
            self._placed = types, place_types(self.types, TypeNames.of(types))
        return self._placed[1]

    def _take_in(self, met: TypeNames, place: IntArray) -> None:
        """Add the new types of a graph to those of the policy."""
        n_known = len(self.types.names)
        # In the order of the numbers that `place` assigns, because names are appended by number.
        new = [
            (met.names[type_id], met.outlines[type_id]) for type_id in np.argsort(place) if place[type_id] >= n_known
        ]
        names, outlines = zip(*new, strict=True)
        self.types = TypeNames(self.types.names + names, self.types.outlines + outlines)
        n_types = len(self.types.names)
        self.machines = tuple(
            Taught(machine, {way: widen_table(tables[way], n_types, machine.width(n_types)) for way in WAYS})
            for machine, tables in self.machines
        )


def place_types(known: TypeNames, met: TypeNames) -> IntArray:
    """Match types to the known ones by outline, and return their numbers; new types are numbered after the known ones.

    Several types with one outline, such as those of one cell in several modules, are matched in order.

    Raises:
        PolicyError: a cell differs from the known one of that name, or most of the cells are unknown.
    """
    numbers: dict[str, list[int]] = {}
    for number, outline in enumerate(known.outlines):
        numbers.setdefault(outline, []).append(number)
    seen, place, next_free = Counter[str](), [], len(known.names)
    for outline in met.outlines:
        same = numbers.get(outline, [])
        if seen[outline] < len(same):
            place.append(same[seen[outline]])
        else:
            place.append(next_free)
            next_free += 1
        seen[outline] += 1
    _check_cells(known, met)
    return np.array(place, np.int32)


def _check_cells(known: TypeNames, met: TypeNames) -> None:
    """Reject types of another model; a new type of a known cell is accepted."""
    cells, cells_met = _by_cell(known), _by_cell(met)
    for cell in cells_met.keys() & cells.keys():
        if not cells_met[cell] & cells[cell]:
            raise PolicyError(
                f"using a policy: it was learned for {min(cells[cell])}, but this model has {min(cells_met[cell])}; "
                f"learn a policy for this model."
            )
    if 2 * len(cells_met.keys() & cells.keys()) < len(cells_met):
        raise PolicyError(
            f"using a policy: it was learned for the types {', '.join(known.names)}, but this model has "
            f"{', '.join(met.names)}; learn a policy for this model."
        )


def _by_cell(types: TypeNames) -> dict[str, set[str]]:
    """Group the outlines of types by cell; the types of one cell have names such as cell#1."""
    cells: dict[str, set[str]] = {}
    for name, outline in zip(types.names, types.outlines, strict=True):
        cells.setdefault(name.partition("#")[0], set()).add(outline)
    return cells
