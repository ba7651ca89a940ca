"""Cells: functions over one instance's values that become static subgraphs.

A cell has three lives. Called plainly it runs *eagerly*: ordinary Python over arrays. While a program is
*recorded* its calls become nodes. And once per signature its body is *traced*: run with symbolic values, each op
appending an instruction to a `CellProgram`. A cell called inside another is part of it.
"""

from __future__ import annotations

import inspect
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial, update_wrapper
from typing import Any, overload

import numpy as np

from autobatch.errors import AutobatchError, GraphError, ShapeError
from autobatch.ir.arguments import Key, Static, is_structure, parts_of
from autobatch.ir.builder import Builder
from autobatch.ir.program import NODE, Attribute, CellProgram, Port, first_leaf
from autobatch.ir.program_check import check_cell
from autobatch.ops.eager import EagerArray, freeze, plain_array
from autobatch.ops.operators import STAGE, Operators, stage
from autobatch.ops.randomness import cell_call
from autobatch.ops.variadic import VariadicPort
from autobatch.params.module import Module, shared_dtype
from autobatch.system.trust import checking


class Cell:
    """A function or method marked with `@cell`."""

    def __init__(self, function: Callable[..., Any], static: tuple[str, ...] = ()) -> None:
        update_wrapper(self, function)
        self.function = function
        self.name = function.__name__
        self.signature = inspect.signature(function)
        self.static = static
        unknown = set(static) - set(self.signature.parameters)
        if unknown:
            raise GraphError(f"cell {self.name!r} has no argument {sorted(unknown)[0]!r} to make static.")

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        return self if owner is None else BoundCell(self, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _call(self, None, args, kwargs)

    def __reduce__(self) -> str:
        """Copies are the cell itself, and pickles name it, as those of the function would."""
        return self.function.__qualname__

    def __repr__(self) -> str:
        return f"<cell {self.name}{self.signature}>"


class BoundCell:
    """A cell with the module that it reads its parameters from."""

    __slots__ = ("cell", "owner")

    def __init__(self, cell: Cell, owner: object) -> None:
        self.cell, self.owner = cell, owner

    @property
    def __self__(self) -> object:
        """The owner, under the name that bound methods give it."""
        return self.owner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _call(self.cell, self.owner, args, kwargs)

    def __repr__(self) -> str:
        return f"<cell {self.cell.name} of {type(self.owner).__name__}>"


@overload
def cell(function: Callable[..., Any]) -> Any: ...
@overload
def cell(*, static: tuple[str, ...] = ()) -> Callable[[Callable[..., Any]], Any]: ...
def cell(function: Any = None, *, static: tuple[str, ...] = ()) -> Any:
    """Mark a function or method as a cell: a unit that is traced once, and batched over many calls.

    Args:
        function: takes values (arrays), ints and floats (data of the node), and static arguments: bool, str, None,
            enums and modules; tuples, lists, dicts and dataclasses of these. Returns values in any such structure.
            Shapes are those of one node, without a batch axis. Inputs are read-only. What else the body reads may
            change, and is followed; but no random numbers, nor the time.
        static: names of arguments whose value is part of the type although it is an int or a Parameter.

    >>> import autobatch as ab
    >>> @ab.cell
    ... def square(x):
    ...     return x * x
    >>> float(square(np.float32(3.0)))
    9.0
    """
    return Cell(function, static) if function is not None else lambda f: Cell(f, static)


def _call(called: Cell, owner: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    current = STAGE.current
    if current is not None and not isinstance(current, Builder):
        return current.call_cell(called, owner, args, kwargs)
    function = called.function if owner is None else called.function.__get__(owner)
    if current is not None:
        return function(*args, **kwargs)
    module = owner if isinstance(owner, Module) else None
    dtype = None if module is None else shared_dtype(module)
    read_only = partial(_read_only, dtype=dtype)
    args, kwargs = _on_arrays(args, read_only), _on_arrays(kwargs, read_only)
    with cell_call(None if module is None else module.training):
        return _on_arrays(function(*args, **kwargs), freeze)


def _read_only(x: Any, dtype: Any) -> Any:
    """An array, or a number of NumPy's, as a read-only array; floats cast to the model's dtype."""
    if type(x) is EagerArray and not x.flags.writeable and x.dtype == dtype:
        return x
    array = plain_array(x)
    return freeze(array.astype(dtype, copy=False) if array.dtype.kind == "f" and dtype is not None else array)


def _on_arrays(x: Any, function: Callable[[Any], Any]) -> Any:
    """`x` with a function applied to the arrays in it, in containers of its own where they could be changed."""
    kind = type(x)
    if isinstance(x, (np.ndarray, np.floating)):
        return function(x)
    if kind is tuple or kind is list:
        return kind([_on_arrays(part, function) for part in x])
    if kind is dict:
        return {key: _on_arrays(part, function) for key, part in x.items()}
    if not is_structure(x):
        return x
    own = parts_of(x)
    parts = [_on_arrays(part, function) for part in own]
    return x if all(map(operator.is_, parts, own)) else Key.of_structure(x, ()).build(parts)


class NeedsLength(Exception):
    """The body of a cell wants the length of a list that was offered as a variadic group of this number."""

    def __init__(self, group: int) -> None:
        self.group = group


class _TracedList(VariadicPort):
    """A list argument of any length, inside a trace."""

    def __init__(self, tracer: Tracer, name: str, group: int, element: Key | None) -> None:
        self.tracer, self.name, self.group = tracer, name, group
        self.element = None if element is None else tracer.argument(element, name, group)

    def values(self, shape: Any) -> Any:
        if self.element is None:
            if shape is None:
                raise ShapeError(
                    f"a variadic form of the empty list {self.name!r} needs shape=, the shape of one element."
                )
            self.tracer.resolved[self.group] = key = _key_of_shape(shape)
            self.element = self.tracer.argument(key, self.name, self.group)
        return self.element

    def __getattr__(self, name: str) -> Any:
        if hasattr(list, name):
            raise NeedsLength(self.group)
        raise AttributeError(f"a list has no attribute {name!r}")

    def _needs_length(self, *args: Any) -> Any:
        raise NeedsLength(self.group)

    __iter__ = __len__ = __getitem__ = __contains__ = __reversed__ = _needs_length
    __add__ = __radd__ = __mul__ = __rmul__ = __eq__ = __ne__ = _needs_length


def _key_of_shape(shape: Any) -> Key:
    if all(isinstance(s, int) for s in shape):
        return Key("value", shape)
    return Key("tuple", None, tuple(_key_of_shape(s) for s in shape))


NOT_WATCHED: AbstractContextManager[None] = nullcontext()


class Tracer:
    """Runs a function once on symbolic arguments built from their keys.

    `resolved` maps the variadic groups whose element only the body's `shape=` told to its key.
    """

    def __init__(self, name: str, weight_names: Mapping[int, str]) -> None:
        self.builder = Builder(name, weight_names=weight_names)
        self.resolved: dict[int, Key] = {}
        self.n_leaves: Counter[int] = Counter()
        self.n_groups = 0

    def trace(
        self, call: Callable[..., Any], keys: Mapping[str, Key], watching: AbstractContextManager[None] = NOT_WATCHED
    ) -> tuple[CellProgram, Any]:
        """Trace `call(arguments by name)`; return the program and the structure of its result over output numbers.

        Args:
            watching: within this context the body runs.
        """
        arguments = {name: self.argument(key, name, NODE) for name, key in keys.items()}
        with stage(self.builder):
            try:
                with watching:
                    result = call(arguments)
            except AutobatchError as error:
                raise type(error)(f"in cell {self.builder.name!r}: {error}") from error
        outputs: list[Any] = []
        structure = collect_outputs(result, outputs)
        if not outputs:
            raise GraphError(f"cell {self.builder.name!r} returns {result!r}; a cell returns at least one value.")
        program = self.builder.finish(outputs)
        if checking():
            check_cell(program)
        return program, structure

    def argument(self, key: Key, name: str, domain: int) -> Any:
        """A symbolic argument; its leaves are numbered in order, those of each domain apart."""
        match key.kind:
            case "value":
                return self.builder.add(Port(name, self._leaf(domain)), key.detail, domain)
            case "int" | "float":
                return self.builder.add(Attribute(name, self._leaf(domain), key.kind == "float"), key.detail, NODE)
            case "static":
                return key.detail.value
            case "each":
                self.n_groups += 1
                element = key.children[0] if key.children else None
                return _TracedList(self, name, self.n_groups - 1, element)
        children = [
            self.argument(child, f"{name}.{label}", domain)
            for label, child in zip(key.labels, key.children, strict=True)
        ]
        return key.build(children)

    def _leaf(self, domain: int) -> int:
        self.n_leaves[domain] += 1
        return first_leaf(domain) + self.n_leaves[domain] - 1


def collect_outputs(result: Any, outputs: list[Any]) -> Any:
    """Append the values in `result` to `outputs`; return its structure, with output numbers in their place."""
    if isinstance(result, _TracedList):
        result = list(result)
    if isinstance(result, (Operators, np.ndarray, np.number, int, float)) and not isinstance(result, bool):
        outputs.append(result)
        return len(outputs) - 1
    if isinstance(result, (tuple, list)):
        parts = [collect_outputs(part, outputs) for part in result]
        return tuple(parts) if type(result) is tuple else Key.of_structure(result, parts)
    if is_structure(result):
        return Key.of_structure(result, [collect_outputs(part, outputs) for part in parts_of(result)])
    return Static(result)
