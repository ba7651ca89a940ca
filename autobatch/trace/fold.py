"""Folds: recursions over trees and DAGs as values.

A `Fold` says how to find the children of a node, and which function computes the state of a node from the states of its
children. The native core reads an instance into a `Forest`, arrays of nodes with children first, and calls the function
for each node (`native/record/forest.h`, `fold.h`). While a program is recorded, it logs calls of cells of known forms
without any Python object; so trees may be deep, and recording takes some tens of nanoseconds a node.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, overload
from weakref import WeakKeyDictionary

from autobatch._native import BoundCell, Forest
from autobatch.arguments import refusal, show
from autobatch.errors import DataError, GraphError
from autobatch.keywords import checked
from autobatch.trace.cell import Cell

Function: TypeAlias = str | Callable[..., Any]
"""A function of a fold, or the name of the method."""
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
    """The fields that a call of a fold reads, and where those of each function are among them."""

    names: tuple[str, ...]
    node: tuple[int, ...]
    each: tuple[int, ...]
    root: tuple[int, ...]
    where: int


class Fold:
    """A recursion over trees or DAGs, see `autobatch.fold`.

    Attributes:
        name: of the attribute of a class that holds it; empty elsewhere.
        children, node, parents, edges, each, root, where: the arguments of `autobatch.fold`.
    """

    def __init__(
        self,
        children: str | tuple[str, ...] | Callable[[Any], Any] | None,
        node: Function,
        parents: str | None,
        edges: str | None,
        each: Function | None,
        root: Function | None,
        where: str | None,
    ) -> None:
        self.name = ""
        self.children, self.parents, self.edges = children, parents, edges
        self.node, self.each, self.root, self.where = node, each, root, where
        self._columns: dict[Any, Columns] = {}

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, owner: None, kind: type) -> Fold: ...
    @overload
    def __get__(self, owner: object, kind: type | None = None) -> BoundFold: ...
    def __get__(self, owner: object, kind: type | None = None) -> Fold | BoundFold:
        """Bind the fold to the object whose methods it names."""
        return self if owner is None else BoundFold(self, owner)

    def __call__(self, instance: Any, *, each: Function | None = None, where: str | None = None) -> Any:
        """Fold an instance, see `autobatch.fold`."""
        return self.run(None, instance, each, where)

    def __repr__(self) -> str:
        source = next(f"{kind}={x!r}" for kind, x in self.sources() if x is not None)
        return f"<fold {self.name or _name_of(self.node)} of {source}>"

    def sources(self) -> tuple[tuple[str, Any], ...]:
        """Return the three ways to find children, by argument; one of them is given."""
        return ("children", self.children), ("parents", self.parents), ("edges", self.edges)

    def describe(self) -> dict[str, Any]:
        """Return the arguments of `autobatch.fold` that are given, which make an equal fold."""
        names = ("children", "node", "parents", "edges", "each", "root", "where")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def run(self, owner: object, instance: Any, each: Function | None, where: str | None) -> Any:
        """Fold an instance with the functions, or the methods of an owner."""
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
        forest = self._read(instance, columns.names)
        result = forest.fold(
            (node, _name_of(self.node), columns.node, fields.are_required),
            of_nodes and each_of and (of_nodes, _name_of(of_nodes), columns.each, each_of.are_required),
            columns.where,
        )
        if root is None or root_of is None:
            return result
        return root(result, **_values(forest, forest.roots[0], columns.root, root_of, _name_of(root)))

    def _function(self, owner: object, function: Function) -> Any:
        """Return a function of the fold, or the method that has its name."""
        if not isinstance(function, str):
            return function
        found = getattr(owner, function, None)
        if callable(found):
            return found
        if owner is None:
            raise GraphError(
                f"{self!r} names the method {function!r}, so it must be an attribute of a class; elsewhere, pass the "
                f"function itself."
            )
        raise GraphError(f"{function!r} of {self!r} must be a method of {type(owner).__name__}, got {show(found)}.")

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

    def _read(self, instance: Any, names: tuple[str, ...]) -> Forest:
        """Read an instance into arrays of nodes."""
        if self.children is not None:
            return Forest.from_nested(instance, self.children, names)
        key = self.parents or self.edges
        pairs = _field(instance, key)
        if pairs is None:
            raise DataError(f"an instance must have a field {key!r} for {self!r}, got {show(instance)}.")
        values = tuple(_field(instance, name) for name in names)
        if self.parents is not None:
            return Forest.from_arrays(len(pairs), Forest.edges_of(pairs), names, values)
        n = next((len(x) for x in values if x is not None), None)
        if n is None:
            n = 1 + max((int(node) for pair in pairs for node in pair), default=-1)
        return Forest.from_arrays(n, pairs, names, values)


class BoundFold:
    """A fold of an object, which has its methods.

    Attributes:
        fold, owner: the fold and the object.
    """

    __slots__ = ("fold", "owner")

    def __init__(self, fold: Fold, owner: object) -> None:
        self.fold, self.owner = fold, owner

    @property
    def __self__(self) -> object:
        """The object, as of a bound method."""
        return self.owner

    @property
    def __name__(self) -> str:
        """The name of the fold."""
        return self.fold.name or _name_of(self.fold.node)

    def __call__(self, instance: Any, *, each: Function | None = None, where: str | None = None) -> Any:
        """Fold an instance, see `autobatch.fold`."""
        return self.fold.run(self.owner, instance, each, where)

    def __repr__(self) -> str:
        return f"<fold {self.__name__} of {type(self.owner).__name__}>"


@checked()
def fold(
    children: str | Sequence[str] | Callable[[Any], Any] | None = None,
    node: Function | None = None,
    *,
    parents: str | None = None,
    edges: str | None = None,
    each: Function | None = None,
    root: Function | None = None,
    where: str | None = None,
) -> Any:
    """Define a recursion over trees or DAGs as a value: children first, any depth, any number of children.

    `node` computes the state of a node from the list of its children's states. Its other parameters are fields of the
    node, by name; one with a default may be missing. For nested data, the fold means the recursion

        def visit(tree):
            return node([visit(child) for child in tree["children"]], word=tree["word"], ...)

    except that it never recurses in Python, and visits an object that several nodes share once. While a batched
    function is recorded, calls of cells cost some tens of nanoseconds; other functions are called for each node.

    Instances are nested dicts or objects with a field, a key or an attribute, that lists the children of a node
    (`children`), or dicts or objects of arrays or lists with an item for each node (`parents` or `edges`).

    Args:
        children: the field that lists the children of a node, missing or None for leaves; a tuple of fields with one
            child each, such as ("left", "right"); or a function of a node.
        node: a cell or another function, or the name of a method if the fold is an attribute of a class.
        parents: the field with the parent of each node, -1 for roots, of shape (nodes,). Children are in the order of
            their numbers.
        edges: the field with the child and the parent of each edge, of shape (edges, 2). The children of a node are in
            the order of the edges.
        each: a function of the state of a node and of its fields. If given, here or in a call, the result is the list
            of its results for all nodes: for nested data in the order of the recursion, else in that of the arrays.
        root: a function of the state of the root and of its fields, for the result without `each`.
        where: the field that says for which nodes `each` is called; it leaves out those where the field is missing,
            None, False or 0.

    Returns:
        A callable of an instance and the optional keywords `each` and `where`. It returns the state of the root, or
        what `root` or `each` makes of states.

    Raises:
        GraphError: not exactly one of `children`, `parents` and `edges` is given, or `node` is missing.
        DataError: when called: a node is its own descendant, lacks a field, or there are several roots without `each`.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> class TreeSum(ab.Module):
    ...     visit = ab.fold("children", "node")
    ...     by_parent = ab.fold(parents="parent", node="node")
    ...     def __init__(self):
    ...         self.weight = ab.Parameter(np.float32(2.0))
    ...     @ab.cell
    ...     def node(self, children, value):
    ...         return self.weight * value + ab.sum_n(children, shape=())
    >>> model = TreeSum()
    >>> model.visit({"value": 1, "children": [{"value": 2}, {"value": 3}]})
    np.float32(12.0)
    >>> ab.batched(model.by_parent)([{"parent": [-1, 0, 0, 1], "value": [1, 2, 3, 4]}, {"parent": [-1], "value": [5]}])
    array([20., 10.], dtype=float32)
    """
    if sum(x is not None for x in (children, parents, edges)) != 1:
        raise GraphError("fold must be given exactly one of children, parents= and edges=.")
    if node is None:
        raise refusal("node of fold", "a function or the name of a method", node, GraphError)
    if isinstance(children, Sequence) and not isinstance(children, str):
        children = tuple(children)
        if not children or not all(isinstance(name, str) for name in children):
            raise refusal("children of fold", "a field, or a sequence of fields", children, GraphError)
    return Fold(children, node, parents, edges, each, root, where)


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
            f"the parameters of {_name_of(function)}(), a function of a fold, must be states and then fields by name, "
            f"got ({', '.join(map(str, parameters))})."
        )
    return Fields(tuple(p.name for p in parameters[1:]), tuple(p.default is p.empty for p in parameters[1:]))


def _name_of(function: Any) -> str:
    if isinstance(function, str):
        return function
    if isinstance(function, BoundCell):
        function = function.cell
    return str(getattr(function, "__name__", type(function).__name__))


def _field(instance: Any, name: str | None) -> Any:
    """Return a field of an instance, or None."""
    return instance.get(name) if isinstance(instance, dict) else getattr(instance, str(name), None)


def _values(forest: Forest, node: int, columns: tuple[int, ...], fields: Fields, name: str) -> dict[str, Any]:
    """Return the fields that a function takes of a node."""
    found = dict[str, Any]()
    for field, column, is_required in zip(fields.names, columns, fields.are_required, strict=True):
        try:
            found[field] = forest.value(node, column)
        except KeyError:
            if is_required:
                raise DataError(f"node {node} must have a field {field!r}, which {name}() takes.") from None
    return found
