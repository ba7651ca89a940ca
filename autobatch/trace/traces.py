"""Traces: a cache with one trace per type of each cell, which retraces a body when something that it read has changed.

A *specialization* is one cell called with arguments of one key. Each of its traces has guards
(`autobatch.trace.guards`); one trace is in force. Once per call, all guards in force are checked. If one fails, an
earlier trace whose guards hold is reused, so switching back and forth traces nothing; if there is none, the body is
traced again. A new trace with the same signature (ports, attributes, outputs) replaces the old one under its type id,
so that recorded graphs stay valid. A trace with another signature is a new type, and graphs with the old type raise a
GraphError.

A body that iterates over a list is traced for each length of the list in calls; one trace serves all lengths that give
the same program (`autobatch.trace.elements`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count
from typing import Any, NamedTuple

from autobatch.errors import GraphError
from autobatch.ir.arguments import Key
from autobatch.ir.builder import Builder, NeedsNumber
from autobatch.ir.flows import keep_products
from autobatch.ir.program import Attribute, CellProgram, Port, dtype_of, int_limit, source_key
from autobatch.ir.typetable import NodeType, TypeTable, index_ranges
from autobatch.ops import add
from autobatch.ops.variadic import SUM_N
from autobatch.params.module import Module
from autobatch.params.parameter import Parameter
from autobatch.system.freeing import without_collection
from autobatch.system.locks import tracing_lock
from autobatch.trace.cell import Cell
from autobatch.trace.elements import Lengths, NeedsLength
from autobatch.trace.entries import Entry, ids_in
from autobatch.trace.guards import HOLDS, Difference, Guard, GuardSet, Lives, content_of, differences
from autobatch.trace.tracer import Tracer
from autobatch.trace.tracking import ReadTracker

FEW = 3  # length to which the first trace of a body cuts a list: a first, a middle and a last element
MOST_TRACES = 8  # traces kept per specialization, with their compiled code


@dataclass(frozen=True, eq=False)
class Body:
    """The result of tracing the body of a cell.

    Attributes:
        program: the program.
        structure: structure of the outputs, over output numbers.
        guards: one guard for each place that the body read.
        lengths: lengths of lists for which the body gives this program.
    """

    program: CellProgram
    structure: Any
    guards: tuple[Guard, ...]
    lengths: Lengths

    @cached_property
    def content(self) -> Hashable:
        """Return a key that is equal for equal programs."""
        return _content(self.program), self.structure, self.lengths.walked

    @cached_property
    def signature(self) -> Hashable:
        """Return a key that is equal for programs that can serve the same graphs, and have the same call forms."""
        program = self.program
        given = []
        for var in program.vars:
            if isinstance(var.source, (Port, Attribute)):
                given.append((var.source, var.shape, var.domain))
        vars = program.vars
        outputs = tuple((vars[o].shape, int_limit(vars, o), dtype_of(vars, o)) for o in program.outputs)
        ranges = tuple(index_ranges(program))
        return tuple(given), outputs, self.structure, program.ties, program.draws, ranges, self.lengths.walked


class Trace(NamedTuple):
    """One trace of a cell."""

    node_type: NodeType
    body: Body

    def holds(self) -> bool:
        return all(guard.holds() for guard in self.body.guards)


@dataclass(eq=False)
class Specialization:
    """A cell called with arguments of one key.

    Attributes:
        traces: the kept traces, the most recently used one last.
        current: the trace in force; None if the body could not be retraced.
        lengths: lengths of lists for which the trace in force is valid; forms read it, so it stays the same object.
        example: lengths of lists with which the body was traced.
        by_value: places of numbers that are constants in traces, because the body needs them as numbers.
        kept: the products that nodes keep for derivatives, by number; see `autobatch.ir.flows`.
        numbers: the type number of each signature that traces have had, so that graphs stay valid.
        failed: guards of the reads of the last failed trace; the body is retraced once one of these changes.
    """

    entry: Entry
    keys: dict[str, Key]
    traces: list[Trace] = field(default_factory=list)
    current: Trace | None = None
    lengths: Lengths = field(default_factory=Lengths)
    example: tuple[int, ...] = ()
    by_value: set[Hashable] = field(default_factory=set)
    kept: list[int] = field(default_factory=list)
    numbers: dict[Hashable, int] = field(default_factory=dict)
    failed: tuple[Guard, ...] = ()

    @property
    def number(self) -> int:
        """Return the number of the type in force; -1 if there is none."""
        return -1 if self.current is None else self.current.node_type.number

    @property
    def node_type(self) -> NodeType:
        assert self.current is not None
        return self.current.node_type


class Traces:
    """All specializations of one recorded function.

    Args:
        sum_of: returns the entry of the variadic sum.
        renew: called for an entry whose types have changed, with its type numbers before and after.
        make_portable: see `TypeTable`.

    Attributes:
        types: the node types.
        weight_names: the name of each parameter by its id, for printing.
        lives: the numbers that bodies read and that have changed before.
        known_guards: all guards in force; None if `guard_set` has to collect them.
        n_traced: number of traces of bodies.
        n_renewed: number of times that guards failed.
    """

    def __init__(
        self,
        sum_of: Callable[[], Entry],
        renew: Callable[[Entry, Any, Any], None],
        make_portable: Callable[[], Any] | None = None,
    ) -> None:
        self.types = TypeTable(make_portable)
        self.weight_names: dict[int, str] = {}
        self._named: Mapping[str, Parameter] = {}
        self.n_traced = self.n_renewed = 0
        self.lives = Lives()
        self._sum_of, self._renew_entry = sum_of, renew
        self._specializations: dict[Hashable, Specialization] = {}
        self._of_entry: dict[Entry, list[Specialization]] = {}
        self._serial = count()
        self.known_guards: GuardSet | None = None

    def specialization_of(self, entry: Entry, keys: dict[str, Key], lengths: tuple[int, ...]) -> Specialization:
        """Return the specialization for calls with these keys; trace the cell if it, or these lengths, are new.

        Args:
            lengths: lengths of the list arguments.

        Raises:
            NeedsLength: the type depends on the length of a list.
        """
        identity = (entry.identity, tuple(keys.items()))
        specialization = self._specializations.get(identity)
        if specialization is None:
            specialization = Specialization(entry, keys)
        if specialization.current is None:
            tracer, body = self._trace_first(specialization, lengths)
            if tracer.resolved:
                # The body has given the shapes of elements of empty lists. The call belongs to the specialization for
                # such elements, which calls with other lengths share.
                groups = count()
                keys = {name: _resolve(key, tracer.resolved, groups) for name, key in keys.items()}
                return self.specialization_of(entry, keys, lengths)
            if identity not in self._specializations:
                self._specializations[identity] = specialization
                self._of_entry.setdefault(entry, []).append(specialization)
            with self.types.growing.lock:
                self._put(specialization, self._keep(specialization, body))
        elif specialization.lengths.of(lengths) not in specialization.lengths.found:
            self._add_lengths(specialization, specialization.current, lengths)
        return specialization

    def _trace_first(self, specialization: Specialization, lengths: tuple[int, ...]) -> tuple[Tracer, Body]:
        """Trace a body for the first time; twice, for two lengths, if it iterates over lists.

        One of these traces cuts long lists to a few elements. A derivative is traced only for the given lengths, for
        which its cell was traced too.
        """
        short = tuple(min(n, FEW) for n in lengths)
        if short != lengths:
            with suppress(Exception):  # if the body needs more elements, there is no short trace
                tracer, body = self._trace(specialization, short)
                other = self._trace(specialization, lengths)[1]
                if body.lengths.walked and body.content == other.content:
                    specialization.example = short
                    return tracer, _join(body, other)
        specialization.example = lengths
        tracer, body = self._trace(specialization, lengths)
        if body.lengths.walked and not tracer.resolved and not specialization.entry.is_derivative:
            body = _join(body, self._trace_longer(specialization, body, tuple(n + 1 for n in lengths)))
        return tracer, body

    def _trace_longer(self, specialization: Specialization, body: Body, lengths: tuple[int, ...]) -> Body:
        """Trace a body for longer lists than in any call; NeedsLength if it raises an error for them."""
        try:
            return self._trace(specialization, lengths)[1]
        except NeedsLength:
            raise
        except Exception as error:  # may come from the user's code, such as a strict zip
            raise NeedsLength(body.lengths.walked[0], f"fails if it is longer ({error})") from error

    def _add_lengths(self, specialization: Specialization, current: Trace, lengths: tuple[int, ...]) -> None:
        """Trace a body for other lengths of its lists; NeedsLength unless that gives the same program."""
        body = _join(current.body, self._trace(specialization, lengths)[1])
        with self.types.growing.lock:
            self._put(specialization, current._replace(body=body))

    def keep_products(self, specialization: Specialization, numbers: Iterable[int]) -> dict[int, int]:
        """Let the nodes of a specialization keep some of their products; return the output number of each kept product.

        The type keeps its number, so existing graphs stay valid.
        """
        current, new = specialization.current, [number for number in numbers if number not in specialization.kept]
        if new and current is not None:
            specialization.kept += new
            body = replace(current.body, program=keep_products(current.node_type.program, specialization.kept))
            node_type = replace(current.node_type, program=body.program, trace=next(self._serial))
            specialization.traces = []  # the others do not keep these products
            specialization.numbers[body.signature] = node_type.number
            with self.types.growing.lock:
                self._put(specialization, Trace(node_type, body))
        return {
            number: output
            for output, number in enumerate(specialization.kept, len(specialization.node_type.program.results))
        }

    @property
    def specializations(self) -> list[Specialization]:
        return list(self._specializations.values())

    def keys_of(self, entry: Entry, most: int) -> list[dict[str, Key]]:
        """Return the keys of an entry's most recent calls, up to a limit."""
        return [specialization.keys for specialization in self._of_entry.get(entry, [])[-most:]]

    # Once per call.

    @property
    def guard_set(self) -> GuardSet:
        guard_set = self.known_guards
        if guard_set is None:
            with self.types.growing.lock:  # otherwise traces that another thread makes meanwhile would be missing
                guard_set = self.known_guards = GuardSet(self._guards())
        return guard_set

    def name_weights(self, parameters: Mapping[str, Parameter]) -> None:
        """Store the names of parameters, unless `parameters` is the dict of the last call."""
        if parameters is not self._named:
            self.weight_names, self._named = {id(p): name for name, p in parameters.items()}, parameters

    def changes(self) -> str:
        """Describe all changes since the traces, for messages."""
        return _describe(differences(self._guards()))

    def renew(self) -> None:
        """Replace traces whose guards fail, and retry failed bodies that read something that has changed."""
        self.n_renewed += 1
        for specialization in list(self._specializations.values()):
            if specialization.current is not None:
                if not specialization.current.holds():
                    self._renew(specialization, specialization.current)
            elif not all(guard.holds() for guard in specialization.failed):
                self._renew(specialization, specialization.traces[-1] if specialization.traces else None)
        self.known_guards = None

    def forget(self, gone: set[int], bound: set[int]) -> set[int]:
        """Drop traces that read removed objects, and specializations for these objects; return the retired types.

        Cells that read removed objects are retraced; graphs with calls of them raise a GraphError.

        Args:
            gone: `id`s of the removed objects.
            bound: `id`s of rebound parameters, whose old tensors are released.
        """
        retired = set[int]()
        for identity, specialization in list(self._specializations.items()):
            current, given = specialization.current, [x for key in specialization.keys.values() for x in _statics(key)]
            if specialization.entry.uses(gone) or any(not gone.isdisjoint(ids_in(x)) for x in given):
                del self._specializations[identity]
                self._of_entry[specialization.entry].remove(specialization)
                self.types.forget({trace.node_type.trace for trace in specialization.traces})
                retired.update(specialization.numbers.values())
                # Forms refer to the specialization, which must not keep the objects alive.
                specialization.keys, specialization.traces, specialization.current = {}, [], None
                specialization.failed = ()
                if current is not None:
                    self.types.retire(current.node_type.number, _replaced(current.node_type))
                continue
            before = {trace.node_type.trace for trace in specialization.traces}
            specialization.traces = [trace for trace in specialization.traces if not _reads(trace, gone)]
            if current is not None and _reads(current, gone | bound):
                self._renew(specialization, current)
                # The others may read rebound parameters too, and would keep the old tensors alive.
                specialization.traces = specialization.traces[-1:]
            self.types.forget(before - {trace.node_type.trace for trace in specialization.traces})
        self._of_entry = {
            entry: specializations for entry, specializations in self._of_entry.items() if specializations
        }
        self.known_guards = None
        return retired

    def _guards(self) -> list[Guard]:
        """Return all active guards, including those of bodies that could not be retraced."""
        specializations = list(self._specializations.values())
        return [guard for f in specializations for guard in (f.failed if f.current is None else f.current.body.guards)]

    def _renew(self, specialization: Specialization, before: Trace | None) -> None:
        """Replace the current trace of a specialization; `before` is the previous one, None if all were dropped."""
        changed = differences(before.body.guards) if before is not None else []
        known = next((trace for trace in reversed(specialization.traces) if trace.holds()), None)
        error: Exception | None = None
        body: Body | None = None
        if known is None:
            # Before the body is retraced, so that numbers that have changed become inputs of the new trace.
            self.lives.changing |= {difference.key for difference in changed if difference.is_numeric}
            try:
                body = self._trace(specialization, specialization.example)[1]
            except Exception as failed:  # raised again when the cell is called; graphs with this type are refused
                error = failed
        with self.types.growing.lock:
            self._put(
                specialization,
                self._keep(specialization, body) if body is not None else known,
                _reason(specialization, before, error),
            )
            self._explain_again(specialization, before, error)

    def _explain_again(self, specialization: Specialization, before: Trace | None, error: Exception | None) -> None:
        """Set the reasons why outdated types of a specialization differ, except the type of the previous trace."""
        kept = {trace.node_type.number: trace for trace in specialization.traces}
        explained = set() if before is None else {before.node_type.number}
        for number in ({*specialization.numbers.values()} - explained) & self.types.outdated.keys():
            self.types.retire(number, _reason(specialization, kept.get(number), error))

    def _put(self, specialization: Specialization, trace: Trace | None, why: str = "") -> None:
        """Put a trace in force; None if the body could not be retraced."""
        entry = specialization.entry
        before, old = self._numbers(entry) if why else (), specialization.number
        specialization.current = trace
        # Changed in place, because forms hold this object.
        specialization.lengths.found.clear()
        if trace is not None:
            specialization.failed = ()
            specialization.lengths.walked = trace.body.lengths.walked
            specialization.lengths.found |= trace.body.lengths.found
            specialization.numbers[trace.body.signature] = trace.node_type.number
            others = (t for t in specialization.traces if t.body.content != trace.body.content)
            specialization.traces = [*others, trace][-MOST_TRACES:]
            self.types.put(trace.node_type)
        if old not in (-1, specialization.number):
            self.types.retire(old, why)
        if why and before != self._numbers(entry):
            self._renew_entry(entry, before, self._numbers(entry))
        # A first trace only adds guards. Otherwise, those of the previous trace must go.
        if old == -1 and trace is not None and self.known_guards is not None:
            self.known_guards = self.known_guards.extended(trace.body.guards)
        else:
            self.known_guards = None

    def _numbers(self, entry: Entry) -> tuple[int, ...]:
        return tuple(specialization.number for specialization in self._of_entry.get(entry, ()))

    # Tracing.

    def _trace(self, specialization: Specialization, lengths: tuple[int, ...]) -> tuple[Tracer, Body]:
        """Trace a body. Guards of state that the body changes, such as a counter, hold its value after the trace."""
        # A guard that held before the trace and fails after it was changed by the body itself, so it takes the new
        # value. One that failed before must keep failing, so that `renew` replaces the traces that it belongs to.
        guard_set = self.guard_set
        held = None if guard_set.holds() else [*filter(HOLDS, self._guards())]
        tracer, body = self._trace_body(specialization, lengths)
        if _refuses_changes(specialization.entry) and (
            changed := [guard for guard in body.guards if not guard.holds()]
        ):
            tracer, body = self._trace_unchanging(specialization, lengths, body, differences(changed))
        if held is None and not guard_set.holds():
            held = self._guards()
        for guard in (*(held or ()), *body.guards):
            if not guard.holds():
                guard.retake()
        if held is not None:
            self.known_guards = None
        return tracer, body

    def _trace_unchanging(
        self, specialization: Specialization, lengths: tuple[int, ...], before: Body, changed: Sequence[Difference]
    ) -> tuple[Tracer, Body]:
        """Retrace a body that changed state that it reads; GraphError unless it is stable now.

        A body that caches its first result, such as a table of angles, changes nothing in the second run. The programs
        of bodies run by another library cannot be compared, so there only arrays may change, which hooks recompute.
        """
        tracer, body = self._trace_body(specialization, lengths)
        is_same = body.content == before.content
        if not is_same and any(body.program.vars[i].source.op.once for i in body.program.instructions):  # type: ignore
            is_same = body.signature == before.signature and all(map(_is_of_arrays, changed))
        if not is_same or not all(guard.holds() for guard in body.guards):
            raise GraphError(
                f"cell {specialization.entry.name!r} must not change state that it reads, because its body is "
                f"traced once for all its calls, got: {_describe(changed)}; change it outside cells, or pass it as an "
                f"argument."
            )
        return tracer, body

    def _trace_body(self, specialization: Specialization, lengths: tuple[int, ...]) -> tuple[Tracer, Body]:
        """Trace a body with symbolic numbers, and retrace it with constants where it needs actual numbers.

        Garbage collection is disabled: a list of thousands of elements makes so many objects that collection would
        take as long as the trace.
        """
        with tracing_lock():
            return self._trace_alone(specialization, lengths)

    def _trace_alone(self, specialization: Specialization, lengths: tuple[int, ...]) -> tuple[Tracer, Body]:
        entry, roots = specialization.entry, _roots(specialization.entry, specialization.keys)
        has_drawn = any(trace.body.program.draws for trace in specialization.traces)
        while True:
            tracer = Tracer(entry.name, self.weight_names, lengths, returns_rows=not entry.lists)
            tracker = ReadTracker(tracer.builder, self.lives, specialization.by_value)
            self.n_traced += 1
            try:
                run = _drawing(entry.run, tracer.builder) if has_drawn else entry.run
                with without_collection():
                    program, structure = tracer.trace(run, specialization.keys, tracker.tracking(roots))
            except NeedsLength as needs:
                specialization.failed = tuple(tracker.guards.values())
                needs.group = tracer.builder.argument_of(needs.group)
                raise
            except Exception as error:
                # Python code may raise any error for a symbolic number, so retry with all of them as constants.
                needed = tracer.builder.needed if isinstance(error, NeedsNumber) else set(tracker.offered)
                if not needed:
                    specialization.failed = tuple(tracker.guards.values())
                    raise
            else:
                needed = tracer.builder.needed
                if not needed:
                    walked = tuple(sorted(tracer.builder.walked))
                    _check_ties(program, walked, lengths)
                    known = Lengths(walked, {tuple(lengths[group] for group in walked)})
                    program = keep_products(program, specialization.kept)
                    return tracer, Body(program, structure, tuple(tracker.guards.values()), known)
            # The loop ends, because each round turns at least one more number into a constant.
            specialization.by_value |= {tracker.offered[live] for live in needed}

    def _keep(self, specialization: Specialization, body: Body) -> Trace:
        """Make the trace of a specialization with this body; an equal kept trace is reused with the new guards."""
        for known in specialization.traces:
            if known.body.content == body.content:
                return known._replace(body=body)
        number = specialization.numbers.get(body.signature)
        node_type = self._make_type(specialization.entry, specialization.keys, body.program, body.structure)
        if number is not None:
            node_type = replace(node_type, number=number)
        specialization.numbers[body.signature] = node_type.number
        return Trace(replace(node_type, trace=next(self._serial)), body)

    def _make_type(self, entry: Entry, keys: dict[str, Key], program: CellProgram, structure: Any) -> NodeType:
        called, sum_type = entry.identity[0].value, -1
        if called is add and (shape := _shape_of_both(keys["args"])) is not None:
            values = {"values": Key("each", None, (Key("value", shape),))}
            sum_type = self.specialization_of(self._sum_of(), values, ()).number
        elif called is SUM_N and keys["values"].kind == "each" and len(program.ports) == 1:
            sum_type = len(self.types)
        owner = entry.identity[-1].value
        return NodeType(
            len(self.types), entry.name, program, structure, tuple(keys.items()), sum_type,
            owner if isinstance(owner, Module) else None,
        )  # fmt: skip


