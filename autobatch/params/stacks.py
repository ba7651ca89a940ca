"""Stacks: parameters that are adjacent in memory, so that one matrix product reads them all.

A program reads a `Stack` as one parameter: rows of parameters side by side, `[[W_i, U_i], [W_f, U_f]]`. The memory of
the stack holds the parameters themselves: the `data` of each is a view, a rectangle, of one `SharedBuffer`. State
dicts, optimizers and checkpoints therefore see separate named arrays, and nothing is copied per step. A parameter is
moved into the first buffer that it is assigned to, unless others share its memory (`Parameter.stays`). Any other buffer
holds a copy, which `refresh` updates once per run.
Gradients of adjacent parameters are adjacent as well, so the gradient of a stack is added to them in place. If the
parts of a stack are not adjacent, its gradient goes to a temporary array first (`Targets`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, is_
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from autobatch.devices.store import HOST, Store
from autobatch.errors import GraphError
from autobatch.params.parameter import FloatArray, Parameter, Shape
from autobatch.params.rectangles import Rectangle, bounds, find_whole, tile
from autobatch.params.sparse_rows import Gradient, Rows

BUFFER = attrgetter("buffer")
Row: TypeAlias = tuple[Parameter, ...]  # side by side, with equal first axes


class SharedBuffer:
    """A buffer that holds several parameters, in rows of parameters side by side.

    Attributes:
        parts: the parameters, each once. Those without a buffer are moved into this one, unless their numbers stay
            where they are; the others are copied.
        rectangles: the position of each part.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.parts, self.rectangles = _parts(rows)
        self.shape = bounds(self.rectangles)
        self._place = {id(part): place for place, part in enumerate(self.parts)}
        self._owned = [place for place, part in enumerate(self.parts) if part.buffer is None]
        self._copies = [place for place, part in enumerate(self.parts) if part.buffer is not None]
        # Before the parameters refer to this buffer, because packing may raise an error.
        self._pack()
        for place in self._owned:
            self.parts[place].buffer = self

    @property
    def owned(self) -> dict[int, Rectangle]:
        """Return the rectangles of the parameters moved here, by `id`; copies are left out."""
        return {id(self.parts[place]): self.rectangles[place] for place in self._owned}

    def find(self, stack: Stack) -> tuple[int, Rectangle] | None:
        """Find the rectangle that holds the parts of a stack in the order of the stack.

        Returns:
            The number of parts that are copies, and the rectangle; None if there is no such rectangle.
        """
        places = [self._place.get(id(part)) for part in stack.parts]
        known = [place for place in places if place is not None]
        if len(known) < len(places):
            return None
        # The first part of a stack is at (0, 0), so its place here is that of the stack.
        row, column = self.rectangles[known[0]][:2]
        wanted = [rectangle.moved(row, column) for rectangle in stack.rectangles]
        if wanted != [self.rectangles[place] for place in known]:
            return None
        return sum(place in self._copies for place in known), Rectangle(row, column, *bounds(stack.rectangles))

    def view(self, where: Rectangle, shape: Shape) -> FloatArray:
        """Return a view of a rectangle in this shape, after packing again if a parameter was moved elsewhere."""
        if self._is_stale():
            self._pack()
        if (where, shape) not in self._seen:
            self._seen[where, shape] = where.of(self._buffer, shape)
        return self._seen[where, shape]

    def refresh(self) -> int:
        """Update the copies; return the bytes copied."""
        if self._is_stale():
            self._pack()
        n_bytes = 0
        for place in self._copies:
            if not self.parts[place].is_gone:
                self._views[place][...] = self.parts[place].array
                n_bytes += self._views[place].nbytes
        return n_bytes

    def _is_stale(self) -> bool:
        for place in self._owned:
            if self.parts[place].array is not self._views[place] and not self.parts[place].is_gone:  # moved or cast
                return True
        if not self._copies:
            return False
        copies = [x for place in self._copies if not (x := self.parts[place]).is_gone]
        return any(x.dtype != self._buffer.dtype or x.store is not self._store for x in copies)

    def _pack(self) -> None:
        """Allocate the buffer, move the owned parameters into it and copy the others."""
        parts = [part for part in self.parts if not part.is_gone]
        dtype, self._store = parts[0].dtype, parts[0].store
        for part in parts:
            if part.dtype != dtype or part.store is not self._store:
                trait, remedy = ("dtype", "astype()") if part.dtype != dtype else ("device", "to()")
                raise GraphError(
                    f"cannot stack {parts[0]!r} and {part!r}: their {trait}s differ; call {remedy} on the whole model."
                )
        # Read each time, because the memory of a parameter may have been shared with others since.
        self._copies += [place for place in self._owned if self.parts[place].stays]
        self._owned = [place for place in self._owned if place not in self._copies]
        self._buffer = self._store.xp.empty(self.shape, dtype)
        self._views = [
            where.of(self._buffer, part.shape) for part, where in zip(self.parts, self.rectangles, strict=True)
        ]
        self._seen: dict[tuple[Rectangle, Shape], FloatArray] = {}
        for place in self._owned:
            if not self.parts[place].is_gone:
                self.parts[place].move_to(self._views[place])
        for place in self._copies:
            if not self.parts[place].is_gone:
                self._views[place][...] = self.parts[place].array


