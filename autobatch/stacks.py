"""Stacks: parameters that lie one after the other in memory, so that one matrix product reads them all.

A program reads a `Stack` as one parameter. What lies there are the parameters themselves: each has one *home*, a
buffer shared with its neighbours, of which its `data` is a view; so state dicts, optimizers and checkpoints see
separate named arrays, and nothing is copied per step. A parameter is moved into the first home that it is given. A home
that is wanted for it later holds a copy, which `refresh` brings up to date once per run and counts.
Gradients are the mirror image: those of parameters that lie together are allocated together, so that the gradient of a
stack is added to all of them in place; arrays that lie apart get theirs from an array between (`Targets`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from autobatch.errors import GraphError
from autobatch.losses import zeros_like
from autobatch.module import FloatArray, Parameter, Shape
from autobatch.rows import Gradient, Rows

if TYPE_CHECKING:
    from autobatch.program import Var


class Home:
    """One buffer with the numbers of several parameters, one after the other.

    Attributes:
        parts: the parameters, each once; those without a home get this one.
    """

    def __init__(self, parts: Sequence[Parameter]) -> None:
        self.parts = tuple(parts)
        self.starts = tuple(accumulate((p.data.size for p in parts), initial=0))
        self._place = {id(part): place for place, part in enumerate(parts)}
        self._residents = [place for place, part in enumerate(parts) if part.home is None]
        self._guests = [place for place, part in enumerate(parts) if part.home is not None]
        self._pack()
        for place in self._residents:
            self.parts[place].home = self

    @property
    def residents(self) -> list[Parameter]:
        """The parameters whose home it is, in order."""
        return [self.parts[place] for place in self._residents]

    def find(self, parts: Sequence[Parameter]) -> tuple[int, int] | None:
        """Where parameters lie one after the other in this order: their number of copies, and the first one's place."""
        first = self._place.get(id(parts[0]), len(self.parts))
        if [id(p) for p in self.parts[first : first + len(parts)]] != [id(p) for p in parts]:
            return None
        return sum(first <= guest < first + len(parts) for guest in self._guests), first

    def view(self, first: int, shape: Shape) -> FloatArray:
        """The numbers from a part on, as an array of this shape; packed again if a parameter was moved elsewhere."""
        if self._is_stale():
            self._pack()
        if (first, shape) not in self._seen:
            start = self.starts[first]
            self._seen[first, shape] = self._buffer[start : start + math.prod(shape)].reshape(shape)
        return self._seen[first, shape]

    def refresh(self) -> int:
        """Bring the copies up to date; the bytes copied."""
        if self._is_stale():
            self._pack()
        for place in self._guests:
            np.copyto(self._views[place], self.parts[place].data)
        return sum(self._views[place].nbytes for place in self._guests)

    def _is_stale(self) -> bool:
        parts, views = self.parts, self._views
        if any(parts[place].data is not views[place] for place in self._residents):
            return True
        return any(parts[place].dtype != self._buffer.dtype for place in self._guests)

    def _pack(self) -> None:
        """Move the parameters into a new buffer."""
        dtype = self.parts[0].dtype
        other = next((p for p in self.parts if p.dtype != dtype), None)
        if other is not None:
            raise GraphError(
                f"cannot stack {self.parts[0]!r} and {other!r}, which differ in dtype; "
                "call astype() on the whole model."
            )
        self._buffer = np.empty(self.starts[-1], dtype)
        spans = zip(self.starts, self.starts[1:], self.parts, strict=False)
        self._views = [self._buffer[start:stop].reshape(part.shape) for start, stop, part in spans]
        self._seen: dict[tuple[int, Shape], FloatArray] = {}
        for place in self._residents:
            self.parts[place].move_to(self._views[place])
        for place in self._guests:
            np.copyto(self._views[place], self.parts[place].data)


