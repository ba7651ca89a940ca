"""Recursions as values: what `fold` over trees and DAGs, and `scan` over sequences, have in common.

A recursion names the functions that compute states. The native core reads an instance into a `Forest`, arrays of nodes
with children first, and calls the functions for each node (`native/record/forest.h`, `fold.h`). While a program is
recorded, it logs calls of cells of known forms without any Python object; so instances may be deep, and recording takes
some tens of nanoseconds a node.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
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
    """The fields of a node that a function takes: its parameters after states.

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
    leaf: tuple[int, ...]
    each: tuple[int, ...]
    root: tuple[int, ...]
    where: int


class Recursion(ABC):
    """A recursion over the nodes of an instance.

    Attributes:
        name: of the attribute of a class that holds it; empty elsewhere.
        node: computes the state of a node; leaf: that of a node without children, if given.
        each, root: functions of states, for the result: of the state of each node, or of the last one.
        where: the field of the nodes for which `each` is called.
    """

    kind: str
    """The name of the public function that makes it."""
    n_states = 1
    """The number of parameters of `node` that are states."""

    def __init__(
        self,
        node: Function,
        each: Function | None,
        root: Function | None,
        where: str | None,
        leaf: Function | None = None,
    ) -> None:
        self.name = ""
        self.node, self.leaf, self.each, self.root, self.where = node, leaf, each, root, where
        self._columns: dict[Any, Columns] = {}

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the arguments that are given, by name, which make an equal recursion."""

    @abstractmethod
    def read(self, instance: Any, names: tuple[str, ...]) -> Forest:
        """Read an instance into arrays of nodes with some fields; a DataError if it is malformed."""

    @abstractmethod
    def compute(self, forest: Forest, node: Any, leaf: Any, each: Any, where: int, initial: Any) -> Any:
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
        return [x for x in (self.node, self.leaf, self.each, self.root) if x is not None]

    def run(
        self, owner: object, instance: Any, *, each: Function | None = None, where: str | None = None, **options: Any
    ) -> Any:
        """Run over an instance with the functions, or the methods of an owner.

        Args:
            each, where: as for `autobatch.fold`.
            options: those of `find_initial`.
        """
        given = self.each if each is None else each
        functions = [
            None if function is None else self._function(owner, function)
            for function in (self.node, self.leaf, given, self.root if given is None else None)
        ]
        counts = self.n_states, 0, 1, 1
        fields = [None if x is None else fields_of(x, n) for x, n in zip(functions, counts, strict=True)]
        columns = self._find_columns(fields, self.where if where is None else where)
        forest = self.read(instance, columns.names)
        node, leaf, of_nodes = (
            x and of and (x, _name_of(x), columns[k], of.are_required)
            for k, (x, of) in enumerate(zip(functions[:3], fields[:3], strict=True), 1)
        )
        result = self.compute(forest, node, leaf, of_nodes, columns.where, self.find_initial(owner, **options))
        root, of_root = functions[3], fields[3]
        if root is None or of_root is None:
            return result
        return root(result, **_values(forest, columns.root, of_root, _name_of(root)))

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

    def _find_columns(self, fields: Sequence[Fields | None], where: str | None) -> Columns:
        """Return where the fields of the node, the leaf, each and the root are among all."""
        taken = tuple([of.names if of else () for of in fields])
        found = self._columns.get((taken, where))
        if found is None:
            names = tuple(dict.fromkeys([*chain(*taken), *filter(None, (where,))]))
            place = {name: k for k, name in enumerate(names)}
            node, leaf, each, root = (tuple(place[name] for name in some) for some in taken)
            found = Columns(names, node, leaf, each, root, place[where] if where else -1)
            self._columns[taken, where] = found
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


_fields: WeakKeyDictionary[Any, dict[tuple[bool, int], Fields]] = WeakKeyDictionary()
"""By the function: for itself or for methods of it, and by the number of states."""


def fields_of(function: Callable[..., Any], n_states: int) -> Fields:
    """Return the fields of a node that a function takes after states.

    Raises:
        GraphError: it has fewer parameters, or others cannot be passed by name.
    """
    own = function.cell if isinstance(function, BoundCell) else getattr(function, "__func__", function)
    try:
        known = _fields.setdefault(own, {})
    except TypeError:  # an object without weak references
        return _read_fields(function, n_states)
    key = own is not function, n_states
    if key not in known:
        known[key] = _read_fields(function, n_states)
    return known[key]


def _read_fields(function: Callable[..., Any], n_states: int) -> Fields:
    if isinstance(function, BoundCell):
        parameters = [*function.cell.signature.parameters.values()][1:]
    else:
        signature = function.signature if isinstance(function, Cell) else inspect.signature(function)
        parameters = [*signature.parameters.values()]
    kinds = [p.kind for p in parameters]
    are_states = len(kinds) >= n_states and all(kind in POSITIONAL for kind in kinds[:n_states])
    if not are_states or any(kind not in NAMED for kind in kinds[n_states:]):
        raise GraphError(
            f"{_name_of(function)}() of a recursion must take {n_states or 'no'} states, then fields by their names, "
            f"got ({', '.join(map(str, parameters))})."
        )
    fields = parameters[n_states:]
    return Fields(tuple(p.name for p in fields), tuple(p.default is p.empty for p in fields))


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