class Stack(Parameter):
    """Parameters that programs read as one: rows of parameters side by side, one row below the other.

    Make one with `make_stack` or `make_row`.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = tuple(rows)
        self.parts, self.rectangles = _parts(rows)
        height, width = bounds(self.rectangles)
        self._shape = (height, width) if len(rows[0]) > 1 else (height, *rows[0][0].shape[1:])  # side by side: a matrix
        self._where = Rectangle(0, 0, height, width)

    @property
    def data(self) -> FloatArray:
        """Return all numbers, read-only on the host; assigning copies numbers into the parts."""
        data = self.array.view()
        if self.store is HOST:
            data.flags.writeable = False
        return data

    @data.setter
    def data(self, values: npt.ArrayLike) -> None:
        held = self.store.adopt(values)
        for part, piece in pieces_of(self, np.asarray(values) if held is None else held):
            part.data = piece

    @property
    def array(self) -> FloatArray:  # type: ignore[override]
        """Return all numbers; the same array until a part is moved elsewhere."""
        if self.buffer is None:
            settle([self])
        assert self.buffer is not None
        array: FloatArray = self.buffer.view(self._where, self._shape)
        return array

    @property
    def version(self) -> int:
        """Return a number that changes whenever the numbers of a part may have changed."""
        return sum(part.version for part in self.parts)

    @property
    def shape(self) -> Shape:
        """Return the shape.

        It is the number of rows, then the other axes of the parts or, if parts lie side by side, the number of columns.
        """
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.parts[0].dtype

    @property
    def store(self) -> Store:
        return self.parts[0].store

    @property
    def trainable(self) -> bool:
        """Return whether the parts are trainable; either all of them are, or none."""
        return self.parts[0].trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        for part in self.parts:
            part.trainable = value

    def astype(self, dtype: npt.DTypeLike) -> Self:
        for part in self.parts:
            part.astype(dtype)
        return self

    def lie_in(self, buffer: SharedBuffer, where: Rectangle) -> None:
        self.buffer, self._where = buffer, where


def make_stack(parts: Sequence[Parameter]) -> Stack:
    """Stack parameters one below the other; the same parameters always give the same stack.

    Memory is assigned by `settle`, or when the numbers are first read.

    Args:
        parts: two or more distinct parameters or rows (`make_row`), with shapes that differ at most in the first axis;
            all trainable or all frozen.

    >>> import autobatch as ab
    >>> weight, other = ab.Parameter([[1.0, 2.0]]), ab.Parameter([[3.0, 4.0]])
    >>> stack = make_stack([weight, other])
    >>> weight.data = [[5.0, 6.0]]
    >>> stack.data
    array([[5., 6.],
           [3., 4.]], dtype=float32)
    >>> make_stack([weight, other]) is stack
    True
    """
    return _stack_of([row for part in parts for row in _rows_of(part)])


def make_row(parts: Sequence[Parameter]) -> Stack:
    """Stack matrices side by side; the same matrices always give the same stack.

    Args:
        parts: two or more distinct matrices with the same number of rows, all trainable or all frozen.

    >>> import autobatch as ab
    >>> left, right = ab.Parameter([[1.0, 2.0], [3.0, 4.0]]), ab.Parameter([[5.0], [6.0]])
    >>> make_row([left, right]).data
    array([[1., 2., 5.],
           [3., 4., 6.]], dtype=float32)
    >>> left.data[1] = 0
    >>> make_stack([make_row([left, right]), make_row([ab.Parameter([[7.0]]), ab.Parameter([[8.0, 9.0]])])]).data
    array([[1., 2., 5.],
           [0., 0., 6.],
           [7., 8., 9.]], dtype=float32)
    """
    return _stack_of([tuple(parts)])


def settle(stacks: Iterable[Stack], order: Sequence[Parameter] = ()) -> None:
    """Assign memory to stacks: an existing buffer that holds their parts in order, else a new one.

    Args:
        stacks: those with memory keep it.
        order: order of the rows in the common buffer of stacks that share rows; it must keep the rows of each stack
            consecutive.
    """
    place = {id(part): at for at, parameter in enumerate(order) for part in parts_of(parameter)}
    for cluster in _overlapping([stack for stack in stacks if stack.buffer is None and not _find_buffer(stack)]):
        rows = {_key(row): row for stack in cluster for row in stack.rows}
        buffer = SharedBuffer(sorted(rows.values(), key=lambda row: place.get(id(row[0]), 0)))
        for stack in cluster:
            found = buffer.find(stack)
            assert found is not None, "the order keeps the rows of each stack together"
            stack.lie_in(buffer, found[1])


def parts_of(parameter: Parameter) -> Row:
    """Return the parts of a stack, or a plain parameter as a tuple of one."""
    return parameter.parts if isinstance(parameter, Stack) else (parameter,)


def on_host(parameters: Iterable[Parameter]) -> list[Parameter]:
    """Return those of many parameters that are in host memory, in one call."""
    found = list[Parameter]()
    for parameter in parameters:
        part = parameter.parts[0] if isinstance(parameter, Stack) else parameter
        if part._store is HOST:
            found.append(parameter)
    return found


def pieces_of(parameter: Parameter, array: FloatArray) -> Iterator[tuple[Parameter, FloatArray]]:
    """Yield the parts of a parameter, each with its view of `array`, which has the shape of the whole."""
    if not isinstance(parameter, Stack):
        yield parameter, array
        return
    matrix = array.reshape(bounds(parameter.rectangles))
    for part, rectangle in zip(parameter.parts, parameter.rectangles, strict=True):
        yield part, rectangle.of(matrix, part.shape)


def refresh(stacks: Iterable[Stack]) -> int:
    """Update all copies in the buffers of stacks, before a run; return the bytes copied.

    Cost: a comparison per part, and a copy of each part that belongs to another buffer.
    """
    n_bytes = 0
    for buffer in dict.fromkeys(map(BUFFER, stacks)):
        n_bytes += 0 if buffer is None else buffer.refresh()
    return n_bytes


class ZeroGradients(NamedTuple):
    """Newly allocated gradients.

    Attributes:
        of: the gradient of each parameter, by name.
        wholes: the arrays that hold all dense gradients as views, each once.
    """

    of: dict[str, Gradient]
    wholes: list[FloatArray]


def make_gradients(parameters: Mapping[str, Parameter], rows: Collection[int]) -> ZeroGradients:
    """Allocate a zero gradient for each parameter; gradients of one buffer's parameters have its layout.

    Args:
        parameters: the parameters, by name.
        rows: `id`s of the parameters whose gradient is `Rows`.
    """
    made: dict[str, Gradient] = {}
    wholes: dict[SharedBuffer | str, FloatArray] = {}
    for name, parameter in parameters.items():
        buffer, store = parameter.buffer, parameter.store
        if id(parameter) in rows:
            made[name] = Rows.zeros(parameter.shape, parameter.dtype, store)
            continue
        # One array for all parameters of a buffer, laid out alike, so that their gradients are adjacent too.
        key = name if buffer is None else buffer
        if key not in wholes:
            shape = parameter.shape if buffer is None else buffer.shape
            wholes[key] = store.xp.zeros(shape, parameter.dtype)
        whole = wholes[key]
        made[name] = whole if buffer is None else buffer.owned[id(parameter)].of(whole, parameter.shape)
    return ZeroGradients(made, list(wholes.values()))


class Targets:
    """The arrays that a backend adds gradients to, including those of stacks.

    Attributes:
        arrays: the arrays, by `id` of the parameter or stack.
        scattered: stacks whose parts' gradients are not adjacent, with temporary arrays for their gradients; see
            `finish`.

    Args:
        gradients: the gradients, by `id` of each trainable parameter.
        stacks: the stacks that the programs read.
    """

    def __init__(self, gradients: Mapping[int, Gradient], stacks: Sequence[Stack]) -> None:
        self.arrays: dict[int, Gradient] = dict(gradients)
        self.scattered: list[tuple[Stack, FloatArray]] = []
        self._gradients = dict(gradients)
        self._stacks = stacks
        for stack in dict.fromkeys(stack for stack in stacks if stack.trainable):
            if not all(id(part) in gradients for part in stack.parts):
                continue  # only outdated types read this stack: its parameters have been replaced since
            parts = [array for part in stack.parts if not isinstance(array := gradients[id(part)], Rows)]
            assert len(parts) == len(stack.parts), "the gradient of a parameter in a stack must be dense"
            together = find_whole(parts, stack.rectangles, stack.store)
            if together is None:
                together = stack.store.xp.zeros(stack.shape, stack.dtype)
                self.scattered.append((stack, together))
            self.arrays[id(stack)] = together.reshape(stack.shape)

    def restart(self, gradients: Mapping[int, Gradient], stacks: Sequence[Stack]) -> bool:
        """Clear the temporary arrays for another run with the same gradient objects and list of stacks.

        Returns:
            False if the gradients or stacks differ, so that new `Targets` are needed. Equal gradients imply equal
            trainable parameters, so trainability is not compared.
        """
        known = self._gradients
        if stacks is not self._stacks or gradients.keys() != known.keys():
            return False
        if not all(map(is_, gradients.values(), known.values())):
            return False
        for _, together in self.scattered:
            together.fill(0)
        return True

    def finish(self) -> int:
        """Add the temporary arrays to the gradients of the parts, once per run; return the bytes moved."""
        for stack, together in self.scattered:
            for part, piece in pieces_of(stack, together):
                array = self._gradients[id(part)]
                assert not isinstance(array, Rows)
                array += piece
        return sum(together.nbytes for _, together in self.scattered)


def _parts(rows: Sequence[Row]) -> tuple[Row, tuple[Rectangle, ...]]:
    """Return the parameters in rows, and their rectangles."""
    return tuple(part for row in rows for part in row), tile([[part.shape for part in row] for row in rows])


def _rows_of(parameter: Parameter) -> tuple[Row, ...]:
    return parameter.rows if isinstance(parameter, Stack) else ((parameter,),)


def _key(row: Row) -> tuple[int, ...]:
    return tuple(id(part) for part in row)


def _stack_of(rows: Sequence[Row]) -> Stack:
    known: dict[tuple[tuple[int, ...], ...], Stack] = rows[0][0].stacks
    key = tuple(_key(row) for row in rows)
    if key not in known:
        known[key] = Stack(rows)
    return known[key]


def _find_buffer(stack: Stack) -> bool:
    """Place a stack in the buffer that holds its parts in order with the fewest copies; return whether one exists."""
    buffers = {id(part.buffer): part.buffer for part in stack.parts}.values()
    found = [(*place, buffer) for buffer in buffers if buffer is not None and (place := buffer.find(stack)) is not None]
    if found:
        _, where, buffer = min(found, key=lambda option: option[0])
        stack.lie_in(buffer, where)
    return bool(found)


def _overlapping(stacks: Sequence[Stack]) -> list[list[Stack]]:
    """Group the stacks that share rows, directly or through others."""
    groups: list[tuple[set[tuple[int, ...]], list[Stack]]] = []
    for stack in stacks:
        rows, members = {_key(row) for row in stack.rows}, [stack]
        for group in [g for g in groups if not rows.isdisjoint(g[0])]:  # merges all groups that this stack joins
            rows |= group[0]
            members = [*group[1], *members]
            groups.remove(group)
        groups.append((rows, members))
    return [members for _, members in groups]
