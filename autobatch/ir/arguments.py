"""Keys: the part of a call's arguments that determines the type of its node.

An argument is a tree of values, data (ints, floats), static objects, and containers. The keys of two calls are equal
exactly when the calls may share a node type.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from inspect import signature
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from autobatch.errors import AutobatchError
from autobatch.ops.define import Op
from autobatch.ops.operators import Operators
from autobatch.params.module import Module

PLAIN = (bool, str, int, float, bytes, type(None), enum.Enum, tuple, frozenset, type, np.dtype)
BY_IDENTITY = (Module, Operators, np.ndarray, ref)
BY_VALUE = set[type]()
"""Classes written in Python whose equal objects no program can distinguish; other modules add their own."""
OF_VALUES = ("fractions", "pathlib", "uuid")  # modules of Python with only such classes
HEAP_TYPE = 1 << 9  # flag in `type.__flags__`: made at run time


class Static:
    """A static argument, which is part of the type; compared by type and bits, see `exact`."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and bool(exact(self.value) == exact(other.value))

    def __hash__(self) -> int:
        return hash(exact(self.value))

    def __repr__(self) -> str:
        return repr(self.value)


class Fixed:
    """Data of a call, an int, a float or an array of ints or bools, whose numbers are part of the type.

    Attributes:
        numbers: a copy of the data.
    """

    __slots__ = ("_content", "numbers")

    def __init__(self, data: Any) -> None:
        array = np.array(data)
        self.numbers = data if isinstance(data, (int, float)) else array
        self._content = type(data), array.dtype.str, array.shape, array.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    def __repr__(self) -> str:
        return " ".join(repr(self.numbers).split())


BY_VALUE |= {Static, Fixed}


def exact(x: Any) -> Hashable:
    """Return a key that is equal for two objects only if no program can distinguish them; valid while `x` lives.

    Unlike ==, it distinguishes 1 from True and 0.0 from -0.0, also inside tuples, and treats NaN as equal to itself.
    See `is_by_identity` for objects with another meaning of ==, or whose attributes may differ or change.

    >>> exact((1, 0.0)) == exact((True, 0.0)), exact(0.0) == exact(-0.0), exact(float("nan")) == exact(float("nan"))
    (False, False, True)
    """
    kind = type(x)
    if is_by_identity(x):
        return kind, id(x)
    # repr tells -0.0 from 0.0 and is the same for all NaNs. It is that of float, because a subclass may have its own.
    if isinstance(x, float):
        return kind, float.__repr__(x)
    if isinstance(x, (complex, np.generic)):
        return kind, repr(x)
    if isinstance(x, tuple):
        return kind, tuple(map(exact, x))
    if isinstance(x, frozenset):
        return kind, frozenset(map(exact, x))
    if is_dataclass(x) and not isinstance(x, type):
        return kind, tuple(exact(getattr(x, f.name)) for f in fields(x))
    return kind, x


def is_by_identity(x: Any) -> bool:
    """Return whether a program may distinguish `x` from an equal object of its class.

    These are arrays, tensors, parameters, objects without a hash, and instances of classes written in Python, except
    frozen dataclasses, which are compared by all their fields, those in `BY_VALUE`, and those of `OF_VALUES`.
    """
    kind = type(x)
    if isinstance(x, np.generic):
        return False
    if isinstance(x, BY_IDENTITY) or hasattr(kind, "__array__"):
        return True
    if isinstance(x, (str, bytes, int, float, complex, tuple, frozenset)):
        return bool(getattr(x, "__dict__", None))  # objects of a subclass may have attributes
    if not is_hashable(x):
        return True
    if (params := vars(kind).get("__dataclass_params__")) is not None:
        return not (params.frozen and params.eq)
    is_value = kind in BY_VALUE or kind.__module__.partition(".")[0] in OF_VALUES
    return bool(kind.__flags__ & HEAP_TYPE) and not is_value


def is_hashable(x: Any) -> bool:
    """Return whether `x` has a hash; a part without one, such as a list in a tuple, rules that out."""
    try:
        hash(x)
    except TypeError:
        return False
    return True


PLAIN_TUPLES: set[type] = {tuple}
"""Tuple classes that are built from one iterable, as `tuple` is; other libraries add their own."""


_takes_fields: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


def _rebuild(kind: type, values: dict[str, Any]) -> Any:
    """Build a dataclass whose fields have these values, whatever its constructor makes of them."""
    given = {f.name: values[f.name] for f in fields(kind) if f.init}
    if kind not in _takes_fields:
        _takes_fields[kind] = signature(kind).parameters.keys() == given.keys()
    # The constructor may set attributes other than fields, so it runs; the loop restores fields that it changed again.
    try:
        made = kind(**given) if _takes_fields[kind] else object.__new__(kind)
    except AutobatchError:
        raise
    except Exception:  # the constructor cannot compute with values, such as methods of torch
        made = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def is_structure(x: Any) -> bool:
    """Return whether `x` is a container of arguments or results."""
    kind = type(x)  # `x.__class__`, which isinstance reads too, is list for a traced list
    return issubclass(kind, (tuple, list, dict)) or (is_dataclass(x) and not isinstance(x, (type, Module, Op)))


def parts_of(structure: Any) -> Sequence[Any]:
    """Return the elements of a container of arguments or results, in order."""
    if type(structure) in (tuple, list):
        return structure  # type: ignore[no-any-return]
    if isinstance(structure, dict):
        return list(structure.values())
    if is_dataclass(structure):
        return [getattr(structure, f.name) for f in fields(structure)]
    parts: Sequence[Any] = structure
    return parts