class Stack(Parameter):
    """Parameters one after the other along the first axis, read by programs as one; made by `make_stack`."""

    def __init__(self, parts: Sequence[Parameter]) -> None:
        self.parts = tuple(parts)
        self._shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        self._first = 0

    @property
    def data(self) -> FloatArray:
        """All numbers; what is assigned is copied into the parts."""
        if self.home is None:
            settle([self])
        assert self.home is not None
        return self.home.view(self._first, self._shape)

    @data.setter
    def data(self, values: npt.ArrayLike) -> None:
        starts = accumulate((part.shape[0] for part in self.parts), initial=0)
        for part, start in zip(self.parts, starts, strict=False):
            part.data = np.asarray(values)[start : start + part.shape[0]]

    @property
    def shape(self) -> Shape:
        """That of the first part, with the first axes added up."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the parts."""
        return self.parts[0].dtype

    @property
    def trainable(self) -> bool:
        """Whether the parts are, which all are or none is."""
        return self.parts[0].trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        for part in self.parts:
            part.trainable = value

    def astype(self, dtype: npt.DTypeLike) -> Self:
        """Change the dtype of the parts."""
        for part in self.parts:
            part.astype(dtype)
        return self

    def lies_in(self, home: Home, first: int) -> None:
        """Read the numbers from this part of a home on."""
        self.home, self._first = home, first


