"""The common base of recursions as objects: `fold` over trees and DAGs, `scan` over sequences, and `fold_edges`.

A recursion names the functions that compute states. The native core reads an instance into a `Forest`, arrays of nodes
with children first, and calls the functions for each node (`native/record/forest.h`, `fold.h`). While a program is
recorded, it logs calls of cells of known forms without any Python object; so instances may be deep, and recording takes
some tens of nanoseconds a node.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Self, TypeAlias, overload
from weakref import ref

from autobatch._native import BoundCell, Forest
from autobatch.arguments import show
from autobatch.errors import DataError, GraphError
from autobatch.trace.cell import Cell

Function: TypeAlias = str | Callable[..., Any]
"""A function of a recursion, or the name of the method."""
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
GIVEN: Any = object()
"""The argument `initial` of a call that does not give one, and so uses the recursion's own initial state."""
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Fields(NamedTuple):
    """The parameters of a function: states, then fields of a node.

    Attributes:
        states: names of the states.
        names: names of the fields.
        are_required: whether each field lacks a default.
        takes_names: whether the states may be passed by name.
    """

    states: tuple[str, ...]
    names: tuple[str, ...]
    are_required: tuple[bool, ...]
    takes_names: bool = True


class Called(NamedTuple):
    """A function that is called for nodes, or None, and its parameters."""

    function: Any
    fields: Fields


NOTHING = Called(None, Fields((), (), ()))


class Callee(NamedTuple):
    """The positions of a function's fields among all fields of a call, and whether each is required."""

    columns: tuple[int, ...]
    are_required: tuple[bool, ...]


class Columns(NamedTuple):
    """The fields that a call of a recursion reads, and which of them its functions take."""

    names: tuple[str, ...]
    node: Callee
    leaf: Callee
    each: Callee
    root: Callee
    where: int


