"""Rounds of messages along the edges of graphs as values.

In a round, the native core calls one function for all edges, then one for all nodes, as in a fold over nodes without
children. The states are fields of these edges and nodes. So no Python function is called for a single node.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import chain
from typing import Any

import numpy as np

from autobatch._native import Forest
from autobatch.arguments import check_int, refusal
from autobatch.errors import DataError
from autobatch.keywords import checked
from autobatch.trace.recursion import (
    NOTHING,
    Called,
    Fields,
    Function,
    Recursion,
    count_items,
    field_of,
    name_of,
    naming,
)

ROUND = "round"
"""The parameter of `node` and `message` that is the number of the round."""


class FoldEdges(Recursion):
    """Rounds of messages over graphs, see `autobatch.fold_edges`.

    Attributes:
        edges, start, rounds, message, readout: the arguments of `autobatch.fold_edges`.
    """

    kind = "fold_edges"

    def __init__(
        self,
        edges: str,
        node: Function,
        start: Function,
        rounds: int,
        message: Function | None,
        each: Function | None,
        readout: Function | None,
        where: str | None,
    ) -> None:
        super().__init__(node, each, where)
        self.edges, self.start, self.rounds, self.message, self.readout = edges, start, rounds, message, readout

    def describe(self) -> dict[str, Any]:
        """Return the arguments of `autobatch.fold_edges` that are given."""
        names = ("edges", "node", "start", "rounds", "message", "each", "readout", "where")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def functions(self) -> list[Function]:
        return [x for x in (self.node, self.start, self.message, self.each, self.readout) if x is not None]

    def run(self, owner: object, instance: Any, each: Function | None, where: str | None, initial: Any) -> Any:
        """Run over an instance, see `Recursion.run`."""
        self.refuse_initial(initial)
        start, message, node, last, readout = self._find_functions(owner, self.each if each is None else each)
        where = self.where if where is None else where
        names = [*start.fields.names, *node.fields.names, *last.fields.names, *filter(None, (where,))]
        n = count_items(names, [None if name == ROUND else field_of(instance, name) for name in names])
        n, sources, targets = _read_edges(self.edges, self.find_field(instance, self.edges), n)
        _check_edges(instance, len(sources), message)
        states = _call(instance, n, start)
        for number in range(self.rounds):
            sent = [states[source] for source in sources]
            if message.function is not None:
                sent = _call(instance, len(sent), message, (sent,), number)
            received: list[list[Any]] = [[] for _ in states]
            for target, one in zip(targets, sent, strict=True):
                received[target].append(one)
            ending = (last, where) if number == self.rounds - 1 else (NOTHING, None)
            states = _call(instance, n, node, (states, received), number, *ending)
        return states if readout.function is None else readout.function(states, **_fields_of_graph(instance, readout))

    def find_fields(self, owner: object) -> list[str]:
        """Return the names of the fields that the functions, or the methods of an owner, take."""
        called = self._find_functions(owner, self.each)
        names = dict.fromkeys([*chain(*(one.fields.names for one in called)), *filter(None, (self.where,))])
        return [name for name in names if name != ROUND]

    def _find_functions(self, owner: object, each: Function | None) -> tuple[Called, ...]:
        """Return the functions of a first state, a message, a node, each node and the graph."""
        return (
            self.find_function(owner, self.start, 0),
            self.find_function(owner, self.message, 1),
            self.find_function(owner, self.node, 2),
            self.find_function(owner, each, 1),
            self.find_function(owner, self.readout if each is None else None, 1),
        )

    def __repr__(self) -> str:
        return f"<fold_edges {self.name + ' ' if self.name else ''}of {self.edges!r}>"


def _read_edges(name: str, pairs: Any, n: int | None) -> tuple[int, list[int], list[int]]:
    """Return the number of nodes, and the source and the target of each edge.

    Args:
        name: the name of the field.
        n: number of nodes; None for as many as the edges need.
    """
    with naming("edges", name):
        needed = Forest.count_nodes(pairs)  # refuses anything but ints in two dimensions
    n = needed if n is None else n
    edges = np.asarray(pairs, np.int64)
    if edges.size and edges.shape[1] != 2:
        raise refusal(f"field {name!r}", "of the shape (edges, 2)", edges)
    wrong = np.argwhere((edges < 0) | (edges >= n))
    if wrong.size:
        edge, end = wrong[0]
        raise DataError(
            f"field {name!r} must join the {n} nodes, numbered from 0, got node {edges[edge, end]} in edge {edge}."
        )
    sources, targets = edges.reshape(-1, 2).T.tolist()
    return n, sources, targets


def _check_edges(instance: Any, n: int, message: Called) -> None:
    """Raise a DataError unless each field that messages take has an item for each of the n edges."""
    for name, is_required in zip(message.fields.names, message.fields.are_required, strict=True):
        (value,) = _columns(instance, n, (name,), 0)
        found = count_items((name,), (value,))
        if found is None and is_required and n:
            raise DataError(f"an instance must have a field {name!r}, which {name_of(message.function)}() takes.")
        if found is not None and found != n:
            raise DataError(f"field {name!r} must have an item for each of the {n} edges, got {found}.")


def _columns(instance: Any, n: int, names: tuple[str, ...], number: int | None) -> list[Any]:
    """Return fields of n nodes or edges; one of them may be the number of the round."""
    return [[number] * n if name == ROUND and number is not None else field_of(instance, name) for name in names]


def _call(
    instance: Any,
    n: int,
    called: Called,
    states: tuple[list[Any], ...] = (),
    number: int | None = None,
    last: Called = NOTHING,
    where: str | None = None,
) -> list[Any]:
    """Call a function for each of n nodes or edges.

    Args:
        states: the items of each argument that is not a field.
        number: the number of the round; None if functions do not take it.
        last: a function to call with each result; where: the field that says which nodes have one.
    """
    # The columns are, in this order, the states, the fields of the function (up to `n_own`), the fields of `last` (up
    # to `n_all`), and `where`. A node has no children, and with `is_spread` no list of them is passed either.
    names = [*called.fields.states, *called.fields.names, *last.fields.names, *filter(None, (where,))]
    columns = [*states, *_columns(instance, n, called.fields.names, number)]
    n_own = len(columns)
    columns += _columns(instance, n, tuple(names[n_own:]), None)
    forest = Forest.from_arrays(n, (), tuple(names), tuple(columns))
    are_required = *(True for _ in states), *called.fields.are_required
    n_all = n_own + len(last.fields.names)
    each = True if last.function is None else (last.function, (*range(n_own, n_all),), last.fields.are_required)
    function = called.function if called.fields.takes_names else _taking_names(*called)
    callee = function, (*range(n_own),), are_required
    found: list[Any] = forest.fold(callee, None, each, -1 if where is None else n_all, True)
    return found


def _taking_names(function: Any, fields: Fields) -> Callable[..., Any]:
    """Return a function that takes states by name, for one that takes some by position alone."""

    @wraps(function)
    def call(**given: Any) -> Any:
        states = [given.pop(name) for name in fields.states]
        return function(*states, **given)

    return call


def _fields_of_graph(instance: Any, readout: Called) -> dict[str, Any]:
    """Return the fields of an instance that a function takes, unchanged."""
    found = {name: field_of(instance, name) for name in readout.fields.names}
    for (name, x), is_required in zip(found.items(), readout.fields.are_required, strict=True):
        if x is None and is_required:
            raise DataError(f"an instance must have a field {name!r}, which {name_of(readout.function)}() takes.")
    return {name: x for name, x in found.items() if x is not None}


@checked()
def fold_edges(
    edges: str,
    node: Function,
    start: Function,
    *,
    rounds: int,
    message: Function | None = None,
    each: Function | None = None,
    readout: Function | None = None,
    where: str | None = None,
) -> Any:
    """Define rounds of messages over graphs as a value: any edges, also in cycles.

    `start` computes the first state of a node from its fields. In each round, `message` computes what an edge carries
    from the state of its source, and `node` the next state of a node from its own and the list of incoming messages.
    Other parameters are fields by name, of the node or of the edge; one with a default may be missing. So

        states = [start(x=graph["x"][i], ...) for i in range(n)]
        for round in range(rounds):
            received = [[] for _ in range(n)]
            for k, (source, target) in enumerate(graph["edges"]):
                received[target].append(message(states[source], bond=graph["bond"][k], ...))
            states = [node(states[i], received[i], x=graph["x"][i], ...) for i in range(n)]

    except that no Python function runs for single nodes while a batched function is recorded, if all are cells.

    An instance is a dict or an object of arrays or lists, with an item for each node or each edge. A graph may have no
    edges or no nodes, edges from a node to itself, and several edges between two nodes. If nodes have no fields, the
    nodes are those that edges join.

    Args:
        edges: the field with the source and the target of each edge, of shape (edges, 2). An undirected edge is two
            edges. The messages of a node are in the order of the edges.
        node, start, message: cells or other functions, or names of methods if the value is an attribute of a class.
            Without `message`, edges carry the states of their sources. `node` and `message` may take `round`, the
            number of the round from 0, for example to choose a layer.
        rounds: number of rounds, at least 1.
        each: a function of the last state of a node and of its fields. If given, here or in a call, the result is the
            list of its results for all nodes.
        readout: a function of the list of the last states and of fields of the graph, unchanged, for the result without
            `each`.
        where: the field that says which nodes have results, or states for `readout`; see `autobatch.fold`.

    Returns:
        A callable of an instance and the optional keywords `each` and `where`. It returns the list of the last states,
        the list of results of `each`, or the result of `readout`.

    Raises:
        DataError: `rounds` is less than 1. When called: edges join other nodes, or a field is missing or of another
            length.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> class Net(ab.Module):
    ...     total = ab.fold_edges("edges", "node", "start", message="send", rounds=2, readout="add")
    ...     def __init__(self):
    ...         self.weight = ab.Parameter(np.float32(0.5))
    ...     @ab.cell
    ...     def start(self, x):
    ...         return self.weight * x
    ...     @ab.cell
    ...     def send(self, state, length=1.0):
    ...         return length * state
    ...     @ab.cell
    ...     def node(self, state, messages):
    ...         return state + self.weight * ab.sum_n(messages, shape=())
    ...     @ab.cell
    ...     def add(self, states):
    ...         return ab.sum_n(states, shape=())
    >>> net = Net()
    >>> ring = {"x": [2, 4, 6], "edges": [[0, 1], [1, 2], [2, 0]], "length": [1.0, 0.5, 0.0]}
    >>> ab.batched(net.total)([ring, {"x": [2], "edges": []}, {"x": [2], "edges": [[0, 0]]}])
    array([8.125, 1.   , 2.25 ], dtype=float32)
    """
    rounds = check_int("rounds of fold_edges", rounds, at_least=1)
    return FoldEdges(edges, node, start, rounds, message, each, readout, where)
