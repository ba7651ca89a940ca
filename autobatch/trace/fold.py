"""Folds and scans: recursions over trees, DAGs and sequences as values."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from autobatch._native import Forest
from autobatch.arguments import is_int, refusal, show
from autobatch.errors import DataError, GraphError
from autobatch.keywords import checked
from autobatch.trace.handles import Value
from autobatch.trace.recursion import GIVEN, ForestRecursion, Function, count_items, field_of, naming, show_fields

NOT_NODES = (list, tuple, str, int, float, bool)


class Fold(ForestRecursion):
    """A recursion over trees or DAGs, see `autobatch.fold`.

    Attributes:
        children, parents, edges: the arguments of `autobatch.fold`; one of them is given.
    """

    kind = "fold"

    def __init__(
        self,
        children: str | tuple[str, ...] | Callable[[Any], Any] | None,
        node: Function,
        leaf: Function | None,
        parents: str | None,
        edges: str | None,
        each: Function | None,
        root: Function | None,
        where: str | None,
    ) -> None:
        super().__init__(node, each, root, where, leaf)
        self.children, self.parents, self.edges = children, parents, edges
        self.is_spread = isinstance(children, tuple)
        self._has_children = False  # whether an instance with children was read, or a warning given
        if isinstance(children, tuple):
            self.n_states = len(children)

    def describe(self) -> dict[str, Any]:
        """Return the arguments of `autobatch.fold` that are given."""
        names = ("children", "node", "leaf", "parents", "edges", "each", "root", "where")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def find_initial(self, owner: object, initial: Any) -> Any:
        """Return None: leaves have no state before them.

        Raises:
            GraphError: a call gives one.
        """
        self.refuse_initial(initial)
        return None

    def compute(self, forest: Forest, node: Any, leaf: Any, each: Any, where: int, initial: Any) -> Any:
        """Call the functions for all nodes, children first."""
        return forest.fold(node, leaf, each, where, self.is_spread)

    def read(self, instance: Any, names: tuple[str, ...]) -> Forest:
        """Read nested data or arrays."""
        if self.children is not None:
            if type(instance) in NOT_NODES and not callable(self.children):
                raise DataError(f"an instance of {self!r} must be a dict or an object, got {show(instance)}.")
            is_field = isinstance(self.children, str)
            with naming("the children of a node", str(self.children)) if is_field else nullcontext():
                forest = Forest.from_nested(instance, self.children, names)
            if not self._has_children:
                self._has_children = len(forest) > 1 or self._warn_of_leaf(instance, names)
            return forest
        given = str(self.parents or self.edges)
        pairs = self.find_field(instance, given)
        values = tuple(field_of(instance, name) for name in names)
        if self.parents is not None:
            edges = _read_parents(given, pairs, count_items(names, values))
            return Forest.from_arrays(len(pairs), edges, names, values)
        n = count_items(names, values)
        with naming("edges", given):
            return Forest.from_arrays(Forest.count_nodes(pairs) if n is None else n, pairs, names, values)

    def _warn_of_leaf(self, instance: Any, names: tuple[str, ...]) -> bool:
        """Return whether an instance without children has nodes in another field, and warn about it."""
        children = (self.children,) if isinstance(self.children, str) else self.children
        if not isinstance(instance, dict) or callable(children) or any(name in instance for name in children or ()):
            return False
        for name, x in instance.items():
            parts = x if isinstance(x, list) else [x]
            if name not in names and parts and all(isinstance(p, dict) and any(n in p for n in names) for p in parts):
                missing = " or ".join(map(repr, children or ()))
                warnings.warn(
                    f"{self!r} read an instance without children: it has no field {missing}, but nodes in {name!r}. If "
                    f"these are its children, name that field in the fold; else add an empty field {missing}.",
                    stacklevel=2,
                )
                return True
        return False

    def __repr__(self) -> str:
        name, given = next((name, x) for name, x in self.describe().items() if name in ("children", "parents", "edges"))
        return f"<fold {self.name + ' ' if self.name else ''}of {name}={given!r}>"


def _read_parents(name: str, parents: Any, n: int | None) -> Any:
    """Return the child and the parent of each edge.

    Args:
        name: the name of the field.
        n: number of items in another field; None if there is none.

    Raises:
        DataError: the field is not an array of nodes and -1; the message names the first wrong item.
    """
    try:
        with naming("parents", name):
            return Forest.edges_of(parents)
    except DataError:
        # Look for a fault that names an item or a length; if there is none, the error of the core propagates.
        n_parents = count_items((name,), (parents,))
        if n not in (None, n_parents):
            raise DataError(f"field {name!r} must have an item for each of the {n} nodes, got {n_parents}.") from None
        for i, parent in enumerate(parents):
            if is_int(parent) and not -1 <= parent < len(parents):
                limits = f"a node from 0 to {len(parents) - 1}, or -1 for a root"
                raise refusal(f"item {i} of field {name!r}", limits, int(parent)) from None
        raise


@checked()
def fold(
    children: str | Sequence[str] | Callable[[Any], Any] | None = None,
    node: Function | None = None,
    leaf: Function | None = None,
    *,
    parents: str | None = None,
    edges: str | None = None,
    each: Function | None = None,
    root: Function | None = None,
    where: str | None = None,
) -> Any:
    """Define a recursion over trees or DAGs as a value: children first, any depth, any number of children.

    `node` computes the state of a node from the list of its children's states, or from one state per child where the
    children are fields. Its other parameters are fields of the node, by name; one with a default may be missing. `leaf`
    computes the state of a node without children from its fields alone; without `leaf`, `node` does this, too. For
    nested data, the fold means the recursion

        def visit(tree):
            return node([visit(child) for child in tree["children"]], word=tree["word"], ...)

    except that it never recurses in Python, and visits an object only once if several nodes share it. While a batched
    function is recorded, calls of cells cost some tens of nanoseconds; other functions are called for each node.

    Instances are nested dicts or objects with a field (a key or an attribute) that lists the children of a node
    (`children`), or dicts or objects of arrays or lists with an item for each node (`parents` or `edges`).

    Args:
        children: the field that lists the children of a node, missing or None for leaves; a sequence of fields with
            one child each, such as ("left", "right"), whose states are separate arguments, None if the child is
            missing; or a function of a node, which returns a list.
        node, leaf: cells or other functions, or names of methods if the fold is an attribute of a class.
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
        A callable of an instance and the optional keywords `each` and `where`. It returns the state of the root, the
        result of `root`, or the list of results of `each`.

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
    return Fold(children, node, leaf, parents, edges, each, root, where)


