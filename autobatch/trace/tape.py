"""The tape: what a recording logs while a function runs, and the calls of derivatives that are recorded from it.

The log of a recording is a list of calls. Read backwards it gives the gradients of what the function returned: for each
call that they depend on, a call of another type is recorded, such as "gradient of merge". It takes what the call took
and the gradients of its results, and gives those of its arguments. Read forwards the log gives tangents in the same
way. The body of such a type runs the body of the cell once more and then the pullbacks of its ops. It is a cell like
any other, which is scheduled, placed, fused, and differentiated again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from autobatch.graph.words import OUTPUT_BITS
from autobatch.ir.arguments import Key, Static
from autobatch.ir.builder import Builder, Traced
from autobatch.ir.passes.autodiff import of_node, pull_back, push_forward
from autobatch.ir.program import CellProgram, Instruction, Port
from autobatch.ops.operators import OPS, STAGE
from autobatch.params.parameter import Parameter
from autobatch.trace.decode import EACH, ID, ROWS, VALUE, WORDS
from autobatch.trace.entries import Entry
from autobatch.trace.forms import Form, Item, code_of
from autobatch.trace.handles import ROW_BIT, Rows, Value
from autobatch.trace.ragged import Ragged
from autobatch.trace.tracer import collect_outputs

GRADIENT, TANGENT = "gradient", "tangent"
NOTHING = "nothing"


class Pattern(NamedTuple):
    """Which derivatives of a cell a type computes.

    Attributes:
        kind: "gradient" or "tangent".
        outputs: the results of the cell, by number, that have gradients, or that shall have tangents.
        leaves: those of the arguments that shall have gradients, or that have tangents.
        parameters: likewise, parameters that the cell reads.
    """

    kind: str
    outputs: tuple[int, ...]
    leaves: tuple[int, ...]
    parameters: tuple[Parameter, ...]

    def argument(self, cell: str, what: object) -> str:
        """The name of the argument that is the derivative of a result, a leaf or a parameter of a cell."""
        return f"{self.kind} of {what} of {cell}"


def derived_entry(entry: Entry, pattern: Pattern) -> Entry:
    """What is called for the derivatives of the calls of an entry."""

    def run(arguments: Mapping[str, Any]) -> dict[Any, Any]:
        return (_pull if pattern.kind == GRADIENT else _push)(entry, pattern, arguments)

    identity = (Static(pattern), *entry.identity)
    name, origin = f"{pattern.kind} of {entry.name}", ("derivative", entry.origin, pattern)
    return Entry(name, identity, entry.signature, run, entry.is_static, origin)


def _pull(entry: Entry, pattern: Pattern, arguments: Mapping[str, Any]) -> dict[Any, Any]:
    """The gradients of a cell's arguments and parameters, by leaf or by the parameter's place, as far as they exist."""
    builder, results, variables = _again(entry, pattern, arguments)
    gradients = [(results[number], _given(entry, pattern, number, arguments)) for number in pattern.outputs]
    return _give(builder, variables, pull_back(builder, gradients, list(variables.values())))


def _push(entry: Entry, pattern: Pattern, arguments: Mapping[str, Any]) -> dict[Any, Any]:
    """The tangents of a cell's results, by number, as far as they exist."""
    builder, results, variables = _again(entry, pattern, arguments)
    tangents = [(index, _given(entry, pattern, what, arguments)) for what, index in variables.items()]
    wanted = {number: results[number] for number in pattern.outputs}
    return _give(builder, wanted, push_forward(builder, tangents, list(wanted.values())))


