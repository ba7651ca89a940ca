"""Traces: keeps one trace of each cell per type, and traces again when something that a body read has changed.

A *family* is one cell called with arguments of one key. Each of its traces has guards (`autobatch.trace.guards`); one
trace is in force. Once per call all guards in force are checked. If one fails, an earlier trace whose guards hold is
used again, so switching back and forth traces nothing; if there is none, the body is traced again. A new trace with the
same signature (ports, attributes, outputs) replaces the old one under its type id, so that recorded graphs stay valid.
A trace with another signature is a new type, and graphs with the old type are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from autobatch.ir.arguments import Key
from autobatch.ir.builder import NeedsNumber
from autobatch.ir.program import Attribute, CellProgram, Constant, Instruction, Port, Weight
from autobatch.ir.typetable import NodeType, TypeTable, index_ranges
from autobatch.ops import add
from autobatch.ops.variadic import SUM_N
from autobatch.params.module import Module
from autobatch.params.parameter import FLOAT32
from autobatch.trace.entries import Entry
from autobatch.trace.guards import Difference, Guard, Watchlist, differences
from autobatch.trace.live import Live
from autobatch.trace.tracer import NeedsLength, Tracer
from autobatch.trace.watching import Watch

MOST_TRACES = 8  # kept per family, with their compiled code


class Trace(NamedTuple):
    """One trace of a cell.

    Attributes:
        guards: one for each thing that the body read.
        content: equal for equal programs.
        signature: equal for programs that can serve the same graphs.
    """

    node_type: NodeType
    guards: tuple[Guard, ...]
    content: Hashable
    signature: Hashable

    def holds(self) -> bool:
        """Whether all guards hold."""
        return all(guard.holds() for guard in self.guards)


@dataclass(eq=False)
class Family:
    """A cell called with arguments of one key.

    Attributes:
        traces: the kept traces, the most recently used one last.
        current: the trace in force; None if the body could not be traced again.
        by_value: places of numbers that are constants in traces, because the body needs them as numbers.
    """

    entry: Entry
    keys: dict[str, Key]
    traces: list[Trace] = field(default_factory=list)
    current: Trace | None = None
    by_value: set[Hashable] = field(default_factory=set)

    @property
    def number(self) -> int:
        """The type in force, or -1."""
        return -1 if self.current is None else self.current.node_type.number


class Traces:
    """All families of one recorded function.

    Args:
        sum_of: returns the entry of the variadic sum.
        renew: called for an entry whose types have changed, with the numbers before and now.

    Attributes:
        types: the node types; weight_names: the name of each parameter by its id, for print-outs.
        n_traced: how often a body was traced; n_renewed: how often guards failed.
    """

    def __init__(self, sum_of: Callable[[], Entry], renew: Callable[[Entry, Any, Any], None]) -> None:
        self.types = TypeTable()
        self.weight_names: dict[int, str] = {}
        self.n_traced = self.n_renewed = 0
        self.dtype = FLOAT32
        self._sum_of, self._renew_entry = sum_of, renew
        self._families: dict[Hashable, Family] = {}
        self._of_entry: dict[Entry, list[Family]] = {}
        self._lives: dict[Hashable, Live] = {}
        self._changing = set[Hashable]()
        self._serial = count()
        self._watchlist: Watchlist | None = None

    def type_of(self, entry: Entry, keys: dict[str, Key]) -> NodeType:
        """The type of calls with these keys; the cell is traced if it is not known."""
        identity = (entry.identity, tuple(keys.items()))
        family = self._families.get(identity)
        if family is None:
            family = Family(entry, keys)
        if family.current is None:
            tracer, result = self._trace(family)
            if tracer.resolved:
                groups = count()
                return self.type_of(entry, {name: _resolve(key, tracer.resolved, groups) for name, key in keys.items()})
            if identity not in self._families:
                self._families[identity] = family
                self._of_entry.setdefault(entry, []).append(family)
            with self.types.growing:
                self._put(family, self._keep(family, *result))
        assert family.current is not None
        return family.current.node_type

    # Once per call.

    @property
    def watchlist(self) -> Watchlist:
        """All guards in force."""
        watchlist = self._watchlist
        if watchlist is None:
            with self.types.growing:  # otherwise traces that another thread makes meanwhile would be missing
                watchlist = self._watchlist = Watchlist(guard for trace in self._in_force() for guard in trace.guards)
        return watchlist

    def name_weights(self, module: Module | None) -> None:
        """Store the names of the parameters of `module`."""
        self.weight_names = {id(p): name for name, p in module.parameters().items()} if module is not None else {}

    def refresh(self, dtype: np.dtype[Any]) -> None:
        """Convert the present live numbers to this float type, for the next run."""
        self.dtype = dtype
        for live in list(self._lives.values()):
            live.refresh(dtype)

    def changes(self) -> str:
        """A description of what has changed, for messages."""
        return _told(differences(guard for trace in self._in_force() for guard in trace.guards))

    @property
    def n_taken(self) -> int:
        """How often live numbers have changed."""
        return sum(live.n_taken for live in self._lives.values())

    def renew(self) -> None:
        """Replace the traces in force whose guards fail."""
        self.n_renewed += 1
        for family in list(self._families.values()):
            if family.current is not None and not family.current.holds():
                self._renew(family, family.current)
        self._watchlist = None

    def _in_force(self) -> list[Trace]:
        return [family.current for family in list(self._families.values()) if family.current is not None]

    def _renew(self, family: Family, before: Trace) -> None:
        changed = differences(before.guards)
        known = next((trace for trace in reversed(family.traces) if trace.holds()), None)
        error: Exception | None = None
        result: Any = None
        if known is None:
            self._changing |= {difference.key for difference in changed if difference.is_numeric}
            try:
                result = self._trace(family)[1]
            except Exception as failed:  # raised again when the cell is called; graphs with this type are refused
                error = failed
        told = f"{_told(changed)}, and cell {before.node_type.name!r} {_outcome(error)}"
        with self.types.growing:
            self._put(family, self._keep(family, *result) if result is not None else known, told)

    def _put(self, family: Family, trace: Trace | None, why: str = "") -> None:
        """Put a trace in force, or none."""
        entry = family.entry
        before, old = self._numbers(entry), family.number
        family.current = trace
        if trace is not None:
            family.traces = [*(t for t in family.traces if t is not trace), trace][-MOST_TRACES:]
            self.types.put(trace.node_type)
        if old not in (-1, family.number):
            self.types.retire(old, why)
        if why and before != self._numbers(entry):
            self._renew_entry(entry, before, self._numbers(entry))
        self._watchlist = None

    def _numbers(self, entry: Entry) -> tuple[int, ...]:
        return tuple(family.number for family in self._of_entry.get(entry, ()))

    # Tracing.

    def _trace(self, family: Family) -> tuple[Tracer, Any]:
        """Trace a body. Things that it changes itself, such as a counter, are guarded with their values afterwards."""
        held = [guard for trace in self._in_force() for guard in trace.guards if guard.holds()]
        tracer, result = self._trace_body(family)
        for guard in (*held, *result[-1]):
            if not guard.holds():
                guard.retake()
        self._watchlist = None
        return tracer, result

    def _trace_body(self, family: Family) -> tuple[Tracer, Any]:
        """Trace a body with live numbers, then again with constants for those that the body needs as numbers."""
        entry, roots = family.entry, _roots(family.entry, family.keys)
        while True:
            tracer = Tracer(entry.name, self.weight_names)
            watch = Watch(tracer.builder, self._changing, self._lives, self._new_live, family.by_value)
            self.n_traced += 1
            try:
                program, structure = tracer.trace(entry.run, family.keys, watch.watching(roots))
            except NeedsLength:
                raise
            except Exception as error:
                needed = tracer.builder.needed if isinstance(error, NeedsNumber) else set(watch.offered)
                if not needed:
                    raise
            else:
                needed = tracer.builder.needed
                if not needed:
                    return tracer, (program, structure, tuple(watch.guards.values()))
            family.by_value |= {watch.offered[live] for live in needed}

    def _keep(self, family: Family, program: CellProgram, structure: Any, guards: tuple[Guard, ...]) -> Trace:
        """The trace of a family with this program; an equal one that is kept already gets the new guards."""
        content, signature = (_content(program), structure), _signature(program, structure)
        for known in family.traces:
            if known.content == content:
                family.traces.remove(known)
                return known._replace(guards=guards)
        number = next((t.node_type.number for t in family.traces if t.signature == signature), None)
        node_type = self._make_type(family.entry, family.keys, program, structure)
        if number is not None:
            node_type = replace(node_type, number=number)
        return Trace(replace(node_type, trace=next(self._serial)), guards, content, signature)

    def _make_type(self, entry: Entry, keys: dict[str, Key], program: CellProgram, structure: Any) -> NodeType:
        called, sum_type = entry.identity[0].value, -1
        if called is add and (shape := _shape_of_both(keys["args"])) is not None:
            values = {"values": Key("each", None, (Key("value", shape),))}
            sum_type = self.type_of(self._sum_of(), values).number
        elif called is SUM_N and keys["values"].kind == "each" and len(program.ports) == 1:
            sum_type = len(self.types)
        owner = entry.identity[-1].value
        return NodeType(
            len(self.types), entry.name, program, structure, tuple(keys.items()), sum_type,
            owner if isinstance(owner, Module) else None,
        )  # fmt: skip

    def _new_live(self, key: Hashable, value: Any, holder: object) -> Live:
        self._lives[key] = live = Live(value, self.dtype, holder)
        return live


def _told(changed: Iterable[Difference]) -> str:
    return "; ".join(dict.fromkeys(difference.told for difference in changed))


def _outcome(error: Exception | None) -> str:
    return "has another signature now" if error is None else f"cannot be traced any more: {error}"


def _roots(entry: Entry, keys: Mapping[str, Key]) -> list[Any]:
    """The objects that a body is given: the cell, its owner, static arguments."""
    return [*(static.value for static in entry.identity), *(x for key in keys.values() for x in _statics(key))]


def _statics(key: Key) -> list[Any]:
    if key.kind == "static":
        return [key.detail.value]
    return [x for child in key.children for x in _statics(child)]


def _signature(program: CellProgram, structure: Any) -> Hashable:
    """The parts of a program that the graphs of its type depend on."""
    given = []
    for var in program.vars:
        if isinstance(var.source, (Port, Attribute)):
            given.append((var.source, var.shape, var.domain))
    outputs = tuple(program.vars[output].shape for output in program.outputs)
    return tuple(given), outputs, structure, program.ties, program.draws, tuple(index_ranges(program))


def _content(program: CellProgram) -> Hashable:
    """Equal for programs that compute the same in the same way."""
    values = tuple((_source(v.source), v.shape, v.domain) for v in program.vars)
    return values, program.outputs, program.ties, program.draws


def _source(source: Any) -> Hashable:
    match source:
        case Instruction(op, args, static):
            return op, args, repr(sorted(static.items()))
        case Weight(parameter, name):
            return "parameter", id(parameter), name
        case Constant(data):
            array = np.asarray(data)
            return "constant", type(data), array.dtype.str, array.shape, array.tobytes()
    return source  # type: ignore[no-any-return]


def _resolve(key: Key, resolved: Mapping[int, Key], groups: Any) -> Key:
    """`key` with elements for empty lists, whose shape the body gave as `shape=`."""
    if key.kind == "each":
        element = resolved.get(next(groups))
        return key if element is None else Key("each", None, (element,))
    return Key(key.kind, key.detail, tuple(_resolve(child, resolved, groups) for child in key.children))


def _shape_of_both(key: Key) -> tuple[int, ...] | None:
    """The shape of two values of one shape; None for any other arguments."""
    kinds = {child.kind for child in key.children}
    shapes = {child.detail for child in key.children}
    return shapes.pop() if kinds == {"value"} and len(shapes) == 1 else None
