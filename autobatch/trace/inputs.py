"""Inputs: float arrays of instances, recorded so that a loss can be differentiated with respect to them.

The function receives a copy of each instance in which every float array is a `FloatInput`. An input is indexed and
compared like the array, and records the ops that are applied to it. Each part of an array that the program reads
becomes a source. For the gradients of a mini-batch (`Inputs`), the source has the number of the read as an attribute,
so the number survives rewriting and splitting of the graph. The gradients of the sources, summed at the positions that
were read, are the gradients of the arrays. Derivatives inside a program (`autobatch.trace.differentiation`) replace
arrays in the same way.

Only parts that hold a float array are copied. Gradients have the structure of the instance, with None for other parts.
"""

from __future__ import annotations

import copy
import enum
import operator
from collections import deque
from collections.abc import Callable, Iterable
from functools import cache
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autobatch._native import Shortcut
from autobatch.errors import DataError, GraphError
from autobatch.ops.define import Op, first_symbol
from autobatch.ops.eager import plain_array
from autobatch.ops.operators import STAGE, Operators
from autobatch.ops.ports import VariadicPort
from autobatch.ops.taped import Concrete
from autobatch.params.module import Module

Array = NDArray[Any]
FIXED = (set, frozenset, deque, np.ndarray)  # containers that are searched, but not copied with other content
PLAIN = frozenset((int, float, str, bool, type(None)))
NO_PARTS = (
    type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, Shortcut, enum.Enum, Module, Operators, Op,
    VariadicPort, str, bytes,
)  # fmt: skip


class Reads(Protocol):
    """The reads of float arrays with respect to which something is differentiated.

    Attributes:
        recording: the stage that made the inputs; None once it has ended.
    """

    recording: Any

    def read(self, x: FloatInput, is_ragged: bool) -> Any:
        """Return the value of a part of an array, with any number of rows if `is_ragged`."""


