"""The differentiation of functions in each stage: in a recorded program, inside a cell, and in eager mode.

In a recorded program, a `Tape` of the core collects the calls of the function. Inside a cell, derivatives are appended
to the cell's program. In eager mode, ops are added to an `EagerTape`. The function receives stand-ins for its
variables, and the stage computes gradients and tangents of its results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np

from autobatch._native import Derivatives, stage
from autobatch.errors import GraphError
from autobatch.ir.arguments import leaves, map_leaves
from autobatch.ir.autodiff import of_node, pull_back, push_forward
from autobatch.ir.builder import Builder, Traced
from autobatch.ir.program import Instruction
from autobatch.ops.define import composite, shape_of
from autobatch.ops.eager import freeze, plain_array
from autobatch.ops.elementwise import equal
from autobatch.ops.indexing import lookup, scatter
from autobatch.ops.operators import OPS, STAGE, Symbol
from autobatch.ops.shaping import reshape, stack
from autobatch.ops.taped import Concrete, EagerTape, Taped, cast, value_on
from autobatch.ops.variadic import sum_n
from autobatch.params.parameter import Parameter
from autobatch.trace.calls import Calls
from autobatch.trace.elements import Element, NeedsLength, TracedList
from autobatch.trace.handles import Rows, Value
from autobatch.trace.inputs import FloatInput
from autobatch.trace.ragged import Ragged
from autobatch.trace.tape import record_gradients, record_tangents


class Differentiation(Protocol):
    """A function that is being differentiated, in one of the stages."""

    def stand_in(self, x: Any) -> Any:
        """Return the stand-in of a variable."""

    def running(self) -> Any:
        """Return the context in which the function runs."""

    def result(self, x: Any) -> Any:
        """Convert a result of the function to a value; called inside the context, once per object."""

    def given(self, result: Any) -> Any:
        """Convert such a value for the caller of the function."""

    def pull(self, results: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """Return the gradients of all variables, from those of results."""

    def push(self, results: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """Return the tangents of results, from those of all variables."""


class ArrayReads:
    """The reads of a variable that is a float array.

    Args:
        array: the array, or a part of an array that is a variable of an outer derivative.
        recording: the current stage.
        make: makes the value of a part; the second argument asks for a value of any number of rows.

    Attributes:
        stand_in: the stand-in of the array.
        reads: the positions in the array and the value of each part that was read.
    """

    def __init__(self, array: Any, recording: Any, make: Callable[[Any, bool], Any]) -> None:
        self.recording, self._make = recording, make
        self.data = plain_array(array.data if isinstance(array, FloatInput) else array)
        positions = np.arange(self.data.size).reshape(self.data.shape)
        self.stand_in = FloatInput(self.data, positions, self, array)
        self.reads: list[tuple[Any, Any]] = []

    def read(self, x: FloatInput, is_ragged: bool) -> Any:
        """Return the value of a part, and note the read."""
        value = self._make(x.base, is_ragged)
        self.reads.append((x.positions, value))
        return value

    def gradient(self, parts: Iterable[tuple[Any, Any]]) -> Any:
        """Return the gradient of the array; None if no part has one.

        Args:
            parts: pairs of the positions of a part and its gradient.
        """
        shape, found = self.data.shape, list[Any]()
        for positions, g in parts:
            is_whole = np.array_equal(positions, np.arange(self.data.size).reshape(shape))
            found.append(g if is_whole else _scattered(g, positions.ravel(), shape))
        return _sum(found) if found else None

    def rows(self) -> list[list[int]] | None:
        """List the rows of each read; None if some read is not made of whole rows."""
        shape, size = self.data.shape[1:], int(np.prod(self.data.shape[1:]))
        if not self.data.ndim or not size:
            return None
        found = []
        for positions, value in self.reads:
            # `positions` count elements of the whole array. A part is a row if its positions are consecutive, and the
            # first is a multiple of the row's size.
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
    """Return the gradient of an array from the gradient of a part of it."""
    return reshape(scatter(reshape(g, (-1,)), ids, size=int(np.prod(shape))), shape)


def _sum(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else sum_n(values)


class Recorded:
    """A function that is differentiated while a program is recorded.

    Args:
        calls: the calls of the recording.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._variables: list[Any] = []

    def stand_in(self, x: Any) -> Any:
        """Return an alias of a value, an input whose parts are read as values for an array, a parameter itself."""
        if isinstance(x, Parameter):
            self._variables.append(x)
            # A source of the parameter from before the call would not be on the tape, so the next use records another.
            self._calls.wrapping.forget(x)
            return x
        if isinstance(x, Value):
            self._variables.append(self._calls.alias(x))
            return self._variables[-1]
        self._variables.append(reads := ArrayReads(x, self._calls, self._read))
        return reads.stand_in

    def _read(self, part: Any, is_ragged: bool) -> Any:
        """Make the value of a part of an array, which only the function has."""
        if isinstance(part, FloatInput):
            return self._calls.alias(self._calls.wrapping.wrap(part, is_ragged=is_ragged))
        return self._calls.record_source(part, is_ragged)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Record the calls made within the context on a tape."""
        self._tape = self._calls.open_tape()
        try:
            yield
        finally:
            self._calls.close_tape(self._tape)

    def result(self, x: Any) -> Any:
        """Return the value itself; for an array or parameter, a new value, although wrapping shares equal ones."""
        return x if isinstance(x, Value) else self._calls.alias(self.given(x))

    def given(self, result: Any) -> Any:
        """Return a value itself; convert a number or an array to one."""
        if isinstance(result, (int, float, np.number)) and not isinstance(result, bool):
            result = np.asarray(float(result))
        return self._calls.wrapping.wrap(result)

    def pull(self, results: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """Record gradients; GraphError if the program is over."""
        if STAGE.current is not self._calls or self._tape.is_stale:
            raise GraphError("the function that ab.vjp returned must be called inside its program, got a later call.")
        parameters = [x for x in self._variables if isinstance(x, Parameter)]
        values = [x for x in self._variables if isinstance(x, Value)]
        reads = [value for x in self._variables if isinstance(x, ArrayReads) for _, value in x.reads]
        seeds = [(x, self._as_rows_of(x, g)) for x, g in zip(results, gradients, strict=True)]
        found = record_gradients(self._tape, seeds, [*values, *reads], parameters)
        return [self._gradient(x, found) for x in self._variables]

    def push(self, results: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
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
                # Some read is not of whole rows, so its tangent must be taken from a single value.
                if isinstance(tangent, Rows) and x.rows() is None:
                    tangent = self._as_rows_of(None, tangent)
                seeds += [(value, self._part(tangent, x, number)) for number, (_, value) in enumerate(x.reads)]
        found = record_tangents(self._tape, seeds, parameters)
        return [self._along(x, found) for x in results]

    def _as_rows_of(self, x: Any, derivative: Any) -> Any:
        """Convert a derivative of `x` to rows if `x` has rows, and to one value otherwise."""
        made = self.given(derivative)
        if isinstance(x, Rows) and not isinstance(made, Rows):
            return self._calls.handles.rows_of([made[row] for row in range(len(x))], x.row.shape)
        if isinstance(made, Rows) and not isinstance(x, Rows):
            return stack(list(made)) if len(made) else self._calls.zeros(made.shape)
        return made

    def _gradient(self, x: Any, found: Derivatives) -> Any:
        """Return the gradient of a variable."""
        if isinstance(x, Value):
            return self._along(x, found)

        def zeros(shape: tuple[int, ...]) -> Value:
            """Make a new value of zeros, so that it can be a variable."""
            return self._value(self._calls.zeros(shape).ref, shape)

        if isinstance(x, Parameter):
            ref = found.of_parameter(x, x.shape)
            return zeros(x.shape) if ref is None else self._value(ref, x.shape)
        rows = x.rows()
        # If all reads are of whole rows, such as x[i], or a matrix is not read, the gradient is a `Rows` of one value
        # per row, which needs no node to join them. Otherwise it is one value of the array's shape.
        if rows is None or not (x.reads or x.data.ndim > 1):
            pairs = [(at, ref) for positions, value in x.reads for at, ref in _pairs(positions, value)]
            gradients = [(at, found.total(ref, at.shape)) for at, ref in pairs]
            g = x.gradient([(at, self._value(ref, at.shape)) for at, ref in gradients if ref is not None])
            return zeros(x.data.shape) if g is None else g
        shape: tuple[int, ...] = x.data.shape[1:]
        parts_of: list[list[int]] = [[] for _ in x.data]
        for (_, value), places in zip(x.reads, rows, strict=True):
            for place, ref in _pairs(places if isinstance(value, Rows) else places[0], value):
                if (own := found.total(ref, shape)) is not None:
                    parts_of[place].append(own)
        values = [self._value(self._calls.add_up(own, shape), shape) if own else zeros(shape) for own in parts_of]
        return self._calls.handles.rows_of(values, shape)

    def _value(self, ref: int, shape: tuple[int, ...]) -> Value:
        made: Value = self._calls.handles.value(ref, shape)
        return made

    def _part(self, tangent: Any, x: ArrayReads, number: int) -> Any:
        """Return the tangent of a part of an array, by the number of the read."""
        positions, value = x.reads[number]
        if isinstance(tangent, Rows) and (rows := x.rows()) is not None:
            parts = [tangent[place] for place in rows[number]]
            return self._calls.handles.rows_of(parts, value.row.shape) if isinstance(value, Rows) else parts[0]
        if not isinstance(tangent, Value):
            part = tangent.reshape(-1)[positions]
            part = np.asarray(part) if isinstance(part, np.floating) else part
            return self._calls.wrapping.wrap(part, is_ragged=isinstance(value, Rows))
        parts = [_picked(tangent, at.ravel(), at.shape) for at, _ in _pairs(positions, value)]
        return self._calls.handles.rows_of(parts, value.row.shape) if isinstance(value, Rows) else parts[0]

    def _along(self, x: Any, found: Derivatives) -> Any:
        """Return the derivative of a value, or of each of its rows; zeros where it has no derivative."""
        shape, refs = (x.row.shape, x.refs) if isinstance(x, Rows) else (x.shape, [x.ref])
        return self._calls.handles.like(x, [found.total_or_zeros(ref, shape) for ref in refs])


def _pairs(positions: Any, value: Any) -> Iterable[tuple[Any, int]]:
    """Pair the refs of a value, or of its rows, with their positions."""
    return zip(positions, value.refs, strict=True) if isinstance(value, Rows) else [(positions, value.ref)]


@composite
def _picked(x: Any, ids: Any, shape: Any) -> Any:
    """Take elements of a value by their positions."""
    return reshape(lookup(reshape(x, (-1,)), ids), shape)


class InCell:
    """A function that is differentiated inside a cell, while the body of the cell is traced.

    Args:
        builder: the builder of the cell's program.
    """

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._variables: list[Any] = []
        self._parameters: dict[int, int] = {}

    def stand_in(self, x: Any) -> Any:
        """Return an equal new value, or a list of such values; a parameter itself."""
        if isinstance(x, TracedList):
            if x.element is None:
                raise NeedsLength(x.group, "differentiates with respect to it")
            self._variables.append(x.like(map_leaves(self._equal, x.element)))
            return self._variables[-1]
        self._variables.append(self._equal(_whole(x)))
        if isinstance(x, Parameter):
            self._parameters[id(x)] = self._variables[-1].index
            return x
        return Ragged(self._builder, self._variables[-1].index) if isinstance(x, Ragged) else self._variables[-1]

    def _equal(self, x: Any) -> Traced:
        value = self._builder.wrap(x)
        # Expanding to the same shape copies the value: only the function reads the copy, so other uses of `x` are
        # constants.
        source = Instruction(OPS["expand"], (value.index,), {"shape": value.var.shape})
        return self._builder.add(source, value.var.shape, value.var.domain)

    def running(self) -> AbstractContextManager[None]:
        """Return the context in which the function reads the stand-ins of parameters."""
        return self._builder.replacing(self._parameters)

    def given(self, result: Any) -> Any:
        """Return a value itself; convert a number, an array or a parameter to one."""
        return self._builder.wrap(_whole(result))

    result = given

    def pull(self, results: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        seeds = [(self.given(x).index, _row(self.given(g))) for x, g in zip(results, gradients, strict=True)]
        flat = [part for x in self._variables for part in _parts(x)]
        found = map(self._as_variable, flat, pull_back(self._builder, seeds, [x.index for x in flat]))
        return [self._like(x, found) for x in self._variables]

    def push(self, results: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        of_list = next((x for x in self._variables if isinstance(x, TracedList)), None)
        if of_list is not None:
            raise NeedsLength(of_list.group, "differentiates along it")
        wrapped = [_row(self.given(x)) for x in results]
        given = zip(self._variables, tangents, strict=True)
        seeds = [(x.index, _row(self.given(tangent))) for x, tangent in given]
        return list(map(self._as_variable, wrapped, push_forward(self._builder, seeds, [x.index for x in wrapped])))

    def _like(self, x: Any, found: Iterator[Traced]) -> Any:
        """Return the next derivative as that of `x`: a list of any length if `x` is one, else a value."""
        if isinstance(x, TracedList):
            return x.like(map_leaves(lambda part: _row(next(found)), x.element))
        return next(found)

    def _as_variable(self, x: Traced, derivative: Traced | None) -> Traced:
        """Return the derivative of a value, with rows if the value has rows; zeros if it has no derivative."""
        if derivative is None:
            derivative = equal(x, x) * 0.0  # x * 0.0 would be nan if x is infinite
        return Ragged(self._builder, derivative.index) if x.var.domain >= 0 else of_node(derivative)


def _row(x: Traced) -> Traced:
    return x.row if isinstance(x, Ragged) else x


def _parts(x: Any) -> list[Traced]:
    """List the values per edge of a list of any length; a value alone."""
    return list(leaves(x.element)) if isinstance(x, TracedList) else [x]


def _whole(x: Any) -> Any:
    """Return `x`; NeedsLength if it is a list of any length, or an element of one."""
    if isinstance(x, Element):
        raise NeedsLength(x.var.domain, "differentiates an element of it, or with respect to one")
    if isinstance(x, TracedList):
        raise NeedsLength(x.group, "returns it from a function that is differentiated")
    return x


class Eager:
    """A function that is differentiated in eager mode.

    Args:
        outer: the tape of the derivative around it; None if there is none.
    """

    def __init__(self, outer: EagerTape | None) -> None:
        self._tape = EagerTape(outer)
        self._variables: list[Any] = []

    def stand_in(self, x: Any) -> Any:
        """Return a value on the tape, an input whose parts are read as values for an array, a parameter itself."""
        if isinstance(x, (Taped, Parameter)):
            value = self._tape.leaf(x)
            self._variables.append(value)
            if isinstance(x, Taped):
                return value
            self._tape.parameters[id(x)] = value
            return x
        reads = ArrayReads(x, self._tape, lambda part, is_ragged: self._tape.leaf(part))
        self._variables.append(reads)
        return reads.stand_in

    def running(self) -> AbstractContextManager[None]:
        """Return the context in which ops are added to the tape."""
        return stage(self._tape)

    def result(self, x: Any) -> Any:
        """Return a result itself; convert a part of an array or a parameter to a value."""
        return value_on(self._tape, x) if isinstance(x, (Concrete, Parameter)) else x

    def given(self, result: Any) -> Any:
        """Return a value as the outer tape has it."""
        return self._tape.strip(result)

    def pull(self, results: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        given = [value_on(STAGE.current, g) for g in gradients]  # the function may have run inside another derivative
        found = iter(self._tape.gradients(zip(results, given, strict=True), self._leaves()))
        return [self._gradient(x, found) for x in self._variables]

    def push(self, results: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """Compute tangents, as the gradients of gradients; see `autobatch.ir.autodiff.push_forward`."""
        # The gradients are linear in `seeds`; `linear` records how they are computed from these, to be transposed.
        linear = EagerTape(self._tape.outer)
        seeds = [linear.leaf(np.zeros(shape_of(x), x.dtype)) for x in results]
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
        """Return the gradient of a variable, from the next gradients in `found`, one for each of its values."""
        own = x.data if isinstance(x, ArrayReads) else x
        if isinstance(x, ArrayReads):
            parts = [(at, next(found)) for at, _ in x.reads]
            g = x.gradient([(at, part) for at, part in parts if part is not None])
        else:
            g = next(found)
        return freeze(np.zeros(own.shape, own.dtype)) if g is None else cast(g, own.dtype)


def differentiation() -> Differentiation:
    """Return the differentiation of a function that is called in the current stage."""
    current = STAGE.current
    if current is None or isinstance(current, EagerTape):
        return Eager(current)
    if isinstance(current, Builder):
        return InCell(current)
    return Recorded(current)