def _check_ties(program: CellProgram, walked: Sequence[int], lengths: Sequence[int]) -> None:
    """Raise NeedsLength if a body iterates over lists of different lengths in parallel, as Python's zip allows."""
    counts = program.row_counts(lengths) if walked and program.ties else {}
    for tie in program.ties:
        together = [group for group in tie if group in walked]
        if together and counts[tie[0]] != counts[tie[1]]:
            raise NeedsLength(together[0], "iterates over it and a list of another length in parallel")


def _refuses_changes(entry: Entry) -> bool:
    """Return whether the entry belongs to a cell whose body must not change state that it reads."""
    return entry.origin[0] == "cell" and not entry.origin[1].may_change


def _is_of_arrays(change: Difference) -> bool:
    return content_of(change.before) is not None and content_of(change.now) is not None


def _drawing(run: Callable[..., Any], builder: Builder) -> Callable[..., Any]:
    """Wrap a body so that its nodes have the number of a draw even without draws, as in graphs of a trace that drew."""

    def body(arguments: Mapping[str, Any]) -> Any:
        result = run(arguments)
        builder.note_draw()
        return result

    return body


def _describe(changed: Iterable[Difference]) -> str:
    return "; ".join(dict.fromkeys(difference.description for difference in changed))


def _reads(trace: Trace, gone: set[int]) -> bool:
    """Return whether a program reads parameters, or its body read objects, with these `id`s."""
    held = [x for guard in trace.body.guards for x in (guard.holder, *guard.seen)]
    return not gone.isdisjoint(map(id, [*(weight.parameter for weight in trace.node_type.program.weights), *held]))