class FloatInput(Concrete):
    """A float array of an instance, or a part of one, while something is differentiated with respect to it.

    Attributes:
        data: its numbers.
        positions: the positions of its numbers among those of all inputs; inside a program, of the array alone.
        inputs: the reads of all inputs.
        base: the array that it replaces, or a part of an input of an outer derivative.
    """

    __slots__ = ("base", "inputs", "positions")
    __hash__ = object.__hash__
    _stage, _kind = "given", "an array of an instance"

    def __init__(self, data: Any, positions: Any, inputs: Reads, base: Any = None) -> None:
        super().__init__(np.asarray(data))
        self.positions, self.inputs = np.asarray(positions), inputs
        self.base = self.data if base is None else base

    @property
    def T(self) -> FloatInput:
        return self._view(lambda array: array.T)

    def reshape(self, *shape: Any) -> FloatInput:
        return self._view(lambda array: array.reshape(*shape))

    def ravel(self) -> FloatInput:
        return self.reshape(-1)

    flatten = ravel

    def copy(self) -> FloatInput:
        """Return the input itself, which cannot change."""
        return self

    def astype(self, dtype: Any, **options: Any) -> Any:
        """Return the input itself for a float dtype, since ops use the model's; otherwise a plain array."""
        return self if np.dtype(dtype).kind == "f" else self.data.astype(dtype, **options)

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index) if first_symbol(index) else self._view(operator.itemgetter(index))

    def __repr__(self) -> str:
        return f"<input {self.data!r}>"

    def apply(self, op: Op, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """Record an op outside cells, as a separate cell."""
        return self.recording().apply(op, args, static)

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a function built from ops as a separate cell."""
        return self.recording().apply_function(function, args, kwargs)

    def recording(self) -> Any:
        """Return the current stage; GraphError unless it made this input, or is inside the stage that did."""
        recording = outer = STAGE.current
        while outer is not None and outer is not self.inputs.recording:
            outer = getattr(outer, "outer", None)
        if outer is None:
            raise GraphError(
                f"an input must be used in the recording of its instance, and passed to cells that use it, got one of "
                f"shape {self.shape} elsewhere; pass it to the cell as an argument."
            )
        return recording

    def read(self, is_ragged: bool = False) -> Any:
        """Return the value that ops compute with, with any number of rows if `is_ragged`."""
        self.recording()
        return self.inputs.read(self, is_ragged)

    def _view(self, take: Callable[[Any], Any]) -> FloatInput:
        base = None if self.base is self.data else take(self.base)
        return FloatInput(take(self.data), take(self.positions), self.inputs, base)

    def _compare(self, compare: Callable[[Any, Any], Any], other: Any) -> Any:
        """Compare the numbers; record the comparison with a value of the recording."""
        if isinstance(other, Operators) and not isinstance(other, Concrete):
            return getattr(Operators, f"__{compare.__name__}__")(self, other)
        return super()._compare(compare, other)


def is_float_array(x: Any) -> bool:
    """Return whether `x` is an array of floats."""
    return isinstance(x, np.ndarray) and x.dtype.kind == "f"


class Held:
    """The float arrays that an instance holds, in tuples, lists, dicts and objects with attributes.

    An array in several places is listed once.

    Args:
        is_one: predicate for the objects to find, if not float arrays.

    Attributes:
        arrays: the arrays, in the order of the search.

    Raises:
        DataError: a set, a deque, an array of objects or a structured array holds a float array.
    """

    def __init__(self, instance: Any, is_one: Callable[[Any], bool] = is_float_array) -> None:
        self.arrays: list[Any] = []
        self._instance = instance
        self._number: dict[int, int] = {}
        parents: dict[int, list[int]] = {id(instance): []}
        pending = [(instance, False)]
        met: list[Any] = []  # parts before their holders, except in cycles
        while pending:
            x, is_done = pending.pop()
            if is_done:
                met.append(x)
                continue
            if is_one(x):
                self._number[id(x)] = len(self.arrays)
                self.arrays.append(x)
                continue
            pending.append((x, True))
            # `pending`, and then `met` or `arrays`, keep each part alive, so that `id`s are unique even for parts made
            # by `_parts`. Reversed, because the last one pending is the next.
            for part in reversed(list(_parts(x))):
                kind = type(part)
                if kind in PLAIN or ((kind is tuple or kind is list) and PLAIN.issuperset(map(type, part))):
                    continue
                if id(part) not in parents:
                    parents[id(part)] = []
                    pending.append((part, False))
                parents[id(part)].append(id(x))
        # Only parts on a path from the instance to an array are rebuilt: climb from the arrays to all their holders.
        holding = set[int]()
        climbing = [*self._number]
        while climbing:
            above = [parent for parent in parents[climbing.pop()] if parent not in holding]
            holding.update(above)
            climbing += above
        self._holders = [x for x in met if id(x) in holding]
        for x in self._holders:
            if isinstance(x, FIXED):
                raise DataError(
                    f"float arrays with gradients must be in tuples, lists, dicts or attributes of objects, got one in "
                    f"a {type(x).__name__}; move it."
                )

    def rebuild(self, leaves: list[Any], other: Callable[[Any], Any]) -> Any:
        """Copy the instance with other leaves.

        Args:
            leaves: the replacement of each of `arrays`.
            other: returns the replacement of a part that holds no float array.
        """
        made = {key: leaves[number] for key, number in self._number.items()}
        # Copies of mutable holders are made first and filled below, so that cycles end at a copy. Tuples cannot be
        # filled, so `get` makes each from its replaced parts.
        tuples = {id(x): x for x in self._holders if isinstance(x, tuple)}
        for x in self._holders:
            if id(x) not in tuples:
                made[id(x)] = copy.copy(x)

        def get(part: Any) -> Any:
            key = id(part)
            if key in tuples and key not in made:
                # The constructor of a named tuple takes separate arguments.
                made[key] = tuple.__new__(type(part), map(get, part))
            return made[key] if key in made else other(part)

        for x in self._holders:
            twin = get(x)
            if isinstance(x, list):
                twin[:] = map(get, x)
            elif isinstance(x, dict):
                for name, part in x.items():
                    twin[name] = get(part)
            elif not isinstance(x, tuple):
                kind: Any = type(x)
                slots, own = _slots(kind), getattr(x, "__dict__", {})
                for name, part in attributes(x).items():
                    # Not by `setattr`, which a class may define to raise, or may run a descriptor of this name.
                    if name in own:
                        vars(twin)[name] = get(part)
                    else:
                        slots[name].__set__(twin, get(part))
        return get(self._instance)


def _parts(x: Any) -> Iterable[Any]:
    """Return the parts that a container or an object holds."""
    if isinstance(x, dict):
        return x.values()
    if isinstance(x, np.ndarray):
        return x.ravel().tolist() if x.dtype == object else [x[name] for name in x.dtype.names or ()]
    if isinstance(x, (tuple, list, set, frozenset, deque)) and not isinstance(x, VariadicPort):
        return x
    return () if isinstance(x, NO_PARTS) else attributes(x).values()


def attributes(x: Any) -> dict[str, Any]:
    """Return the attributes that an object stores, in slots and in its dict."""
    kind: Any = type(x)
    slots = {name: slot.__get__(x) for name, slot in _slots(kind).items() if hasattr(x, name)}
    return {**slots, **getattr(x, "__dict__", {})}


@cache
def _slots(kind: Any) -> dict[str, MemberDescriptorType]:
    """Return the slots of the instances of a class, as defined in Python code."""
    classes = [base for base in kind.__mro__ if "__slots__" in vars(base)]
    return {name: x for base in classes for name, x in vars(base).items() if isinstance(x, MemberDescriptorType)}


class Inputs:
    """The inputs of a mini-batch, and the reads of its programs.

    Args:
        recording: the stage that records; its attribute is None once the recording has ended.

    Attributes:
        size: number of elements of the float arrays of all instances.
        reads: for each read, the positions of its numbers.
        source_types: the numbers of the types of the sources.
    """

    def __init__(self, recording: Any) -> None:
        self.recording: Any = recording
        self.size = 0
        self.reads: list[Array] = []
        self.source_types: set[int] = set()
        self._held: list[Held] = []

    def enter(self, instance: Any) -> Any:
        """Return the copy of an instance to pass to the function."""
        held = Held(instance)
        self._held.append(held)
        leaves = [self._leaf(array) for array in held.arrays]
        return held.rebuild(leaves, lambda part: part)

    def _leaf(self, array: Array) -> FloatInput:
        first, self.size = self.size, self.size + array.size
        return FloatInput(plain_array(array), np.arange(first, self.size).reshape(array.shape), self)

    def read(self, x: FloatInput, is_ragged: bool) -> Any:
        """Record a source, and note its read."""
        value, source_type = self.recording.record_input(x.data, len(self.reads), is_ragged)
        self.reads.append(x.positions)
        self.source_types.add(source_type)
        return value

    def structures(self, gradients: Array) -> list[Any]:
        """Return each instance's structure with the gradients of its float arrays, and None for parts without any.

        Args:
            gradients: the gradients of all `size` numbers.
        """
        # The arrays come in the order in which `_leaf` numbered their elements.
        found, first = [], 0
        for held in self._held:
            leaves = []
            for array in held.arrays:
                own = gradients[first : first + array.size].reshape(array.shape)
                leaves.append(own.astype(array.dtype))
                first += array.size
            found.append(held.rebuild(leaves, lambda part: None))
        return found