def _again(
    entry: Entry, pattern: Pattern, arguments: Mapping[str, Any]
) -> tuple[Builder, list[int], dict[Any, int]]:
    """Run the body of a cell once more.

    Returns:
        The builder, the values of the results, and those of leaves and parameters that a pattern names.
    """
    builder: Builder = STAGE.current
    outputs = list[Any]()
    collect_outputs(entry.run(arguments), outputs)
    results = [builder.wrap(output).index for output in outputs]
    ports = {v.source.leaf: i for i, v in enumerate(builder.vars) if isinstance(v.source, Port)}
    variables: dict[Any, int] = {leaf: ports[leaf] for leaf in pattern.leaves}
    variables |= {f"parameter {n}": builder.wrap(p).index for n, p in enumerate(pattern.parameters)}
    return builder, results, variables


def _given(entry: Entry, pattern: Pattern, what: object, arguments: Mapping[str, Any]) -> Traced:
    """A derivative that the call is given."""
    x = arguments[pattern.argument(entry.name, what)]
    return x.row if isinstance(x, Ragged) else STAGE.current.wrap(x)


def _give(builder: Any, wanted: Mapping[Any, int], found: Sequence[Traced | None]) -> dict[Any, Any]:
    """Derivatives by name; rows where what they are of has rows."""
    given: dict[Any, Any] = {}
    for (what, index), x in zip(wanted.items(), found, strict=True):
        if x is not None:
            given[what] = Ragged(builder, x.index) if builder.vars[index].domain >= 0 else of_node(x)
    return given or {NOTHING: 0.0}


class Call(NamedTuple):
    """A call on a tape.

    Attributes:
        form: its number; number: of the handle that it returned.
        parts: what the form logged, each with where it begins and how many elements or rows it has.
        floats: where its float attributes begin.
    """

    form: int
    number: int
    parts: list[tuple[Item, int, int]]
    floats: int


class Step:
    """Records the calls of one derivative of the calls of one form.

    Args:
        calls: of the recording; form: the number of the form.
        given: the keys of the derivatives that calls are given, by name.
        lengths: of the lists of a call.

    Attributes:
        results: what it gives derivatives of, by place.
    """

    def __init__(
        self, calls: Any, form: int, pattern: Pattern, given: Mapping[str, Key], lengths: Sequence[int]
    ) -> None:
        base, of = calls.families[form], calls.forms[form]
        self._calls, self.given = calls, given
        self.family = calls.family_of(calls.derived(base.entry, pattern), {**base.keys, **given}, lengths)
        self._type, self._program = self.family.number, self.family.node_type.program
        leaves = {v.source.name: v.source.leaf for v in self._program.vars if isinstance(v.source, Port)}
        own = {
            name: Item(EACH if key.kind == "rows" else VALUE, ((leaves[name],),))
            for name, key in given.items()
            if name in leaves
        }
        self._own, self._ints, self._floats = list(own), *(
            [(item, item.is_needed(self._program)) for item in items] for items in (of.ints, of.floats)
        )
        needed = [[item for item, is_needed in items if is_needed] for items in (self._ints, self._floats)]
        self._form = calls.add_form(self.family, (*needed[0], *own.values()), needed[1])
        self.results = [what for what in self.family.node_type.structure.labels if what != NOTHING]
        self._passed = {
            place: name
            for place, index in enumerate(self._program.outputs)
            if (name := _passed(self._program.vars, index)) in given
        }
        domains = [self._program.vars[index].domain for index in self._program.outputs]
        self._rows = [(place, group) for place, group in enumerate(domains) if group >= 0]

    def serves(self, lengths: Sequence[int]) -> bool:
        """Whether it is right for a call with lists of these lengths."""
        known = self.family.lengths
        return self.family.number == self._type and (not known.walked or known.of(lengths) in known.found)

    def record(self, tape: Tape, call: Call, given: Mapping[str, Any], lengths: Sequence[int]) -> list[Any]:
        """Record a call.

        Args:
            given: derivatives by name: values, or sequences of such with one for each row.
            lengths: of the lists of the call.

        Returns:
            The results: likewise, but a value is also what all rows have.
        """
        places = range(len(self.results))
        if all(place in self._passed for place in places):
            return [given[self._passed[place]] for place in places]
        made = self._log(tape, call, given, lengths)
        return [given[self._passed[place]] if place in self._passed else made[place] for place in places]

    def _log(self, tape: Tape, call: Call, given: Mapping[str, Any], lengths: Sequence[int]) -> Any:
        made, log = self._calls.handles.take(self._form), self._calls.log
        log.append(made[0].ref)
        for (item, at, n), (_, is_needed) in zip(call.parts, self._ints, strict=True):
            if is_needed:
                log += tape.log[at : at + _width(item, n)]
        for name in self._own:
            x = given[name]
            log += (x.ref,) if _is_single(x) else (len(x), *_refs(x))
        at = call.floats
        for item, is_needed in self._floats:
            size = _size(item, lengths)
            if is_needed:
                self._calls.floats.extend(tape.floats[at : at + size])
            at += size
        if self._rows:
            new = [len(given[name]) for name, key in self.given.items() if key.kind == "rows"]
            counts = self._program.row_counts([*lengths, *new])
            for place, group in self._rows:
                made[place].resize(counts[group])
        return made