def _replaced(node_type: NodeType) -> str:
    """Return the reason for refusing graphs with a type that reads replaced parameters or modules."""
    names = sorted({weight.name for weight in node_type.program.weights})
    what = f"the object named {', '.join(map(repr, names))}" if names else "the module of the cell"
    return f"since {node_type.name!r} was recorded, {what} has been replaced"


def _reason(specialization: Specialization, before: Trace | None, error: Exception | None) -> str:
    """Explain why a trace (None if dropped) is not current: the changes, and the result of retracing the body."""
    if before is None:
        return f"state that cell {specialization.entry.name!r} reads has changed since, and it {_outcome(error)}"
    return f"{_describe(differences(before.body.guards))}, and cell {before.node_type.name!r} {_outcome(error)}"


def _outcome(error: Exception | None) -> str:
    has_other = error is None or isinstance(error, NeedsLength)
    return "now has a different signature" if has_other else f"can no longer be traced: {error}"


def _roots(entry: Entry, keys: Mapping[str, Key]) -> list[tuple[str, Any]]:
    """Return the objects that a body receives (the cell, its owner, static arguments), each with a description."""
    given = [*(static.value for static in entry.identity), *(x for key in keys.values() for x in _statics(key))]
    reads = [x.reads.items() for x in given if isinstance(x, Cell)]
    return [*(("an argument", x) for x in given), *chain.from_iterable(reads)]