class Scan(ForestRecursion):
    """A recursion over sequences, see `autobatch.scan`.

    Attributes:
        initial, reverse: the arguments of `autobatch.scan`.
    """

    kind = "scan"

    def __init__(
        self,
        step: Function,
        initial: Any,
        reverse: bool,
        each: Function | None,
        last: Function | None,
        where: str | None,
    ) -> None:
        super().__init__(step, each, last, where)
        self.initial, self.reverse = initial, reverse

    def describe(self) -> dict[str, Any]:
        """Return the arguments of `autobatch.scan` that are given."""
        found = {"step": self.node, "initial": self.initial, "each": self.each, "last": self.root, "where": self.where}
        return {name: x for name, x in found.items() if x is not None} | ({"reverse": True} if self.reverse else {})

    def find_initial(self, owner: object, initial: Any) -> Any:
        """Return the state before the first item, from a call, an attribute of the owner, or a method of it.

        Raises:
            GraphError: the owner has no such attribute.
        """
        found = self.initial if initial is GIVEN else initial
        if isinstance(found, str):
            name, found = found, getattr(owner, found, None)
            if found is None:
                raise self.refuse(owner, name, "a state, or a method that returns one,", found)
            if callable(found):
                found = found()
        return tuple(found) if isinstance(found, list) else found

    def compute(self, forest: Forest, node: Any, leaf: Any, each: Any, where: int, initial: Any) -> Any:
        """Call the functions for all items, in order; return the states unless there are other functions."""
        return forest.scan(node, True if each is None and self.root is None else each, where, initial)

    def read(self, instance: Any, names: tuple[str, ...]) -> Forest:
        """Read a sequence, or the fields of an instance, which are sequences."""
        if isinstance(instance, (list, tuple, np.ndarray, Value)):
            if len(names) != 1:
                raise DataError(
                    f"an instance of {self!r} must have the fields {', '.join(names) or 'of its items'}, got a single "
                    f"sequence."
                )
            items = [*instance] if isinstance(instance, Value) else instance
            return Forest.from_sequence(len(items), self.reverse, names, (items,))
        values = tuple(field_of(instance, name) for name in names)
        n = count_items(names, values)
        if n is None:
            raise DataError(
                f"an instance of {self!r} must be a sequence, or have one of the fields {', '.join(names)}, got "
                f"{show_fields(instance)}."
            )
        return Forest.from_sequence(n, self.reverse, names, values)

    def __repr__(self) -> str:
        return f"<scan {self.name}>" if self.name else "<scan>"


@checked()
def scan(
    step: Function,
    initial: Any = None,
    *,
    reverse: bool = False,
    each: Function | None = None,
    last: Function | None = None,
    where: str | None = None,
) -> Any:
    """Define a recursion over sequences as a value.

    `step` computes the state of an item from the state before it. Its other parameters are fields of the item, by name;
    one with a default may be missing. The scan means

        for i in range(n):
            states.append(step(states[-1] if i else initial, word=instance["word"][i], ...))

    except that calls of cells cost some tens of nanoseconds while a batched function is recorded.

    An instance is a dict or an object whose fields are arrays or lists with an item for each step; or a sequence
    itself, if the functions take one field.

    Args:
        step: a cell or another function, or the name of a method if the scan is an attribute of a class.
        initial: the state before the first item: arrays or values in any structure, None, the name of an attribute that
            holds one, such as a Parameter, or the name of a method that returns one. A call may give another.
        reverse: whether to go from the last item to the first. Results keep the order of the items.
        each: a function of the state of an item and of its fields. If given, here or in a call, the result is the list
            of its results.
        last: a function of the state after all items and of the fields of the last one, for the result without `each`.
        where: the field that says for which items there are results; see `autobatch.fold`.

    Returns:
        A callable of an instance and the optional keywords `each`, `where` and `initial`. It returns the list of all
        states, the list of results of `each`, or the result of `last`.

    Raises:
        DataError: when called: fields differ in length, or an item lacks one.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> class Tagger(ab.Module):
    ...     forward = ab.scan("step", "start")
    ...     backward = ab.scan("step", "start", reverse=True)
    ...     def __init__(self):
    ...         self.start = ab.Parameter(np.float32(1.0))
    ...     @ab.cell
    ...     def step(self, state, word):
    ...         return 0.5 * state + word
    ...     def both(self, words):
    ...         return [a * b for a, b in zip(self.forward(words), self.backward(words))]
    >>> tagger = Tagger()
    >>> [float(x) for x in tagger.forward([2, 4])], [float(x) for x in tagger.backward([2, 4])]
    ([2.5, 5.25], [4.25, 4.5])
    >>> [[float(x) for x in one] for one in ab.batched(tagger.both)([[2, 4], [3]])]
    [[10.625, 23.625], [12.25]]
    """
    return Scan(step, initial, reverse, each, last, where)