class Tape:
    """The calls that a recording has logged since some time.

    Args:
        calls: of the recording.
        log, floats: what they were, when the tape began.
    """

    def __init__(self, calls: Any, log: int, floats: int) -> None:
        self._calls, self.log, self.floats = calls, calls.log[log:], calls.floats[floats:]
        self._list: list[Call] = []
        at = n_floats = 0
        while at < len(self.log):
            number = self.log[at] >> OUTPUT_BITS
            form = calls.handles.form_of[number]
            parts, at = _read(calls.forms[form], self.log, at + 1)
            self._list.append(call := Call(form, number, parts, n_floats))
            lengths = self._lengths(call)
            n_floats += sum(_size(item, lengths) for item in calls.forms[form].floats)

    def gradients(
        self, seeds: Iterable[tuple[Any, Any]], wanted: Iterable[Any], parameters: Sequence[Parameter]
    ) -> Gradients:
        """Record the gradients of some values, and of parameters.

        Args:
            seeds: results, each with its gradient: values, or `Rows`.
            wanted: values that only calls on the tape read; `Rows` too.
        """
        found, depends = Gradients(self._calls), {_number(ref) for x in wanted for ref in _refs(x)}
        for result, gradient in seeds:
            for ref, own in zip(_refs(result), gradient if isinstance(gradient, Rows) else [gradient], strict=True):
                found.parts[ref].append(own)
        reading, trainable = [], {id(parameter) for parameter in parameters}
        for call in self._list:
            program = self._calls.families[call.form].node_type.program
            leaves = tuple(self._leaves(call, program, depends))
            read = tuple(p for p in program.parameters if id(p) in trainable)
            if leaves or read:
                depends.add(call.number)
                reading.append((call, leaves, read))
        for call, leaves, read in reversed(reading):
            self._pull(call, leaves, read, depends, found)
        return found

    def tangents(
        self, seeds: Iterable[tuple[Any, Any]], parameters: Sequence[tuple[Parameter, Any]]
    ) -> dict[int, Any]:
        """Record the tangents of all that depends on some values and parameters; by ref.

        Args:
            seeds: values that only calls on the tape read, or `Rows`, each with its tangent.
            parameters: each with its tangent, a value or a parameter.
        """
        found: dict[int, Any] = {}
        for x, tangent in seeds:
            found.update(zip(_refs(x), tangent if isinstance(tangent, Rows) else [tangent], strict=True))
        of_parameter = {id(parameter): tangent for parameter, tangent in parameters}
        for call in self._list:
            program = self._calls.families[call.form].node_type.program
            leaves = tuple(self._leaves(call, program, {_number(ref) for ref in found}))
            read = tuple(p for p in program.parameters if id(p) in of_parameter)
            if leaves or read:
                self._push(call, leaves, [(p, of_parameter[id(p)]) for p in read], found)
        return found

    def _pull(
        self, call: Call, leaves: tuple[int, ...], read: tuple[Parameter, ...], depends: set[int], found: Gradients
    ) -> None:
        program = self._calls.families[call.form].node_type.program
        lengths, given = self._lengths(call), dict[int, Any]()
        for output in program.float_outputs:
            refs = self._results(call, program, output, lengths)
            if not found.parts.keys().isdisjoint(refs):
                shape = program.vars[program.outputs[output]].shape
                parts = [self._calls.zeros(shape) if (g := found.total(ref)) is None else g for ref in refs]
                given[output] = parts if program.vars[program.outputs[output]].domain >= 0 else parts[0]
        if not given:
            return
        pattern = Pattern(GRADIENT, tuple(given), leaves, read)
        for what, x in self._derive(call, pattern, given, lengths):
            if isinstance(what, str):
                found.of_parameters[id(read[int(what.split()[-1])])].append(x)
                continue
            for row, ref in enumerate(self._refs_of(call, what)):
                if _number(ref) in depends:
                    found.parts[ref].append(x if _is_single(x) else x[row])

    def _push(
        self, call: Call, leaves: tuple[int, ...], read: Sequence[tuple[Parameter, Any]], found: dict[int, Any]
    ) -> None:
        program = self._calls.families[call.form].node_type.program
        lengths, given = self._lengths(call), dict[Any, Any]()
        shapes = {v.source.leaf: (v.shape, v.domain) for v in program.vars if isinstance(v.source, Port)}
        for leaf in leaves:
            shape, domain = shapes[leaf]
            parts = [found[ref] if ref in found else self._calls.zeros(shape) for ref in self._refs_of(call, leaf)]
            given[leaf] = parts if domain >= 0 else parts[0]
        given |= {f"parameter {n}": tangent for n, (_, tangent) in enumerate(read)}
        pattern = Pattern(TANGENT, program.float_outputs, leaves, tuple(p for p, _ in read))
        for output, x in self._derive(call, pattern, given, lengths):
            refs = self._results(call, program, output, lengths)
            found.update((ref, x if _is_single(x) else x[row]) for row, ref in enumerate(refs))

    def _derive(
        self, call: Call, pattern: Pattern, given: Mapping[Any, Any], lengths: Sequence[int]
    ) -> Iterable[tuple[Any, Any]]:
        """Record one call; its results with what they are derivatives of."""
        cell = self._calls.families[call.form].entry.name
        named = {pattern.argument(cell, what): x for what, x in given.items()}
        shared = [id(x) for x in (*pattern.parameters, *given.values()) if isinstance(x, Parameter)]
        steps, key = self._calls.steps, (call.form, *pattern[:3], *shared)
        step = steps.get(key)
        if step is None or not step.serves(lengths):
            keys = {name: _key_of(x) for name, x in named.items()}
            n_rows = [len(x) for name, x in named.items() if keys[name].kind == "rows"]
            step = steps[key] = Step(self._calls, call.form, pattern, keys, (*lengths, *n_rows))
        return zip(step.results, step.record(self, call, named, lengths), strict=True)

    def _lengths(self, call: Call) -> list[int]:
        """The lengths of the lists of a call, by variadic group."""
        lengths = [0] * self._calls.families[call.form].n_lists
        for item, _, n in call.parts:
            if item.kind in (EACH, ROWS):
                lengths[item.group] = n
        return lengths

    def _leaves(self, call: Call, program: CellProgram, numbers: set[int]) -> Iterable[int]:
        """The leaves of a call's arguments that are values of these handles, and may have derivatives."""
        for item, at, n in call.parts:
            if item.kind in (EACH, VALUE):
                refs, n_parts = self.log[at + (item.kind == EACH) : at + _width(item, n)], len(item.leaves)
                for part, leaves in enumerate(item.leaves):
                    if not numbers.isdisjoint(map(_number, refs[part::n_parts])):
                        yield from (leaf for leaf in leaves if leaf in program.float_leaves)

    def _refs_of(self, call: Call, leaf: int) -> list[int]:
        """The refs that a leaf of a call's arguments stands for: one, or one for each element of a list."""
        for item, at, n in call.parts:
            for part, leaves in enumerate(item.leaves):
                if leaf in leaves:
                    refs = self.log[at + (item.kind == EACH) : at + _width(item, n)]
                    return [ref + leaves.index(leaf) for ref in refs[part :: len(item.leaves)]]
        raise KeyError(leaf)

    def _results(self, call: Call, program: CellProgram, output: int, lengths: Sequence[int]) -> Sequence[int]:
        """The refs of a result: one, or one for each row."""
        ref, group = (call.number << OUTPUT_BITS) + output, program.vars[program.outputs[output]].domain
        return [ref] if group < 0 else _rows_from(ref, program.row_counts(lengths)[group])