def leaves(x: Any) -> Iterator[Any]:
    """Yield the leaves of a structure, in order: the parts that are not themselves structures."""
    if is_structure(x):
        for part in parts_of(x):
            yield from leaves(part)
    else:
        yield x


def map_leaves(function: Callable[[Any], Any], x: Any) -> Any:
    """Apply a function to each leaf of a structure, and return a structure of the same form."""
    if not is_structure(x):
        return function(x)
    # `build` reads only the kind of container from the key, which therefore needs no children.
    return Key.of_structure(x, ()).build([map_leaves(function, part) for part in parts_of(x)])


def put_together(structure: Any, outputs: Sequence[Any]) -> Any:
    """Build the result of a cell from its outputs; `structure` has their numbers in its leaves."""
    if isinstance(structure, int):
        return outputs[structure]
    if isinstance(structure, Static):
        return structure.value
    if isinstance(structure, tuple):
        return tuple(put_together(part, outputs) for part in structure)
    return structure.build([put_together(part, outputs) for part in structure.children])


@dataclass(frozen=True)
class Key:
    """The type-relevant part of an argument.

    Attributes:
        kind: "value", "int", "float", "static", "each" (a list of any length, its element the only child), "rows" (an
            array of any length, its row the only child), "tuple", "list", "dict" or "dataclass".
        detail: shape of a value or data; a static object; the class of a container, or its keys, which are static.
        children: the keys of the parts of a container.
        below: exclusive upper bound of a value that holds ints; 0 for other values.
        dtype: the dtype that numbers stand for: of a value, see `autobatch.ir.program.dtype_of`; of ints, "bool" or "".
    """

    kind: str
    detail: Any
    children: tuple[Key, ...] = ()
    below: int = 0
    dtype: str = ""

    @property
    def is_complex(self) -> bool:
        """Return whether numbers stand for complex ones, whose two parts lie along the last axis."""
        return self.dtype.startswith("complex")

    @property
    def labels(self) -> Sequence[Any]:
        """Return the names of the children, for messages and print-outs."""
        match self.kind:
            case "dict":
                return list(self.detail.value)
            case "dataclass":
                return [f.name for f in fields(self.detail)]
        return range(len(self.children))

    def build(self, children: Sequence[Any]) -> Any:
        """Build the container from these children."""
        match self.kind:
            case "dict":
                return dict(zip(self.labels, children, strict=True))
            case "dataclass":
                return _rebuild(self.detail, dict(zip(self.labels, children, strict=True)))
            case "list":
                return list(children)
        # Not by the class's own constructor, which may change the elements again.
        return tuple(children) if self.detail is None else tuple.__new__(self.detail, children)

    @staticmethod
    def of_structure(container: Any, children: Sequence[Any]) -> Key:
        """Return the key of a container whose children have these keys (or other objects in their place)."""
        parts = tuple(children)
        if isinstance(container, dict):
            return Key("dict", Static(tuple(container)), parts)
        if is_dataclass(container):
            return Key("dataclass", type(container), parts)
        if isinstance(container, list):
            return Key("list", None, parts)
        return Key("tuple", None if type(container) in PLAIN_TUPLES else type(container), parts)

    @property
    def n_lists(self) -> int:
        """Count the lists of any length, and the arrays of any number of rows."""
        return 1 if self.kind in ("each", "rows") else sum(child.n_lists for child in self.children)

    def leaves(self) -> Iterator[Key]:
        """Yield the values and data, in order."""
        if self.kind in ("value", "int", "float"):
            yield self
        for child in self.children:
            yield from child.leaves()

    def __str__(self) -> str:
        return self.text(sizes=True)

    def text(self, sizes: bool) -> str:
        """Format the key; without sizes it is the same for models of other widths, and in other processes."""
        match self.kind:
            case "value" | "int" | "float":
                kind = f"{'int ' if self.below else ''}{self.kind}"
                limit = f" below {self.below}" if self.below and sizes else ""
                return f"{kind}{list(self.detail) if self.detail and sizes else ''}{limit}"
            case "static":
                plain = isinstance(self.detail.value, PLAIN) or (sizes and not isinstance(self.detail.value, Module))
                return repr(self.detail) if plain else type(self.detail.value).__name__
            case "rows":
                # "value[4]" becomes "value[n, 4]": `others` keeps the closing bracket.
                name, _, others = self.children[0].text(sizes).partition("[")
                return f"{name}[n, {others}" if others else f"{name}[n]"
            case "each":
                return f"{self.children[0].text(sizes) if self.children else 'nothing'}*"
        named = self.kind in ("dict", "dataclass")
        parts = [
            f"{k}: {c.text(sizes)}" if named else c.text(sizes) for k, c in zip(self.labels, self.children, strict=True)
        ]
        return f"{self.kind}({', '.join(parts)})"


class ShownKey(Key):
    """The key of an argument that is known only by its descriptions, with and without sizes."""

    def text(self, sizes: bool) -> str:
        """Return the description with or without sizes."""
        shown: str = self.detail[0 if sizes else 1]
        return shown

    @classmethod
    def of(cls, key: Key) -> ShownKey:
        """Return a key with the same descriptions that holds no objects."""
        return cls("shown", (key.text(sizes=True), key.text(sizes=False)))