class Recursion(ABC):
    """A recursion over the nodes of an instance.

    Attributes:
        name: the name of the class attribute that holds it; empty elsewhere.
        node: computes the state of a node.
        each: a function of the state of a node, for the result.
        where: the field of the nodes for which `each` is called.
    """

    kind: str
    """The name of the public function that makes it."""

    def __init__(self, node: Function, each: Function | None, where: str | None) -> None:
        self.name = ""
        self.node, self.each, self.where = node, each, where

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the arguments that are given, by name, which make an equal recursion."""

    @abstractmethod
    def functions(self) -> list[Function]:
        """Return the functions that are given."""

    @abstractmethod
    def find_fields(self, owner: object) -> list[str]:
        """Return the names of the fields that the functions, or the methods of an owner, take."""

    @abstractmethod
    def run(self, owner: object, instance: Any, each: Function | None, where: str | None, initial: Any) -> Any:
        """Run over an instance with the functions, or the methods of an owner.

        Args:
            each, where: as for `autobatch.fold`; initial: as for `autobatch.scan`, or `GIVEN`.
        """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: object, kind: type | None = None) -> BoundRecursion: ...
    def __get__(self, owner: object, kind: type | None = None) -> Self | BoundRecursion:
        """Bind the recursion to the object whose methods it names."""
        return self if owner is None else BoundRecursion(self, owner)

    def __call__(
        self, instance: Any, *, each: Function | None = None, where: str | None = None, initial: Any = GIVEN
    ) -> Any:
        """Run over an instance, with functions that are not methods."""
        return self.run(None, instance, each, where, initial)

    def find_function(self, owner: object, function: Function | None, n_states: int) -> Called:
        """Return a function of the recursion, or the method that has its name, and its parameters."""
        if function is None:
            return NOTHING
        if isinstance(function, str):
            found = getattr(owner, function, None)
            if not callable(found):
                raise self.refuse(owner, function, "a method", found)
            return Called(found, fields_of(found, n_states))
        return Called(function, fields_of(function, n_states))

    def find_field(self, instance: Any, name: str) -> Any:
        """Return the field of an instance that joins its nodes.

        Raises:
            DataError: the instance lacks it.
        """
        found = field_of(instance, name)
        if found is None:
            raise DataError(f"an instance must have a field {name!r} for {self!r}, got {show_fields(instance)}.")
        return found

    def refuse(self, owner: object, name: str, kind: str, found: Any) -> GraphError:
        """Make the error for a name that the owner lacks, or that names something else there."""
        if owner is None:
            return GraphError(
                f"{self!r} names {name!r}, {kind}, so it must be an attribute of a class; elsewhere, pass the object "
                f"itself."
            )
        return GraphError(f"{name!r} of {self!r} must be {kind} of {type(owner).__name__}, got {show(found)}.")

    def refuse_initial(self, initial: Any) -> None:
        """Raise a GraphError for a call that gives an initial state."""
        if initial is not GIVEN:
            raise GraphError(f"a call of {self!r} must not be given initial=, which is for scans.")


class ForestRecursion(Recursion):
    """A recursion in which the state of a node depends on those of its children.

    Attributes:
        leaf: computes the state of a node without children, if given.
        root: a function of the state of the last node, for the result.
    """

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
        super().__init__(node, each, where)
        self.leaf, self.root = leaf, root
        self._columns: dict[Any, Columns] = {}

    @abstractmethod
    def read(self, instance: Any, names: tuple[str, ...]) -> Forest:
        """Read an instance into arrays of nodes with some fields; a DataError if it is malformed."""

    @abstractmethod
    def find_initial(self, owner: object, initial: Any) -> Any:
        """Return the state before the first node: the call's, or the recursion's if the call gives none (`GIVEN`).

        Raises:
            GraphError: the owner lacks it, or the recursion has none.
        """

    @abstractmethod
    def compute(self, forest: Forest, node: Any, leaf: Any, each: Any, where: int, initial: Any) -> Any:
        """Call the functions for all nodes."""

    def functions(self) -> list[Function]:
        return [x for x in (self.node, self.leaf, self.each, self.root) if x is not None]

    def run(self, owner: object, instance: Any, each: Function | None, where: str | None, initial: Any) -> Any:
        called = self._find_functions(owner, self.each if each is None else each)
        columns = self._find_columns(tuple(one.fields for one in called), self.where if where is None else where)
        node, leaf, each, root = (one.function for one in called)
        forest = self.read(instance, columns.names)
        result = self.compute(
            forest,
            (node, *columns.node),
            None if leaf is None else (leaf, *columns.leaf),
            None if each is None else (each, *columns.each),
            columns.where,
            self.find_initial(owner, initial),
        )
        return result if root is None else root(result, **_values(forest, columns.root, called[-1].fields.names, root))

    def find_fields(self, owner: object) -> list[str]:
        called = self._find_functions(owner, self.each)
        return [*self._find_columns(tuple(one.fields for one in called), self.where).names]

    def _find_functions(self, owner: object, each: Function | None) -> tuple[Called, Called, Called, Called]:
        """Return the functions of a node, a leaf, each node and the root."""
        return (
            self.find_function(owner, self.node, self.n_states),
            self.find_function(owner, self.leaf, 0),
            self.find_function(owner, each, 1),
            self.find_function(owner, self.root if each is None else None, 1),
        )

    def _find_columns(self, fields: tuple[Fields, ...], where: str | None) -> Columns:
        """Return the positions of the fields that `node`, `leaf`, `each` and `root` take, among all fields."""
        found = self._columns.get((fields, where))
        if found is None:
            names = tuple(dict.fromkeys([*chain(*(of.names for of in fields)), *filter(None, (where,))]))
            place = {name: k for k, name in enumerate(names)}
            node, leaf, each, root = (Callee(tuple(place[name] for name in of.names), of.are_required) for of in fields)
            found = Columns(names, node, leaf, each, root, place[where] if where else -1)
            self._columns[fields, where] = found
        return found


class BoundRecursion:
    """A recursion bound to the object whose methods it names.

    Attributes:
        recursion, owner: the recursion and the object.
    """

    __slots__ = ("owner", "recursion")

    def __init__(self, recursion: Recursion, owner: object) -> None:
        self.recursion, self.owner = recursion, owner

    @property
    def __self__(self) -> object:
        """Return the object, like `__self__` of a bound method."""
        return self.owner

    @property
    def __name__(self) -> str:
        return self.recursion.name or name_of(self.recursion.node)

    @property
    def fields(self) -> list[str]:
        """Return the names of the fields that join nodes or that functions take."""
        given = self.recursion.describe()
        joining = [given[name] for name in ("children", "parents", "edges") if name in given]
        names = joining[0] if joining and isinstance(joining[0], tuple) else joining
        return [*dict.fromkeys([*names, *self.recursion.find_fields(self.owner)])]

    def __call__(
        self, instance: Any, *, each: Function | None = None, where: str | None = None, initial: Any = GIVEN
    ) -> Any:
        """Run over an instance, see `autobatch.fold`, `autobatch.scan` and `autobatch.fold_edges`."""
        return self.recursion.run(self.owner, instance, each, where, initial)

    def __repr__(self) -> str:
        return f"<{self.recursion.kind} {self.__name__} of {type(self.owner).__name__}>"


_fields: dict[tuple[int, int, bool], tuple[ref[Any], Fields]] = {}
"""By the `id` of a function, the number of states, and whether it is a method; `WeakKeyDictionary` would be slower."""


def fields_of(function: Callable[..., Any], n_states: int) -> Fields:
    """Return the fields of a node that a function takes after states.

    Raises:
        GraphError: it has fewer parameters, or others cannot be passed by name.
    """
    own = function.cell if isinstance(function, BoundCell) else getattr(function, "__func__", function)
    key = id(own), n_states, own is not function
    known = _fields.get(key)
    # The id may belong to another function by now.
    if known is None or known[0]() is not own:
        found = _read_fields(function, n_states)
        try:
            known = _fields[key] = ref(own, partial(_forget, key)), found
        except TypeError:  # an object without weak references
            return found
    return known[1]


def _forget(key: tuple[int, int, bool], gone: ref[Any]) -> None:
    # A new function with the same id may already have replaced the entry.
    if key in _fields and _fields[key][0] is gone:
        del _fields[key]


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
            f"{name_of(function)}() of a recursion must take {n_states or 'no'} states, then fields by their names, "
            f"got ({', '.join(map(str, parameters))})."
        )
    fields = parameters[n_states:]
    return Fields(
        tuple(p.name for p in parameters[:n_states]),
        tuple(p.name for p in fields),
        tuple(p.default is p.empty for p in fields),
        inspect.Parameter.POSITIONAL_ONLY not in kinds[:n_states],
    )


def name_of(function: Any) -> str:
    """Return the name of a function, or the name that stands for it."""
    if isinstance(function, str):
        return function
    if isinstance(function, BoundCell):
        function = function.cell
    return str(getattr(function, "__name__", type(function).__name__))


def field_of(instance: Any, name: str) -> Any:
    """Return a field of an instance, or None."""
    return instance.get(name) if isinstance(instance, dict) else getattr(instance, name, None)


def show_fields(instance: Any) -> str:
    """Format an instance for messages: a dict by its keys."""
    return f"the fields {', '.join(map(str, instance))}" if isinstance(instance, dict) and instance else show(instance)


@contextmanager
def naming(what: str, name: str) -> Iterator[None]:
    """Replace `what` by the name of a field in a DataError that the block raises."""
    try:
        yield
    except DataError as error:
        if f"{what} must" not in str(error):
            raise
        raise DataError(str(error).replace(f"{what} must", f"field {name!r} must")) from None


def count_items(names: Sequence[str], values: Sequence[Any]) -> int | None:
    """Return the number of items of the first field that is given, or None if none is.

    Raises:
        DataError: a field has no length.
    """
    found = None
    for name, value in zip(names, values, strict=True):
        if value is not None:
            try:
                n = len(value)
            except TypeError:  # the value may be the id of a word that the user gave, so do not show it
                raise DataError(f"field {name!r} must be an array or a list of items, got a single one.") from None
            found = n if found is None else found
    return found


def _values(forest: Forest, callee: Callee, names: Sequence[str], function: Any) -> dict[str, Any]:
    """Return the root's fields that a function takes."""
    if not names:
        return {}
    if not forest.roots:
        raise DataError(f"an instance must have at least one item, because {name_of(function)}() takes its fields.")
    found, node = dict[str, Any](), forest.roots[0]
    for name, column, is_required in zip(names, *callee, strict=True):
        try:
            found[name] = forest.value(node, column)
        except KeyError:
            if is_required:
                raise DataError(f"node {node} must have a field {name!r}, which {name_of(function)}() takes.") from None
    return found