class Gradients:
    """The parts of gradients that have been recorded.

    Attributes:
        parts: by ref; of_parameters: by the `id` of the parameter.
    """

    def __init__(self, calls: Any) -> None:
        self._calls = calls
        self.parts: dict[int, list[Any]] = defaultdict(list)
        self.of_parameters: dict[int, list[Any]] = defaultdict(list)

    def total(self, ref: int) -> Any:
        """The gradient of a value; None if there is none."""
        return self._sum(self.parts[ref]) if ref in self.parts else None

    def of_parameter(self, parameter: Parameter) -> Any:
        """The gradient of a parameter; None if there is none."""
        return self._sum(self.of_parameters[id(parameter)]) if id(parameter) in self.of_parameters else None

    def _sum(self, parts: list[Any]) -> Any:
        if len(parts) > 1:
            parts[:] = [self._calls.sum_of(parts)]
        return parts[0]


def _passed(vars: Sequence[Any], index: int) -> str:
    """The name of the port that a value is, or that it is at each edge; else empty."""
    source = vars[index].source
    if isinstance(source, Instruction) and source.op is OPS["spread"]:
        source = vars[source.args[0]].source
    return source.name if isinstance(source, Port) else ""


def _read(form: Form, log: Sequence[int], at: int) -> tuple[list[tuple[Item, int, int]], int]:
    """Where the parts of a call lie in the log, from `at` on; and where they end."""
    parts = []
    for item in form.ints:
        n = log[at] if item.kind in (EACH, ROWS) else 1
        parts.append((item, at, n))
        at += _width(item, n)
    return parts, at


