"""Recursions as values: what `fold` over trees and DAGs, and `scan` over sequences, have in common.

A recursion names the functions that compute states. The native core reads an instance into a `Forest`, arrays of nodes
with children first, and calls the functions for each node (`native/record/forest.h`, `fold.h`). While a program is
recorded, it logs calls of cells of known forms without any Python object; so instances may be deep, and recording takes
some tens of nanoseconds a node.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple, Self, TypeAlias, overload
from weakref import WeakKeyDictionary

from autobatch._native import BoundCell, Forest
from autobatch.arguments import show
from autobatch.errors import DataError, GraphError
from autobatch.trace.cell import Cell

Function: TypeAlias = str | Callable[..., Any]
"""A function of a recursion, or the name of the method."""
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Fields(NamedTuple):
    """The fields of a node that a function takes: its parameters after the first.

    Attributes:
        names: of the parameters.
        are_required: whether each lacks a default.
    """

    names: tuple[str, ...]
    are_required: tuple[bool, ...]


class Columns(NamedTuple):
    """The fields that a call of a recursion reads, and where those of each function are among them."""

    names: tuple[str, ...]
    node: tuple[int, ...]
    each: tuple[int, ...]
    root: tuple[int, ...]
    where: int


class Recursion(ABC):
    """A recursion over the nodes of an instance.

    Attributes:
        name: of the attribute of a class that holds it; empty elsewhere.
        node: computes the state of a node.
        each, root: functions of states, for the result: of the state of each node, or of the last one.
        where: the field of the nodes for which `each` is called.
    """

    kind: str
    """The name of the public function that makes it."""

    def __init__(self, node: Function, each: Function | None, root: Function | None, where: str | None) -> None:
        self.name = ""
        self.node, self.each, self.root, self.where = node, each, root, where
        self._columns: dict[Any, Columns] = {}

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the arguments that are given, by name, which make an equal recursion."""

    @abstractmethod
    def read(self, instance: Any, names: tuple[str, ...]) -> Forest:
        """Read an instance into arrays of nodes with some fields; a DataError if it is malformed."""

    @abstractmethod
    def compute(self, forest: Forest, node: Any, each: Any, where: int, initial: Any) -> Any:
        """Call the functions for all nodes."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: object, kind: type | None = None) -> BoundRecursion: ...
    def __get__(self, owner: object, kind: type | None = None) -> Self | BoundRecursion:
        """Bind the recursion to the object whose methods it names."""
        return self if owner is None else BoundRecursion(self, owner)

    def __call__(self, instance: Any, **options: Any) -> Any:
        """Run over an instance, with functions that are no methods."""
        return self.run(None, instance, **options)

    def functions(self) -> list[Function]:
        """Return the functions that are given."""
        return [x for x in (self.node, self.each, self.root) if x is not None]

    def run(
        self, owner: object, instance: Any, *, each: Function | None = None, where: str | None = None, **options: Any
    ) -> Any:
        """Run over an instance with the functions, or the methods of an owner.

        Args:
            each, where: as for `autobatch.fold`.
            options: those of `find_initial`.
        """
        node, root = self._function(owner, self.node), None
        fields = fields_of(node)
        each_of = root_of = None
        of_nodes = self.each if each is None else each
        if of_nodes is not None:
            of_nodes = self._function(owner, of_nodes)
            each_of = fields_of(of_nodes)
        elif self.root is not None:
            root = self._function(owner, self.root)
            root_of = fields_of(root)
        columns = self._find_columns(fields, each_of, root_of, self.where if where is None else where)
        forest = self.read(instance, columns.names)
        result = self.compute(
            forest,
            (node, _name_of(self.node), columns.node, fields.are_required),
            of_nodes and each_of and (of_nodes, _name_of(of_nodes), columns.each, each_of.are_required),
            columns.where,
            self.find_initial(owner, **options),
        )
        if root is None or root_of is None:
            return result
        return root(result, **_values(forest, columns.root, root_of, _name_of(root)))

    def find_initial(self, owner: object) -> Any:
        """Return the state before the first node, if the recursion has one."""
        return None

    def _function(self, owner: object, function: Function) -> Any:
        """Return a function of the recursion, or the method that has its name."""
        if not isinstance(function, str):
            return function
        found = getattr(owner, function, None)
        if callable(found):
            return found
        raise self.refuse(owner, function, "a method", found)

    def refuse(self, owner: object, name: str, kind: str, found: Any) -> GraphError:
        """Make the error for a name that is no attribute of the owner, or none of its kind."""
        if owner is None:
            return GraphError(
                f"{self!r} names {name!r}, {kind}, so it must be an attribute of a class; elsewhere, pass the object "
                f"itself."
            )
        return GraphError(f"{name!r} of {self!r} must be {kind} of {type(owner).__name__}, got {show(found)}.")

    def _find_columns(self, node: Fields, each: Fields | None, root: Fields | None, where: str | None) -> Columns:
        key = node.names, each and each.names, root and root.names, where
        found = self._columns.get(key)
        if found is None:
            taken = [fields.names if fields else () for fields in (node, each, root)]
            names = tuple(dict.fromkeys([*chain(*taken), *filter(None, (where,))]))
            place = {name: k for k, name in enumerate(names)}
            of = [tuple(place[name] for name in some) for some in taken]
            found = self._columns[key] = Columns(names, of[0], of[1], of[2], place[where] if where else -1)
        return found


class BoundRecursion:
    """A recursion of an object, which has its methods.

    Attributes:
        recursion, owner: the recursion and the object.
    """

    __slots__ = ("owner", "recursion")

    def __init__(self, recursion: Recursion, owner: object) -> None:
        self.recursion, self.owner = recursion, owner

    @property
    def __self__(self) -> object:
        """The object, as of a bound method."""
        return self.owner

    @property
    def __name__(self) -> str:
        """The name of the recursion."""
        return self.recursion.name or _name_of(self.recursion.node)

    def __call__(self, instance: Any, **options: Any) -> Any:
        """Run over an instance, see `autobatch.fold` and `autobatch.scan`."""
        return self.recursion.run(self.owner, instance, **options)

    def __repr__(self) -> str:
        return f"<{self.recursion.kind} {self.__name__} of {type(self.owner).__name__}>"


_fields: WeakKeyDictionary[Any, dict[bool, Fields]] = WeakKeyDictionary()
"""By the function, for itself and for methods of it."""


def fields_of(function: Callable[..., Any]) -> Fields:
    """Return the fields of a node that a function takes.

    Raises:
        GraphError: its parameters after the first cannot be passed by name, or there is no first.
    """
    own = function.cell if isinstance(function, BoundCell) else getattr(function, "__func__", function)
    try:
        known = _fields.setdefault(own, {})
    except TypeError:  # an object without weak references
        return _read_fields(function)
    is_bound = own is not function
    if is_bound not in known:
        known[is_bound] = _read_fields(function)
    return known[is_bound]


def _read_fields(function: Callable[..., Any]) -> Fields:
    if isinstance(function, BoundCell):
        parameters = [*function.cell.signature.parameters.values()][1:]
    else:
        signature = function.signature if isinstance(function, Cell) else inspect.signature(function)
        parameters = [*signature.parameters.values()]
    kinds = [p.kind for p in parameters]
    if not kinds or kinds[0] not in POSITIONAL or any(kind not in NAMED for kind in kinds[1:]):
        raise GraphError(
            f"the parameters of {_name_of(function)}() in a recursion must be states and then fields by name, "
            f"got ({', '.join(map(str, parameters))})."
        )
    return Fields(tuple(p.name for p in parameters[1:]), tuple(p.default is p.empty for p in parameters[1:]))


def _name_of(function: Any) -> str:
    if isinstance(function, str):
        return function
    if isinstance(function, BoundCell):
        function = function.cell
    return str(getattr(function, "__name__", type(function).__name__))


def field_of(instance: Any, name: str) -> Any:
    """Return a field of an instance, or None."""
    return instance.get(name) if isinstance(instance, dict) else getattr(instance, name, None)


def _values(forest: Forest, columns: tuple[int, ...], fields: Fields, name: str) -> dict[str, Any]:
    """Return the fields that a function takes of the root."""
    if not columns:
        return {}
    if not forest.roots:
        raise DataError(f"an instance must have at least one item, whose fields {name}() takes.")
    found, node = dict[str, Any](), forest.roots[0]
    for field, column, is_required in zip(fields.names, columns, fields.are_required, strict=True):
        try:
            found[field] = forest.value(node, column)
        except KeyError:
            if is_required:
                raise DataError(f"node {node} must have a field {field!r}, which {name}() takes.") from None
    return found