def make_stack(parts: Sequence[Parameter]) -> Stack:
    """The stack of these parameters in this order: the same one whenever it is asked for.

    Args:
        parts: two or more different ones, whose shapes differ in the first axis at most, and that are either all
            trainable or all not.

    Its numbers get their place when `settle` is called, or when they are first read.

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
    known = parts[0].stacks
    key = tuple(id(part) for part in parts)
    if key not in known:
        known[key] = Stack(parts)
    return known[key]


def settle(stacks: Iterable[Stack], order: Sequence[Parameter] = ()) -> None:
    """Give stacks their places: where their parts lie so already, else in a new home.

    Args:
        stacks: those that have places keep them.
        order: stacks that share parts get one home, whose parts lie in this order; it keeps the parts of each stack
            side by side.
    """
    place = {id(part): at for at, part in enumerate(order)}
    for cluster in _overlapping([stack for stack in stacks if stack.home is None and not _lies_somewhere(stack)]):
        parts = {id(part): part for stack in cluster for part in stack.parts}
        home = Home(sorted(parts.values(), key=lambda part: place.get(id(part), 0)))
        for stack in cluster:
            found = home.find(stack.parts)
            assert found is not None, "the order keeps the parts of each stack side by side"
            stack.lies_in(home, found[1])


def stacks_in(vars: Iterable[Var]) -> Iterator[Stack]:
    """The stacks that a program reads."""
    for var in vars:
        parameter = getattr(var.source, "parameter", None)
        if isinstance(parameter, Stack):
            yield parameter


def parts_of(parameter: Parameter) -> tuple[Parameter, ...]:
    """The parameters that a parameter of a program stands for: its parts if it is a stack, else itself."""
    return parameter.parts if isinstance(parameter, Stack) else (parameter,)


def refresh(stacks: Iterable[Stack]) -> int:
    """Bring all copies that stacks read up to date, before a run; the bytes copied.

    Cost: a comparison per part, and copying the parts that have their homes elsewhere.
    """
    return sum(home.refresh() for home in {id(s.home): s.home for s in stacks}.values() if home is not None)


def make_gradients(
    parameters: Mapping[str, Parameter], rows: Collection[int], buffers: Mapping[str, Gradient]
) -> dict[str, Gradient]:
    """Zeros for the gradient of each parameter; those of parameters with one home lie together.

    Args:
        parameters: by name.
        rows: the `id`s of those whose gradient is `Rows`.
        buffers: what an earlier call returned, used again where it fits.
    """
    made: dict[str, Gradient] = {}
    neighbours: defaultdict[Home | None, dict[int, str]] = defaultdict(dict)
    for name, parameter in parameters.items():
        if id(parameter) in rows:
            made[name] = Rows.zeros(parameter.shape, parameter.dtype)
        elif parameter.home is None:
            made[name] = zeros_like(parameter.data, buffers.get(name))
        else:
            neighbours[parameter.home][id(parameter)] = name
    for home, names in neighbours.items():
        assert home is not None
        residents = [part for part in home.residents if id(part) in names]
        before = [buffers.get(names[id(part)]) for part in residents]
        zeros = _zeros_together(residents, before)
        made |= {names[id(part)]: array for part, array in zip(residents, zeros, strict=True)}
    return {name: made[name] for name in parameters}


class Targets:
    """The arrays that a backend adds gradients to, those of stacks included.

    Attributes:
        arrays: by `id` of the parameter or stack.

    Args:
        gradients: by `id` of each trainable parameter.
        stacks: those that the programs read.
    """

    def __init__(self, gradients: Mapping[int, Gradient], stacks: Iterable[Stack]) -> None:
        self.arrays: dict[int, Gradient] = dict(gradients)
        self._apart: list[tuple[list[FloatArray], FloatArray]] = []
        for stack in {id(stack): stack for stack in stacks if stack.trainable}.values():
            parts = [array for part in stack.parts if isinstance(array := gradients[id(part)], np.ndarray)]
            assert len(parts) == len(stack.parts), "the gradient of a parameter in a stack is no Rows"
            together = _as_one(parts)
            if together is None:
                together = np.zeros(sum(array.size for array in parts), stack.dtype)
                self._apart.append((parts, together))
            self.arrays[id(stack)] = together.reshape(stack.shape)

    def finish(self) -> int:
        """Add what was added to stacks to those of their parts that lie apart; call it once. The bytes moved."""
        for parts, together in self._apart:
            start = 0
            for array in parts:
                array += together[start : start + array.size].reshape(array.shape)
                start += array.size
        return sum(together.nbytes for _, together in self._apart)


def _lies_somewhere(stack: Stack) -> bool:
    """Place a stack where its parts lie side by side already, with the fewest copies."""
    homes = {id(part.home): part.home for part in stack.parts}.values()
    found = [(*place, home) for home in homes if home is not None and (place := home.find(stack.parts)) is not None]
    if found:
        _, first, home = min(found, key=lambda option: option[0])
        stack.lies_in(home, first)
    return bool(found)


def _overlapping(stacks: Sequence[Stack]) -> list[list[Stack]]:
    """The stacks in groups that share parts, directly or through others."""
    groups: list[tuple[set[int], list[Stack]]] = []
    for stack in stacks:
        parts, members = {id(part) for part in stack.parts}, [stack]
        for group in [g for g in groups if not parts.isdisjoint(g[0])]:
            parts |= group[0]
            members = [*group[1], *members]
            groups.remove(group)
        groups.append((parts, members))
    return [members for _, members in groups]


def _zeros_together(parameters: Sequence[Parameter], buffers: Sequence[Gradient | None]) -> list[FloatArray]:
    """`buffers`, filled with zeros, if they fit the parameters and lie together; else parts of a new array."""
    arrays = [array for array in buffers if isinstance(array, np.ndarray)]
    if [(a.shape, a.dtype) for a in arrays] == [(p.shape, p.dtype) for p in parameters]:
        together = _as_one(arrays)
        if together is not None:
            together.fill(0)
            return arrays
    starts = list(accumulate((p.data.size for p in parameters), initial=0))
    made = np.zeros(starts[-1], parameters[0].dtype)
    return [made[start : start + p.data.size].reshape(p.shape) for p, start in zip(parameters, starts, strict=False)]


def _as_one(arrays: Sequence[FloatArray]) -> FloatArray | None:
    """The flat array that arrays are consecutive parts of; None if they are not."""
    base = arrays[0].base
    if not isinstance(base, np.ndarray) or base.ndim != 1 or not base.flags.c_contiguous:
        return None
    address = start = _address(arrays[0])
    for array in arrays:
        if array.base is not base or array.dtype != base.dtype or not array.flags.c_contiguous:
            return None
        if _address(array) != address:
            return None
        address += array.nbytes
    first = (start - _address(base)) // base.itemsize
    return base[first : first + (address - start) // base.itemsize]


def _address(array: FloatArray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
