"""The tape: what a recording logs while a function runs, and the calls of derivatives that are recorded from it.

The log of a recording is a list of calls. Read backwards it gives the gradients of what the function returned: for each
call that they depend on, a call of another type is recorded, such as "gradient of merge". It takes what the call took
and the gradients of its results, and gives those of its arguments. Read forwards the log gives tangents in the same
way. What is recorded is logged like any call: scheduled, placed, fused, and differentiated again.

All values are refs here, the ints that stand for them in the log (`autobatch.trace.handles`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, repeat
from typing import Any, NamedTuple, TypeAlias

from autobatch.graph.words import MOST_OUTPUTS, OUTPUT, OUTPUT_BITS
from autobatch.ir.arguments import Key, Static
from autobatch.ir.flows import products_of
from autobatch.ir.program import NODE, Port
from autobatch.ops.define import Shape
from autobatch.params.parameter import Parameter
from autobatch.trace.decode import EACH, ID, ROWS, VALUE, WORDS
from autobatch.trace.derived import GRADIENT, NOTHING, TANGENT, Pattern, passed_port, product, product_argument
from autobatch.trace.forms import Form, Item
from autobatch.trace.handles import ROW_BIT, Rows, Value
from autobatch.trace.traces import Family

Refs: TypeAlias = int | Sequence[int]
"""A value, or one for each row."""
Given: TypeAlias = Mapping[Any, Any]
"""Derivatives that a call is given: of each result, leaf or parameter, values that add up to it, or one for each row.