def _width(item: Item, n: int) -> int:
    """How many ints an item of `n` elements has in the log."""
    if item.kind == VALUE:
        return 1
    return item.size if item.kind == WORDS else 1 + n * (item.size if item.kind == ROWS else len(item.leaves))


def _size(item: Item, lengths: Sequence[int]) -> int:
    """How many floats an item has."""
    return item.size * (lengths[item.group] if item.kind == ROWS else 1)


def _number(ref: int) -> int:
    """The number of the handle of a ref."""
    return ref >> OUTPUT_BITS & ID


def _rows_from(ref: int, n: int) -> range:
    return range(ref, ref + (n << ROW_BIT), 1 << ROW_BIT)


def _is_single(x: Any) -> bool:
    """Whether a derivative is one value, and not one for each row."""
    return isinstance(x, Value) and not isinstance(x, Rows)


def _refs(x: Any) -> Sequence[int]:
    """The refs of a value, or of values."""
    if isinstance(x, Rows):
        return x.refs
    return [x.ref] if isinstance(x, Value) else [part.ref for part in x]


def _key_of(x: Any) -> Key:
    """The key of a derivative: of a value, of values by row, or of a parameter."""
    if isinstance(x, Parameter):
        return Key("static", Static(x))
    return x.key if isinstance(x, Value) else Key("rows", None, (x[0].key,))