def _statics(key: Key) -> list[Any]:
    if key.kind == "static":
        return [key.detail.value]
    return [x for child in key.children for x in _statics(child)]


def _join(known: Body, other: Body) -> Body:
    """Join traces of a body for different lengths of lists; NeedsLength if the programs differ."""
    if known.content != other.content:
        raise NeedsLength(known.lengths.walked[0], "computes something else if it is longer")
    guards = {guard.key: guard for guard in (*known.guards, *other.guards)}
    lengths = Lengths(known.lengths.walked, known.lengths.found | other.lengths.found)
    return replace(known, guards=tuple(guards.values()), lengths=lengths)


def _content(program: CellProgram) -> Hashable:
    """Return a key that is equal for programs with the same instructions."""
    values = tuple((source_key(v.source), v.shape, v.domain) for v in program.vars)
    return values, program.outputs, program.ties, program.draws


def _resolve(key: Key, resolved: Mapping[int, Key], groups: Any) -> Key:
    """Add the elements of empty lists, which the body's `shape=` gives, to a key; arrays of n rows count as groups."""
    if key.kind in ("each", "rows"):
        element = resolved.get(next(groups))
        return key if element is None else Key("each", None, (element,))
    return replace(key, children=tuple(_resolve(child, resolved, groups) for child in key.children))


def _shape_of_both(key: Key) -> tuple[int, ...] | None:
    """Return the shape of two values of one shape; None for any other arguments."""
    kinds = {child.kind for child in key.children}
    shapes = {child.detail for child in key.children}
    return shapes.pop() if kinds == {"value"} and len(shapes) == 1 else None