The tangent of a parameter may be a parameter.
"""


class Layout:
    """Where the parts of the calls of a form lie in the log.

    Args:
        form: of the calls; family: the cell and arguments that it is of.

    Attributes:
        offsets: of the items of a call, and its width; none if lists or rows have any number.
        places: of the items that have leaves which are values of floats, with these: for each part of the item.
        where: for each such leaf, its item, part, and the output behind the ref.
        outputs: those that are floats, each with its number, shape and variadic group: results by number, and products
            that nodes keep by name.
        ports: by leaf, with the shape and variadic group.
    """

    def __init__(self, form: Form, family: Family) -> None:
        self.ints, self.floats, self.family, self.program = form.ints, form.floats, family, family.node_type.program
        items = (*form.ints, *form.floats)
        widths = (_width(item, 1) for item in form.ints)
        self.offsets = [*accumulate(widths, initial=1)] if all(item.kind in (VALUE, WORDS) for item in items) else []
        self.n_floats = sum(item.size for item in form.floats)
        own = self.program.float_leaves
        self.where = {
            leaf: (place, part, output)
            for place, item in enumerate(form.ints)
            for part, leaves in enumerate(item.leaves)
            for output, leaf in enumerate(leaves)
            if leaf in own
        }
        parts = ([[leaf for leaf in leaves if leaf in own] for leaves in item.leaves] for item in form.ints)
        self.places = [(place, leaves) for place, leaves in enumerate(parts) if any(leaves)]
        vars = self.program.vars
        names = [*range(len(self.program.results)), *map(product, family.kept)]
        self.outputs: dict[Any, tuple[int, Shape, int]] = {
            names[k]: (k, vars[o].shape, vars[o].domain)
            for k, o in enumerate(self.program.outputs)
            if k in self.program.float_outputs
        }
        ports = [vars[i] for i in self.program.ports]
        self.ports = {v.source.leaf: (v.shape, v.domain) for v in ports if isinstance(v.source, Port)}


class Call(NamedTuple):
    """A call on a tape.

    Attributes:
        form: its number; number: its own.
        at: where its items begin in the log; floats: where its float attributes begin.
        lengths: of its lists, by variadic group.
    """

    form: int
    layout: Layout
    number: int
    at: list[int]
    floats: int
    lengths: Sequence[int]


class Derivatives:
    """The parts of derivatives that have been recorded.

    Args:
        calls: of the recording.

    Attributes:
        parts: by ref, the values that add up to the derivative; of_parameters: by the `id` of the parameter.
    """

    def __init__(self, calls: Any) -> None:
        self._calls = calls
        self.parts: dict[int, list[int]] = defaultdict(list)
        self.of_parameters: dict[int, list[int]] = defaultdict(list)

    def total(self, ref: int, shape: Shape) -> int | None:
        """The derivative of a value; None if there is none."""
        return self.whole(self.parts[ref], shape) if ref in self.parts else None

    def terms(self, parts: list[int], shape: Shape) -> list[int]:
        """Values that add up to a derivative, for a plain port, which adds up what it reads.

        A batch writes its outputs one after another. Values that nodes of one type made are therefore of one output;
        others are added up here.
        """
        if len({ref & OUTPUT for ref in parts}) > 1:
            output_of: dict[int, int] = {}
            forms, form_of = self._calls.forms, self._calls.log.form_of
            for ref in parts:
                made, output = forms[form_of(ref)].code[0], ref & OUTPUT
                if output_of.setdefault(made, output) != output:
                    return [self.whole(parts, shape)]
        return parts

    def of_parameter(self, parameter: Parameter) -> int | None:
        """The derivative of a parameter; None if there is none."""
        parts = self.of_parameters.get(id(parameter))
        return None if parts is None else self.whole(parts, parameter.shape)

    def total_or_zeros(self, ref: int, shape: Shape) -> int:
        """The derivative of a value, or zeros."""
        found = self.total(ref, shape)
        if found is None:
            zeros: Value = self._calls.zeros(shape)
            found = zeros.ref
        return found

    def value(self, ref: int, shape: Shape) -> Value:
        """A value as programs have it."""
        found: Value = self._calls.handles.value(ref, shape)
        return found

    def whole(self, parts: list[int], shape: Shape) -> int:
        """The sum of values, which takes their place."""
        if len(parts) > 1:
            parts[:] = [self._calls.log.add(self._calls.sum_form(shape), (len(parts), *parts), ())]
        return parts[0]


class Step:
    """Records the calls of one derivative of the calls of one form.

    Args:
        calls: of the recording; call: the first call.
        given: the derivatives that it is given.

    Attributes:
        results: what it gives derivatives of, by place.
    """

    def __init__(self, calls: Any, call: Call, pattern: Pattern, given: Given) -> None:
        base, layout = calls.families[call.form], call.layout
        keys = {what: _key_of(layout, pattern, what, x) for what, x in given.items()}
        name = {what: pattern.argument(base.entry.name, what) for what in given}
        self._calls, self._rows_given = calls, [what for what, key in keys.items() if key.kind == "rows"]
        products = _products(base) if not calls.in_rounds else {}
        self.family = calls.family_of(
            calls.derived(base.entry, pattern),
            {**base.keys, **products, **{name[what]: key for what, key in keys.items()}},
            (*call.lengths, *(len(given[what]) for what in self._rows_given)),
        )
        self._type, self._program = self.family.number, self.family.node_type.program
        vars, outputs = self._program.vars, self._program.outputs
        leaf_of = {v.source.name: v.source.leaf for v in vars if isinstance(v.source, Port)}
        read = [what for what in given if name[what] in leaf_of]
        ints, floats = ([self._needed(item) for item in items] for items in (layout.ints, layout.floats))
        needed = [[item for item, _ in of_kind if item is not None] for of_kind in (ints, floats)]
        self._ints = [(place, columns) for place, (item, columns) in enumerate(ints) if item is not None]
        self._floats = [*zip(layout.floats, floats, strict=True)] if needed[1] else []
        kept = {product: number for number, product in enumerate(products) if product in leaf_of}
        output_of = calls.traces.keep_products(base, kept.values())
        self._kept = [output_of[number] for number in kept.values()]
        own = [Item(VALUE, ((leaf_of[product],),)) for product in kept]
        group_of = {what: len(call.lengths) + n for n, what in enumerate(self._rows_given)}
        own += [Item(EACH, ((leaf_of[name[what]],),), group=group_of.get(what, NODE)) for what in read]
        self._form = calls.add_form(self.family, (*needed[0], *own), needed[1])
        self._shapes = {what: None if what in self._rows_given else key.detail for what, key in keys.items()}
        self._own = [(what, self._shapes[what]) for what in read]
        self.results = [what for what in self.family.node_type.structure.labels if what != NOTHING]
        by_name = {passed: what for what, passed in name.items()}
        passed = [by_name.get(passed_port(vars, index)) for index in outputs]
        self._passed = [(place, what) for place, what in enumerate(passed) if what is not None]
        self._made = [place for place, what in enumerate(passed[: len(self.results)]) if what is None]
        self._rows = [(place, domain) for place in self._made if (domain := vars[outputs[place]].domain) >= 0]

    def _needed(self, item: Item) -> tuple[Item | None, list[int] | None]:
        """Find the logged part of an item (None if nothing) and the remaining columns of its rows (None for all).

        The type needs the item, or its length, for its derivatives.
        """
        is_walked = item.kind == EACH and item.group in self.family.lengths.walked
        if not is_walked and not item.is_needed(self._program):
            return None, None
        left = [n for n, leaf in enumerate(item.columns) if leaf in self._program.leaves]
        if len(left) == len(item.columns):
            return item, None
        return item._replace(size=len(left), columns=tuple(item.columns[n] for n in left)), left

    def serves(self, lengths: Sequence[int]) -> bool:
        """Whether it is right for a call with lists of these lengths."""
        known = self.family.lengths
        return self.family.number == self._type and (not known.walked or known.of(lengths) in known.found)

    def record(self, tape: Tape, call: Call, given: Given, found: Derivatives) -> list[Refs]:
        """Record a call; return its results. One that is a value is also what all rows have."""
        results: list[Refs] = [0] * len(self.results)
        for place, what in self._passed:
            shape, refs = self._shapes[what], given[what]
            results[place] = refs if shape is None else found.whole(refs, shape)
        if not self._made:
            return results
        at, words, floats = call.at, list[int](), list[float]()
        for place, columns in self._ints:
            part = tape.log[at[place] : at[place + 1]]
            words += [part[0], *_pick(part[1:], columns, call.layout.ints[place].size)] if columns is not None else part
        words += [(call.number << OUTPUT_BITS) + output for output in self._kept]
        for what, shape in self._own:
            refs = given[what]
            if shape is not None and len(refs) > 1:
                refs = found.terms(refs, shape)
            words.append(len(refs))
            words += refs
        begin = call.floats
        for item, (needed, columns) in self._floats:
            size = _size(item, call.lengths)
            if needed is not None:
                numbers = tape.floats[begin : begin + size]
                floats.extend(_pick(numbers, columns, item.size) if columns is not None else numbers)
            begin += size
        first = self._calls.log.add(self._form, words, floats)
        for place in self._made:
            results[place] = first + place
        if self._rows:
            counts = self._program.row_counts([*call.lengths, *(len(given[what]) for what in self._rows_given)])
            for place, domain in self._rows:
                results[place] = _rows(first + place, counts[domain])
        return results


def _products(base: Family) -> dict[str, Key]:
    """The products of a cell, as arguments of its derivatives."""
    vars, name = base.node_type.program.vars, base.entry.name
    found = products_of(vars, base.node_type.program.instructions)
    if len(base.node_type.program.results) + len(found) > MOST_OUTPUTS:
        return {}
    return {product_argument(number, name): Key("value", vars[index].shape) for number, index in enumerate(found)}


def _key_of(layout: Layout, pattern: Pattern, what: Any, x: Any) -> Key:
    """The key of a derivative that a call is given."""
    if isinstance(x, Parameter):
        return Key("static", Static(x))
    if pattern.kind == GRADIENT:
        _, shape, group = layout.outputs[what]
    elif isinstance(what, str):
        shape, group = pattern.parameters[int(what.split()[-1])].shape, NODE
    else:
        shape, group = layout.ports[what]
    value = Key("value", shape)
    return value if group < 0 else Key("rows", None, (value,))


class Tape:
    """The calls that a recording logs from now on, until the tape is closed.

    Args:
        calls: of the recording.
        begun: how long its log and its floats were, if it logs from some time before.

    Attributes:
        recorded: the calls on the tape, set when it is closed.
    """

    def __init__(self, calls: Any, begun: tuple[int, int] | None = None) -> None:
        self._calls = calls
        self.log, self.floats = list[int](), list[float]()
        self.recorded: list[Call] = []
        self._begun = begun or (len(calls.log), calls.log.n_floats)
        calls.open_tapes.append(self)
        calls.tapes.add(self)

    def save(self) -> None:
        """Copy what was logged, which the recording is about to forget."""
        (ints, floats), log = self._begun, self._calls.log
        self.log += log.ints(ints, len(log))
        self.floats += log.floats(floats, log.n_floats).tolist()
        self._begun = 0, 0

    def close(self) -> None:
        """Find the calls on the tape."""
        self.save()
        self._calls.open_tapes.remove(self)
        at, n_floats, form_of, layouts = 0, 0, self._calls.log.form_of, dict[int, Layout]()
        while at < len(self.log):
            number, lengths = self.log[at] >> OUTPUT_BITS, list[int]()
            form = form_of(self.log[at])
            layout = layouts.get(form) or layouts.setdefault(form, self._calls.layout(form))
            if layout.offsets:
                places, size = [at + offset for offset in layout.offsets], layout.n_floats
            else:
                places, lengths = self._read(layout, at + 1)
                size = sum(_size(item, lengths) for item in layout.floats)
            self.recorded.append(Call(form, layout, number, places, n_floats, lengths))
            at, n_floats = places[-1], n_floats + size

    def gradients(
        self, seeds: Iterable[tuple[Any, Any]], wanted: Iterable[Any], parameters: Sequence[Parameter]
    ) -> Derivatives:
        """Record the gradients of some values, and of parameters.

        Args:
            seeds: results, each with its gradient: values, or `Rows`.
            wanted: values that only calls on the tape read; `Rows` too.
        """
        found, numbers = Derivatives(self._calls), {_number(ref) for x in wanted for ref in _refs(x)}
        for result, gradient in seeds:
            for ref, part in zip(_refs(result), _refs(gradient), strict=True):
                found.parts[ref].append(part)
        reading, read = [], {id(parameter) for parameter in parameters}
        for call in self.recorded:
            leaves = self._leaves(call, numbers)
            own = tuple(p for p in call.layout.program.parameters if id(p) in read) if read else ()
            if leaves or own:
                numbers.add(call.number)
                reading.append((call, leaves, own))
        for call, leaves, own in reversed(reading):
            self._pull(call, leaves, own, found)
        return found

    def tangents(self, seeds: Iterable[tuple[Any, Any]], parameters: Sequence[tuple[Parameter, Any]]) -> Derivatives:
        """Record the tangents of all that depends on some values and parameters.

        Args:
            seeds: values that only calls on the tape read, or `Rows`, each with its tangent.
            parameters: each with its tangent, a value or a parameter.
        """
        found, numbers = Derivatives(self._calls), set[int]()
        for x, tangent in seeds:
            found.parts.update((ref, [part]) for ref, part in zip(_refs(x), _refs(tangent), strict=True))
        numbers = {_number(ref) for ref in found.parts}
        of_parameter = {
            id(p): tangent if isinstance(tangent, Parameter) else [tangent.ref] for p, tangent in parameters
        }
        for call in self.recorded:
            leaves = self._leaves(call, numbers)
            own = tuple(p for p in call.layout.program.parameters if id(p) in of_parameter) if of_parameter else ()
            if leaves or own:
                numbers.add(call.number)
                self._push(call, leaves, own, [of_parameter[id(p)] for p in own], found)
        return found

    def _pull(self, call: Call, leaves: tuple[int, ...], own: tuple[Parameter, ...], found: Derivatives) -> None:
        """Record the gradients of a call's arguments."""
        given, parts, first = dict[Any, Any](), found.parts, call.number << OUTPUT_BITS
        for what, (output, shape, group) in call.layout.outputs.items():
            ref = first + output
            if group < 0:
                if ref in parts:
                    given[what] = parts[ref]
            elif not parts.keys().isdisjoint(refs := self._rows(call, ref, group)):
                given[what] = [found.total_or_zeros(row, shape) for row in refs]
        if not given:
            return
        step = self._step(call, GRADIENT, tuple(given), leaves, own, given)
        for what, x in zip(step.results, step.record(self, call, given, found), strict=True):
            if isinstance(what, str):
                assert isinstance(x, int)
                found.of_parameters[id(own[int(what.split()[-1])])].append(x)
                continue
            refs = self._refs_of(call, what)
            for ref, part in zip(refs, repeat(x, len(refs)) if isinstance(x, int) else x, strict=True):
                parts[ref].append(part)

    def _push(
        self, call: Call, leaves: tuple[int, ...], own: tuple[Parameter, ...], along: Sequence[Any], found: Derivatives
    ) -> None:
        """Record the tangents of a call's results."""
        given: dict[Any, Any] = {f"parameter {n}": tangent for n, tangent in enumerate(along)}
        for leaf in leaves:
            shape, group = call.layout.ports[leaf]
            refs = [found.total_or_zeros(ref, shape) for ref in self._refs_of(call, leaf)]
            given[leaf] = refs if group >= 0 else [found.whole(refs, shape)]
        outputs = call.layout.outputs
        step = self._step(call, TANGENT, tuple(outputs), leaves, own, given)
        for what, x in zip(step.results, step.record(self, call, given, found), strict=True):
            output, _, group = outputs[what]
            ref = (call.number << OUTPUT_BITS) + output
            rows = [ref] if group < 0 else self._rows(call, ref, group)
            for row, part in zip(rows, repeat(x, len(rows)) if isinstance(x, int) else x, strict=True):
                found.parts[row] = [part]

    def _step(
        self, call: Call, kind: str, outputs: tuple[Any, ...], leaves: tuple[int, ...], own: tuple[Parameter, ...],
        given: Given,
    ) -> Step:  # fmt: skip
        """What records a derivative of a call."""
        shared = [id(x) for x in (*own, *given.values()) if isinstance(x, Parameter)] if own else ()
        steps, key = self._calls.steps, (call.form, kind, outputs, leaves, *shared)
        step: Step | None = steps.get(key)
        if step is None or not step.serves(call.lengths):
            step = steps[key] = Step(self._calls, call, Pattern(kind, outputs, leaves, own), given)
        return step

    def _read(self, layout: Layout, at: int) -> tuple[list[int], list[int]]:
        """Return the offsets of a call's items in the log, and the lengths of its lists.

        A list with nothing logged counts as having one element: no program needs its length, and a rerun body must not
        see an empty list, which it may treat differently.
        """
        places, lengths = [at], [1] * layout.family.n_lists
        for item in layout.ints:
            n = 1
            if item.kind in (EACH, ROWS):
                n = self.log[at]
                if item.group >= 0:
                    lengths[item.group] = n
            at += _width(item, n)
            places.append(at)
        return places, lengths

    def _leaves(self, call: Call, numbers: set[int]) -> tuple[int, ...]:
        """The leaves of a call's arguments that are values of these handles, and may have derivatives."""
        found, log, layout = list[int](), self.log, call.layout
        for place, parts in layout.places:
            at = call.at[place]
            if layout.ints[place].kind == VALUE:
                if log[at] >> OUTPUT_BITS & ID in numbers:
                    found += parts[0]
                continue
            n = len(parts)
            for part, leaves in enumerate(parts):
                refs = log[at + 1 + part : call.at[place + 1] : n] if leaves else ()
                if not numbers.isdisjoint(ref >> OUTPUT_BITS & ID for ref in refs):
                    found += leaves
        return tuple(found)

    def _refs_of(self, call: Call, leaf: int) -> Sequence[int]:
        """The refs that a leaf of a call's arguments stands for: one, or one for each element of a list."""
        place, part, output = call.layout.where[leaf]
        at, item = call.at[place], call.layout.ints[place]
        if item.kind == VALUE:
            return [self.log[at] + output]
        refs = self.log[at + 1 + part : call.at[place + 1] : len(item.leaves)]
        return [ref + output for ref in refs] if output else refs

    def _rows(self, call: Call, ref: int, group: int) -> Sequence[int]:
        """The refs of the rows of a result."""
        return _rows(ref, call.layout.program.row_counts(call.lengths)[group])


def _width(item: Item, n: int) -> int:
    """How many ints an item of `n` elements has in the log."""
    if item.kind == VALUE:
        return 1
    return item.size if item.kind == WORDS else 1 + n * (item.size if item.kind == ROWS else len(item.leaves))


def _size(item: Item, lengths: Sequence[int]) -> int:
    """How many floats an item has."""
    return item.size * (lengths[item.group] if item.kind == ROWS else 1)


def _pick(rows: Sequence[Any], columns: Sequence[int], width: int) -> list[Any]:
    """Return some columns of consecutive rows."""
    return [rows[row + column] for row in range(0, len(rows), width) for column in columns]


def _rows(ref: int, n: int) -> Sequence[int]:
    """The refs of the first n rows of an output."""
    return range(ref, ref + (n << ROW_BIT), 1 << ROW_BIT)


def _number(ref: int) -> int:
    """The number of the call that made a value."""
    return ref >> OUTPUT_BITS & ID


def _refs(x: Any) -> Sequence[int]:
    """The refs of a value, or of its rows."""
    return x.refs if isinstance(x, Rows) else [x.ref]
