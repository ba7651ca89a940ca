"""Derivatives inside programs: gradients, vector-Jacobian, Jacobian-vector and Hessian-vector products of functions.

    energy, (gradient,) = ab.value_and_grad(self.energy, wrt=lambda m: m.positions)(molecule)

A function is differentiated where it is called: in a program that is recorded, whose calls then make a `Tape`; inside
a cell, where the builder of its program continues; or in eager mode, on an `EagerTape`. The function is given stand-ins
for what it is differentiated by. Other values that it reads are constants to the derivative.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, Protocol, TypeAlias

import numpy as np

from autobatch.errors import GraphError, ShapeError
from autobatch.ir.arguments import Key, is_structure, parts_of
from autobatch.ir.builder import Builder, Traced
from autobatch.ir.passes.autodiff import of_node, pull_back, push_forward
from autobatch.ir.program import Attribute, Instruction
from autobatch.ops.define import composite, shape_of
from autobatch.ops.eager import freeze, plain_array
from autobatch.ops.indexing import lookup, scatter
from autobatch.ops.operators import OPS, STAGE, Operators, Symbol, stage
from autobatch.ops.shaping import reshape, stack
from autobatch.ops.taped import EagerTape, Taped, cast, value_on
from autobatch.ops.variadic import sum_n
from autobatch.params.parameter import Parameter
from autobatch.trace.calls import Calls
from autobatch.trace.elements import Element, NeedsLength, TracedList, map_values, values_in
from autobatch.trace.handles import Outputs, Rows, Value
from autobatch.trace.inputs import FloatInput, Held, is_float_array
from autobatch.trace.ragged import Ragged
from autobatch.trace.tape import Derivatives, Tape

Wrt: TypeAlias = Callable[..., Any] | None


class Differentiation(Protocol):
    """A function that is being differentiated, in one of the stages."""

    def stand_in(self, x: Any) -> Any:
        """What takes the place of something that the function is differentiated by."""

    def running(self) -> Any:
        """The context in which the function runs."""

    def result(self, x: Any) -> Any:
        """What the function returns, as a value; asked for in its context."""

    def given(self, result: Any) -> Any:
        """A value that the function returned, as others see it."""

    def pull(self, results: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """The gradient of everything that has a stand-in, from those of results."""

    def push(self, results: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """The tangents of results, from those of everything that has a stand-in."""


class ArrayReads:
    """The parts of a float array that are read while a function is differentiated by it.

    Args:
        array: or a part of one that another function is differentiated by.
        recording: the stage; make: makes a value that stands for a part, of any number of rows if asked for.
    """

    def __init__(self, array: Any, recording: Any, make: Callable[[Any, bool], Any]) -> None:
        self.recording, self._make = recording, make
        self.data = plain_array(getattr(array, "data", None) if isinstance(array, FloatInput) else array)
        positions = np.arange(self.data.size).reshape(self.data.shape)
        self.stand_in = FloatInput(self.data, positions, self, array)
        self.reads: list[tuple[Any, Any]] = []

    def read(self, x: FloatInput, is_ragged: bool) -> Any:
        """The value of a part, which is noted."""
        value = self._make(x.base, is_ragged)
        self.reads.append((x.positions, value))
        return value

    def gradient(self, parts: Iterable[tuple[Any, Any]]) -> Any:
        """The gradient of the array; None if there is none.

        Args:
            parts: positions that were read, each with the gradient of what was read.
        """
        shape, found = self.data.shape, list[Any]()
        for positions, g in parts:
            is_whole = np.array_equal(positions, np.arange(self.data.size).reshape(shape))
            found.append(g if is_whole else _scattered(g, positions.ravel(), shape))
        return _sum(found) if found else None

    def rows(self) -> list[list[int]] | None:
        """For each read the rows that it is, if each is one row or any number of them; else None."""
        shape, size = self.data.shape[1:], int(np.prod(self.data.shape[1:]))
        if not self.data.ndim or not size:
            return None
        found = []
        for positions, value in self.reads:
            listed = positions if isinstance(value, Rows) else positions[None]
            first = listed.reshape(len(listed), -1)[:, :1]
            if listed.shape[1:] != shape or (first % size).any():
                return None
            if not np.array_equal(listed.reshape(len(listed), -1), first + np.arange(size)):
                return None
            found.append((first // size).ravel().tolist())
        return found


@composite
def _scattered(g: Any, ids: Any, shape: Any) -> Any:
    """The gradient of an array, from that of a part of it."""
    return reshape(scatter(reshape(g, (-1,)), ids, size=int(np.prod(shape))), shape)


def _sum(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else sum_n(values)


class Recorded:
    """A function that is differentiated while a program is recorded.

    Args:
        calls: of the recording.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._variables: list[Any] = []

    def stand_in(self, x: Any) -> Any:
        """An alias of a value; for an array, what makes one of each part that is read; a parameter itself."""
        if isinstance(x, Parameter):
            self._variables.append(x)
            self._calls.lifting.forget(x)
            return x
        if isinstance(x, Value):
            self._variables.append(self._calls.alias(x))
            return self._variables[-1]
        self._variables.append(reads := ArrayReads(x, self._calls, self._read))
        return reads.stand_in

    def _read(self, part: Any, is_ragged: bool) -> Any:
        """A value of a part of an array, for the function alone."""
        if isinstance(part, FloatInput):
            return self._calls.alias(self._calls.lifting.lift(part, is_ragged=is_ragged))
        return self._calls.record_source(part, is_ragged)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within the context, the function runs; then its calls are on a tape."""
        self._tape = Tape(self._calls)
        try:
            yield
        finally:
            self._tape.close()

    def result(self, x: Any) -> Any:
        """The value itself; a number, an array or a parameter as one."""
        return self.given(x)

    def given(self, result: Any) -> Any:
        """The value itself; a number or an array as one."""
        if isinstance(result, (int, float, np.number)) and not isinstance(result, bool):
            result = np.asarray(float(result))
        return self._calls.lifting.lift(result)

    def pull(self, results: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """Record gradients; GraphError if the program is over."""
        if STAGE.current is not self._calls:
            raise GraphError("the function that ab.vjp gave is called outside of its program; call it within.")
        parameters = [x for x in self._variables if isinstance(x, Parameter)]
        values = [x for x in self._variables if isinstance(x, Value)]
        reads = [value for x in self._variables if isinstance(x, ArrayReads) for _, value in x.reads]
        seeds = [(x, self._as_rows_of(x, g)) for x, g in zip(results, gradients, strict=True)]
        tape = self._tape.gradients(seeds, [*values, *reads], parameters)
        return [self._gradient(x, tape) for x in self._variables]

    def push(self, results: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """Record tangents."""
        seeds, parameters = list[tuple[Any, Any]](), list[tuple[Parameter, Any]]()
        for x, tangent in zip(self._variables, tangents, strict=True):
            if isinstance(x, Parameter):
                own = tangent if isinstance(tangent, Parameter) else self._as_rows_of(x, tangent)
                parameters.append((x, own))
            elif isinstance(x, Value):
                seeds.append((x, self._as_rows_of(x, tangent)))
            else:
                tangent = self.given(tangent) if isinstance(tangent, Parameter) else tangent
                tangent = tangent if isinstance(tangent, Symbol) else plain_array(tangent)
                if isinstance(tangent, Rows) and x.rows() is None:
                    tangent = self._as_rows_of(None, tangent)
                seeds += [(value, self._part(tangent, x, number)) for number, (_, value) in enumerate(x.reads)]
        found = self._tape.tangents(seeds, parameters)
        return [self._along(x, found) for x in results]

    def _as_rows_of(self, x: Any, derivative: Any) -> Any:
        """A derivative of a value, which has rows, each a value, if that has some; and else is one value."""
        made = self.given(derivative)
        if isinstance(x, Rows) and not isinstance(made, Rows):
            return self._calls.handles.rows_of([made[row] for row in range(len(x))], x.row.shape)
        if isinstance(made, Rows) and not isinstance(x, Rows):
            return stack(list(made)) if len(made) else self._calls.zeros(made.shape)
        return made

    def _gradient(self, x: Any, found: Derivatives) -> Any:
        """The gradient of what has a stand-in."""
        if isinstance(x, Value):
            return self._along(x, found)

        def zeros(shape: tuple[int, ...]) -> Value:
            """Zeros that are no other value, to be differentiated by."""
            made: Value = self._calls.zeros(shape)
            found.keep(made)
            return found.value(made.ref, shape)

        if isinstance(x, Parameter):
            ref = found.of_parameter(x)
            return zeros(x.shape) if ref is None else found.value(ref, x.shape)
        rows = x.rows()
        if rows is None or not (x.reads or x.data.ndim > 1):
            pairs = [(at, ref) for positions, value in x.reads for at, ref in _pairs(positions, value)]
            gradients = [(at, found.total(ref, at.shape)) for at, ref in pairs]
            g = x.gradient([(at, found.value(ref, at.shape)) for at, ref in gradients if ref is not None])
            return zeros(x.data.shape) if g is None else g
        shape: tuple[int, ...] = x.data.shape[1:]
        parts_of: list[list[int]] = [[] for _ in x.data]
        for (_, value), places in zip(x.reads, rows, strict=True):
            for place, ref in _pairs(places if isinstance(value, Rows) else places[0], value):
                if (own := found.total(ref, shape)) is not None:
                    parts_of[place].append(own)
        values = [found.value(found.add_up(own, shape), shape) if own else zeros(shape) for own in parts_of]
        return self._calls.handles.rows_of(values, shape)

    def _part(self, tangent: Any, x: ArrayReads, number: int) -> Any:
        """The tangent of a part of an array that was read."""
        positions, value = x.reads[number]
        if isinstance(tangent, Rows) and (rows := x.rows()) is not None:
            parts = [tangent[place] for place in rows[number]]
            return self._calls.handles.rows_of(parts, value.row.shape) if isinstance(value, Rows) else parts[0]
        if not isinstance(tangent, Value):
            part = tangent.reshape(-1)[positions]
            part = np.asarray(part) if isinstance(part, np.floating) else part
            return self._calls.lifting.lift(part, is_ragged=isinstance(value, Rows))
        parts = [_picked(tangent, at.ravel(), at.shape) for at, _ in _pairs(positions, value)]
        return self._calls.handles.rows_of(parts, value.row.shape) if isinstance(value, Rows) else parts[0]

    def _along(self, x: Any, found: Derivatives) -> Any:
        """The derivative of a value, or of each of its rows; zeros where there is none."""
        shape = x.row.shape if isinstance(x, Rows) else x.shape
        refs = x.refs if isinstance(x, Rows) else [x.ref]
        values = [found.value(found.total_or_zeros(ref, shape), shape) for ref in refs]
        if not isinstance(x, Rows):
            return values[0]
        return self._calls.handles.rows_of(values, shape)


def _pairs(positions: Any, value: Any) -> Iterable[tuple[Any, int]]:
    """The refs of a value, or of its rows, each with its positions."""
    return zip(positions, value.refs, strict=True) if isinstance(value, Rows) else [(positions, value.ref)]


@composite
def _picked(x: Any, ids: Any, shape: Any) -> Any:
    """Elements of a value, by their numbers."""
    return reshape(lookup(reshape(x, (-1,)), ids), shape)


class InCell:
    """A function that is differentiated inside a cell, while its body is traced.

    Args:
        builder: of the program.
    """

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._variables: list[Any] = []
        self._parameters: dict[int, int] = {}

    def stand_in(self, x: Any) -> Any:
        """A value of its own that is equal, or a list of such; a parameter itself."""
        if isinstance(x, TracedList):
            if x.element is None:
                raise NeedsLength(x.group, "differentiates by it")
            self._variables.append(x.like(map_values(self._equal, x.element)))
            return self._variables[-1]
        self._variables.append(self._equal(_whole(x)))
        if isinstance(x, Parameter):
            self._parameters[id(x)] = self._variables[-1].index
            return x
        return Ragged(self._builder, self._variables[-1].index) if isinstance(x, Ragged) else self._variables[-1]

    def _equal(self, x: Any) -> Traced:
        value = self._builder.wrap(x)
        source = Instruction(OPS["expand"], (value.index,), {"shape": value.var.shape})
        return self._builder.add(source, value.var.shape, value.var.domain)

    def running(self) -> AbstractContextManager[None]:
        """The context in which the function reads the values that stand in for parameters."""
        return self._builder.replacing(self._parameters)

    def result(self, x: Any) -> Any:
        """The value itself; a number, an array or a parameter as one."""
        return self._builder.wrap(_whole(x))

    def given(self, result: Any) -> Any:
        """The value itself; a number or an array as one."""
        return self._builder.wrap(_whole(result))

    def pull(self, results: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """Append the ops of gradients."""
        seeds = [(self.given(x).index, _row(self.given(g))) for x, g in zip(results, gradients, strict=True)]
        flat = [part for x in self._variables for part in _parts(x)]
        found = map(self._as_variable, flat, pull_back(self._builder, seeds, [x.index for x in flat]))
        return [self._like(x, found) for x in self._variables]

    def push(self, results: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """Append the ops of tangents."""
        of_list = next((x for x in self._variables if isinstance(x, TracedList)), None)
        if of_list is not None:
            raise NeedsLength(of_list.group, "differentiates along it")
        wrapped = [_row(self.given(x)) for x in results]
        given = zip(self._variables, tangents, strict=True)
        seeds = [(x.index, _row(self.given(tangent))) for x, tangent in given]
        return list(map(self._as_variable, wrapped, push_forward(self._builder, seeds, [x.index for x in wrapped])))

    def _like(self, x: Any, found: Iterator[Traced]) -> Any:
        """Derivatives as what they are of: a list of any length, or a value."""
        if isinstance(x, TracedList):
            return x.like(map_values(lambda part: _row(next(found)), x.element))
        return next(found)

    def _as_variable(self, x: Traced, derivative: Traced | None) -> Traced:
        """The derivative of a value, with rows if that has any; zeros where there is none."""
        if derivative is None:
            derivative = x * 0.0
        return Ragged(self._builder, derivative.index) if x.var.domain >= 0 else of_node(derivative)


def _row(x: Traced) -> Traced:
    return x.row if isinstance(x, Ragged) else x


def _parts(x: Any) -> list[Traced]:
    """The values of a list of any length, per edge, or the value itself."""
    return list(values_in(x.element)) if isinstance(x, TracedList) else [x]


def _whole(x: Any) -> Any:
    """What is no part of a list; NeedsLength if it is one."""
    if isinstance(x, Element):
        raise NeedsLength(x.var.domain, "differentiates an element of it, or by one")
    if isinstance(x, TracedList):
        raise NeedsLength(x.group, "returns it from a function that is differentiated")
    return x


class Eager:
    """A function that is differentiated in eager mode.

    Args:
        outer: the tape of another derivative around it, if there is one.
    """

    def __init__(self, outer: EagerTape | None) -> None:
        self._tape = EagerTape(outer)
        self._variables: list[Any] = []

    def stand_in(self, x: Any) -> Any:
        """A value on the tape; for an array, what makes one of each part that is read; a parameter itself."""
        if isinstance(x, (Taped, Parameter)):
            value = self._tape.leaf(self._tape.value_of(x))
            self._variables.append(value)
            if isinstance(x, Taped):
                return value
            self._tape.parameters[id(x)] = value
            return x
        reads = ArrayReads(x, self._tape, lambda part, is_ragged: self._tape.leaf(self._tape.value_of(part)))
        self._variables.append(reads)
        return reads.stand_in

    def running(self) -> AbstractContextManager[None]:
        """The context in which ops are put on the tape."""
        return stage(self._tape)

    def result(self, x: Any) -> Any:
        """The value itself; a part of an array or a parameter that is differentiated by as one."""
        return value_on(self._tape, x) if isinstance(x, (FloatInput, Parameter)) else x

    def given(self, result: Any) -> Any:
        """The value as others see it."""
        return self._tape.strip(result)

    def pull(self, results: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """Compute gradients."""
        given = [value_on(STAGE.current, g) for g in gradients]  # maybe inside another derivative than the function
        found = iter(self._tape.gradients(zip(results, given, strict=True), self._leaves()))
        return [self._gradient(x, found) for x in self._variables]

    def push(self, results: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """Compute tangents, as the gradients of gradients; see `autobatch.ir.passes.autodiff.push_forward`."""
        linear = EagerTape(self._tape.outer)
        seeds = [linear.leaf(freeze(np.zeros(shape_of(x), x.dtype))) for x in results]
        gradients = self._tape.gradients(zip(results, seeds, strict=True), self._leaves(), linear)
        parts = list[Any]()
        for x, given in zip(self._variables, tangents, strict=True):
            tangent = value_on(STAGE.current, given)
            flat = reshape(tangent, (-1,))
            parts += (
                [_picked(flat, at.ravel(), at.shape) for at, _ in x.reads] if isinstance(x, ArrayReads) else [tangent]
            )
        found = linear.gradients(zip(gradients, parts, strict=True), seeds)
        return [freeze(np.zeros(x.shape, x.dtype)) if g is None else g for g, x in zip(found, seeds, strict=True)]

    def _leaves(self) -> list[Taped]:
        parts = ([value for _, value in x.reads] if isinstance(x, ArrayReads) else [x] for x in self._variables)
        return [value for own in parts for value in own]

    def _gradient(self, x: Any, found: Iterator[Any]) -> Any:
        """The gradient of what has a stand-in; `found` gives those of values on the tape, in their order."""
        own = x.data if isinstance(x, ArrayReads) else x
        if isinstance(x, ArrayReads):
            parts = [(at, next(found)) for at, _ in x.reads]
            g = x.gradient([(at, part) for at, part in parts if part is not None])
        else:
            g = next(found)
        return freeze(np.zeros(own.shape, own.dtype)) if g is None else cast(g, own.dtype)


def _differentiation() -> Differentiation:
    """What differentiates a function that is called now."""
    current = STAGE.current
    if current is None or isinstance(current, EagerTape):
        return Eager(current)
    if isinstance(current, Builder):
        return InCell(current)
    return Recorded(current)


class Variables:
    """What a function is differentiated by.

    Args:
        by: the differentiation.
        wrt: gives it from the function's arguments; None for the first argument.
        args, kwargs: the arguments.

    Attributes:
        args, kwargs: with stand-ins.
        values: all, in order.

    Raises:
        GraphError: there is nothing, or something that the arguments do not hold.
    """

    def __init__(self, by: Differentiation, wrt: Wrt, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if wrt is None and not args:
            raise GraphError("a function without arguments is differentiated; name by what, as in wrt=lambda: weight.")
        if wrt is None and isinstance(args[0], float):
            args = (np.asarray(args[0]), *args[1:])
        if wrt is not None and not callable(wrt):
            raise GraphError(
                f"wrt={wrt!r} is no function; give one of the same arguments that returns by what to differentiate, as "
                f"in wrt=lambda x, y: y."
            )
        chosen = args[0] if wrt is None else wrt(*args, **kwargs)
        is_whole = wrt is None or type(chosen) is tuple or isinstance(chosen, Outputs)
        self._chosen = Held(chosen if is_whole else (chosen,), _is_variable)
        self.values = self._chosen.arrays
        if not self.values and not _is_empty(chosen):
            raise GraphError(
                f"{_what(wrt)} holds no float array, computed value or parameter to differentiate by, but is "
                f"{chosen!r}; an int or a plain number has no gradient, np.asarray(number) has one."
            )
        wanted = {id(x) for x in self.values}
        held = Held((args, kwargs), lambda x: id(x) in wanted)
        missing = [x for x in self.values if not isinstance(x, Parameter) and all(x is not y for y in held.arrays)]
        if missing:
            raise GraphError(
                f"{_what(wrt)} gives {missing[0]!r}, which the arguments of the function do not hold; pass it as an "
                f"argument, and name the array itself, not a part of it or what is computed from it."
            )
        made = {id(x): by.stand_in(x) for x in self.values}
        self.args, self.kwargs = held.rebuild([made[id(x)] for x in held.arrays], lambda part: part)

    def like(self, derivatives: list[Any]) -> Any:
        """Derivatives in the structure of what they are by, with None for what has none."""
        return self._chosen.rebuild(derivatives, lambda part: part if _is_empty(part) else None)

    def read(self, given: Any, what: str) -> list[Any]:
        """Derivatives that are given in this structure; ShapeError if they do not fit."""
        found = _leaves(given)
        for x in (*self.values, *found):
            if isinstance(x, TracedList):
                raise NeedsLength(x.group, "differentiates along it")
        if [shape_of(x) for x in found] != [shape_of(x) for x in self.values]:
            raise ShapeError(
                f"{what} of shapes {[shape_of(x) for x in found]} are given for values of shapes "
                f"{[shape_of(x) for x in self.values]}; give one for each, of its shape. An array that arguments hold "
                f"in several places is one value."
            )
        return found


def _is_variable(x: Any) -> bool:
    if isinstance(x, Value):
        return not x.key.below
    if isinstance(x, Traced) and isinstance(x.var.source, Attribute):
        return x.var.source.is_float
    return isinstance(x, (Traced, TracedList, Taped, FloatInput, Parameter, np.floating)) or is_float_array(x)


def _is_empty(x: Any) -> bool:
    """Whether this is a list or another structure without elements, or one of such alone."""
    return is_structure(x) and all(map(_is_empty, parts_of(x)))


def _what(wrt: Wrt) -> str:
    return "the first argument" if wrt is None else "wrt"


def _leaves(x: Any) -> list[Any]:
    """The values in what a function returns, or is given for that."""
    if is_structure(x):
        return [leaf for part in parts_of(x) for leaf in _leaves(part)]
    return (
        [x]
        if isinstance(x, (Operators, TracedList, np.ndarray, np.number, int, float)) and not isinstance(x, bool)
        else []
    )


def _replace(x: Any, values: Iterator[Any]) -> Any:
    """A structure with other values in the place of its own."""
    if is_structure(x):
        parts = [_replace(part, values) for part in parts_of(x)]
        return tuple(parts) if isinstance(x, Outputs) else Key.of_structure(x, ()).build(parts)
    return next(values) if _leaves(x) else x


class Differentiated:
    """A function that ran, and can be differentiated.

    Args:
        wrt: by what; args, kwargs: the arguments of the function.
        has_aux: whether it returns a pair, of which the second is not differentiated.

    Attributes:
        value: what it returned; aux: the second of the pair.
    """

    def __init__(self, wrt: Wrt, args: tuple[Any, ...], kwargs: dict[str, Any], has_aux: bool) -> None:
        self._by, self._has_aux = _differentiation(), has_aux
        self.variables = Variables(self._by, wrt, args, kwargs)
        self.value: Any = None
        self.aux: Any = None
        self._results: list[Any] = []
        self._shapes: list[Any] = []

    def run(self, function: Callable[..., Any], finish: Callable[[Differentiated], Any]) -> Any:
        """Run a function, and give what `finish` gives then; if that waits, something to be awaited."""
        with self._by.running():
            result = function(*self.variables.args, **self.variables.kwargs)
            if not isinstance(result, Awaitable):
                self._take(result)
        return self._wait(result, finish) if isinstance(result, Awaitable) else finish(self)

    async def _wait(self, result: Awaitable[Any], finish: Callable[[Differentiated], Any]) -> Any:
        with self._by.running():
            self._take(await result)
        return finish(self)

    def _take(self, result: Any) -> None:
        """Take what the function returned."""
        aux = None
        if self._has_aux:
            if type(result) is not tuple or len(result) != 2:
                raise GraphError(f"with has_aux=True the function returns (value, aux), and not {result!r}.")
            result, aux = result
        self._results, others = ([self._by.result(x) for x in _leaves(part)] for part in (result, aux))
        self._shapes = [shape_of(x) for x in self._results]
        self.value = _replace(result, map(self._by.given, self._results))
        self.aux = _replace(aux, map(self._by.given, others))

    def gradients(self, given: Any) -> Any:
        """The gradients of what the function is differentiated by, from those of what it returned."""
        found = _leaves(given)
        if [shape_of(x) for x in found] != self._shapes:
            raise ShapeError(
                f"gradients of shapes {[shape_of(x) for x in found]} are given for results of shapes {self._shapes}."
            )
        return self.variables.like(self._by.pull(self._results, found))

    def gradient(self) -> Any:
        """The gradients of the value that the function returned; GraphError unless it is a scalar."""
        if self._shapes != [()] or is_structure(self.value):
            what = {0: f"{self.value!r}", 1: f"a value of shape {self._shapes[0] if self._shapes else ()}"}.get(
                len(self._shapes), f"{len(self._shapes)} values, of shapes {self._shapes}"
            )
            advice = "return their sum; where it returns (scalar, aux), pass has_aux=True"
            raise GraphError(f"the gradient of a scalar is asked for, but the function returned {what}; {advice}.")
        return self.gradients(np.ones((), getattr(self.value, "dtype", None)))

    def tangents(self, given: Any) -> Any:
        """The tangents of what the function returned, from those of what it is differentiated by."""
        found = self._by.push(self._results, self.variables.read(given, "tangents"))
        return _replace(self.value, iter(found))


def value_and_grad(function: Callable[..., Any], wrt: Wrt = None, has_aux: bool = False) -> Callable[..., Any]:
    """Make a function that gives what `function` gives, and its gradient.

    It is called inside a program, for one instance: in a function that is batched, inside a cell, or in eager mode. The
    recorded graph then has the calls that `function` makes and those of their gradients, which run in batches like all
    others. It may be differentiated again, inside the program or by `Batched.value_and_grad`.

    Args:
        function: calls cells and ops, and returns a scalar; what it reads beside its arguments is constant.
        wrt: a function of the same arguments that returns by what to differentiate: float arrays that the arguments
            hold, values, parameters, or a tuple or other structure of these. None for the first argument, and all float
            arrays and values that it holds.
        has_aux: whether `function` returns (scalar, aux), and the value is that pair.

    Returns:
        A function that returns (value, gradients). With `wrt` the gradients are a tuple, which has one for each thing
        that it returns; else they are what the first argument is. None stands for what has no gradient. The gradient of
        an array that is read row by row has as many rows, which are values.

    Of an async function the new function is one too; awaited numbers are constants to its derivative.

    Raises:
        GraphError: where the new function is called: `function` did not return a scalar, or `wrt` gives nothing to
            differentiate by, or something that the arguments do not hold.

    Shapes: each gradient has that of what it is by.

    >>> import autobatch as ab
    >>> def energy(x):
    ...     return ab.sum(x * x)
    >>> value, gradient = ab.value_and_grad(energy)(np.array([1.0, 2.0]))
    >>> float(value), gradient
    (5.0, array([2., 4.]))
    """

    @wraps(function)
    def derived(*args: Any, **kwargs: Any) -> Any:
        def finish(ran: Differentiated) -> Any:
            gradients = ran.gradient()
            return ((ran.value, ran.aux) if has_aux else ran.value), gradients

        return Differentiated(wrt, args, kwargs, has_aux).run(function, finish)

    return derived


def grad(function: Callable[..., Any], wrt: Wrt = None, has_aux: bool = False) -> Callable[..., Any]:
    """Make a function that gives the gradient of `function`; as `value_and_grad`, without the value.

    Args:
        function, wrt: as for `value_and_grad`.
        has_aux: whether `function` returns (scalar, aux), and the new function (gradients, aux).

    Raises:
        GraphError: as `value_and_grad`.

    Shapes: each gradient has that of what it is by.

    >>> import autobatch as ab
    >>> third = ab.grad(ab.grad(ab.grad(lambda x: x**4)))
    >>> float(third(1.0))
    24.0
    """

    @wraps(function)
    def derived(*args: Any, **kwargs: Any) -> Any:
        def finish(ran: Differentiated) -> Any:
            return (ran.gradient(), ran.aux) if has_aux else ran.gradient()

        return Differentiated(wrt, args, kwargs, has_aux).run(function, finish)

    return derived


def vjp(function: Callable[..., Any], *primals: Any, wrt: Wrt = None) -> tuple[Any, Callable[[Any], Any]]:
    """Call a function, and give what it returns and the function of its vector-Jacobian products.

    Args:
        function: returns values in any structure.
        primals: its arguments.
        wrt: as for `value_and_grad`; None for all arguments.

    Returns:
        The value, and a function that takes gradients in the structure of the value and gives the gradients of the
        arguments, or of what `wrt` returns: a tuple. It is called in the same program.

    Raises:
        GraphError: as `value_and_grad`. ShapeError: the gradients do not fit the value.

    Shapes: each gradient has that of what it is by.

    >>> import autobatch as ab
    >>> value, pull = ab.vjp(lambda x, y: x * y, np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    >>> pull(np.array([1.0, 10.0]))
    (array([ 3., 40.]), array([ 1., 20.]))
    """
    ran = Differentiated(_all if wrt is None else wrt, primals, {}, False)
    found: tuple[Any, Callable[[Any], Any]] = ran.run(function, lambda ran: (ran.value, ran.gradients))
    return found


def jvp(function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], wrt: Wrt = None) -> Any:
    """Call a function, and give what it returns and its Jacobian-vector product: the derivative along a direction.

    Args:
        function: returns values in any structure.
        primals: its arguments.
        tangents: the direction: one for each argument, or for each thing that `wrt` returns.
        wrt: as for `value_and_grad`; None for all arguments.

    Returns:
        (value, tangents), both in the structure of what the function returns.

    Raises:
        GraphError: as `value_and_grad`. ShapeError: the tangents do not fit.

    Shapes: the tangents are of the shapes of the value.

    >>> import autobatch as ab
    >>> ab.jvp(lambda x: x * x, (np.array([1.0, 2.0]),), (np.array([1.0, 0.0]),))
    (array([1., 4.]), array([2., 0.]))
    """
    if not isinstance(primals, (tuple, list)) or not isinstance(tangents, (tuple, list)):
        raise GraphError("primals and tangents are tuples, one of the function's arguments and one of directions.")
    ran = Differentiated(_all if wrt is None else wrt, tuple(primals), {}, False)
    return ran.run(function, lambda ran: (ran.value, ran.tangents(tuple(tangents))))


def hvp(function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], wrt: Wrt = None) -> Any:
    """Give the gradient of a scalar function, and the product of its Hessian and a vector: `jvp` of `grad`.

    Args:
        function: returns a scalar.
        primals: its arguments.
        tangents: the vector: one for each argument, or for each thing that `wrt` returns.
        wrt: as for `value_and_grad`; None for all arguments.

    Returns:
        (gradients, products), two tuples.

    Raises:
        GraphError: as `value_and_grad`. ShapeError: the tangents do not fit.

    Shapes: each product has that of what it is by.

    >>> import autobatch as ab
    >>> ab.hvp(lambda x: ab.sum(x**3), (np.array([1.0, 2.0]),), (np.array([1.0, 1.0]),))
    ((array([ 3., 12.]),), (array([ 6., 12.]),))
    """
    by = _all if wrt is None else wrt
    return jvp(grad(function, by), primals, tangents, by)


def _all(*args: Any) -> tuple[Any, ...]:
    """All arguments."""
    return args
