"""Sketch a graph node by node: types and edges only, which is all that a decision about batches depends on.

A `Sketch` grows by `add`, in topological order, and ends as a `Dag`. `to_graph` names the types of a `Dag`, so that
whatever takes a graph takes it too, and `fold` leaves out nodes that a runtime need not run, such as sums that are
added up where they are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from autobatch._jit import compiled
from autobatch.dag import Dag
from autobatch.errors import GraphError
from autobatch.graph import Graph, NamedTypes
from autobatch.words import IntArray, words_size, write_header


class Sketch:
    """Nodes of `n_types` types and what they read, so far.

    >>> sketch = Sketch(2)
    >>> leaves = [sketch.add(0), sketch.add(0)]
    >>> sketch.add(1, leaves)
    2
    >>> sketch.to_dag().edge_src.tolist()
    [0, 1]
    """

    def __init__(self, n_types: int) -> None:
        self.n_types = n_types
        self.type_id: list[int] = []
        self.inputs: list[Sequence[int]] = []

    def add(self, kind: int, inputs: Sequence[int] = ()) -> int:
        """Add a node of type `kind` that reads earlier nodes: its number."""
        self.type_id.append(kind)
        self.inputs.append(inputs)
        return len(self.inputs) - 1

    def to_dag(self) -> Dag:
        """Give what has been added.

        Raises:
            GraphError: a type that does not exist, or a node that reads itself, a later one or none.

        Cost: O(N + E), some 200 ns per node.
        """
        type_id = np.array(self.type_id, np.int32)
        edge_ptr = np.zeros(len(self.inputs) + 1, np.int32)
        np.cumsum(np.fromiter(map(len, self.inputs), np.int32, len(self.inputs)), out=edge_ptr[1:])
        edge_src = np.fromiter(chain.from_iterable(self.inputs), np.int32, edge_ptr[-1])
        reader = np.repeat(np.arange(type_id.size, dtype=np.int32), np.diff(edge_ptr))
        for node in np.flatnonzero((type_id < 0) | (type_id >= self.n_types)):
            raise GraphError(
                f"sketching a graph: node {node} is of type {type_id[node]}, but there are {self.n_types} types, "
                f"numbered from 0 on; make the sketch with as many as it has."
            )
        for e in np.flatnonzero((edge_src < 0) | (edge_src >= reader)):
            raise GraphError(
                f"sketching a graph: node {reader[e]} reads node {edge_src[e]}, which is not among those before it; "
                f"add nodes after all that they read."
            )
        return Dag(type_id, edge_ptr, edge_src, self.n_types)


def to_graph(dag: Dag, names: Iterable[str] | None = None) -> Graph:
    """Make a graph of one instance out of a Dag: every node with one output and one port, nothing asked for.

    Args:
        dag: N nodes of T types.
        names: of the T types; by default "0", "1" and so on.

    Raises:
        GraphError: there are not T names.

    Cost: O(N + E), a copy.

    >>> sketch = Sketch(1)
    >>> sketch.add(0, [sketch.add(0)])
    1
    >>> print(to_graph(sketch.to_dag(), ["cell"]))
    Graph(instances=1, nodes=2, edges=1, types=1, outputs=0)
    instance 0 returns nothing
      0 = cell()
      1 = cell(0)
    """
    types = NamedTypes(tuple(map(str, range(dag.n_types)) if names is None else names))
    if len(types.names) != dag.n_types:
        raise GraphError(
            f"naming the types of a graph: it has {dag.n_types} types, but there are {len(types.names)} names "
            f"{list(types.names)}; give one for each."
        )
    n_nodes, n_edges = dag.type_id.size, dag.edge_src.size
    words = np.zeros(words_size.python(1, n_nodes, n_edges, 0, 0), np.int32)
    parts = write_header.python(words, 1, n_nodes, n_edges, 0, 0, 0)
    parts.instance_ptr[1] = n_nodes
    parts.type_id[:], parts.edge_ptr[:], parts.edge_src[:] = dag.type_id, dag.edge_ptr, dag.edge_src
    return Graph(words, np.empty(0), types, (None,))


def fold(dag: Dag, kinds: Collection[int]) -> Dag:
    """Leave out the nodes of some types; what read one reads, in its place, all that it read.

    A type string of the result is one of `dag` without the letters in `kinds`, so the result needs no more batches
    of the other types. A node reads another once at most. Types keep their numbers; those in `kinds` have no node.

    Args:
        dag: N nodes, E edges.
        kinds: the types to leave out.

    Cost: O(N + E + edges that are made). A node that reads m sums of n values each ends with up to m * n edges.

    >>> sketch = Sketch(2)
    >>> total = sketch.add(1, [sketch.add(0), sketch.add(0)])
    >>> sketch.add(0, [total])
    3
    >>> fold(sketch.to_dag(), {1}).edge_src.tolist()
    [0, 1]
    """
    folded = np.zeros(dag.n_types, np.bool_)
    folded[list(kinds)] = True
    return Dag(*_fold(dag, folded), dag.n_types)


@compiled
def _fold(dag: Dag, folded: NDArray[np.bool_]) -> tuple[IntArray, IntArray, IntArray]:
    """Give each node, left out or not, its list of nodes that stay, in a stack; then keep the lists of those."""
    n_nodes = dag.type_id.size
    number = np.full(n_nodes, -1, np.int32)
    listed_by = np.full(n_nodes, -1, np.int32)
    ptr = np.zeros(n_nodes + 1, np.int64)
    stack = np.empty(dag.edge_src.size + 1, np.int32)
    n_kept, n_edges, top = 0, 0, 0
    for node in range(n_nodes):
        for e in range(dag.edge_ptr[node], dag.edge_ptr[node + 1]):
            source = dag.edge_src[e]
            stays = number[source] >= 0
            for k in range(1 if stays else ptr[source + 1] - ptr[source]):
                value = number[source] if stays else stack[ptr[source] + k]
                if listed_by[value] == node:
                    continue
                listed_by[value] = node
                if top == stack.size:
                    stack = np.concatenate((stack, np.empty_like(stack)))
                stack[top] = value
                top += 1
        ptr[node + 1] = top
        if not folded[dag.type_id[node]]:
            number[node] = n_kept
            n_kept += 1
            n_edges += top - ptr[node]
    type_id, edge_src = np.empty(n_kept, np.int32), np.empty(n_edges, np.int32)
    edge_ptr = np.zeros(n_kept + 1, np.int32)
    for node in range(n_nodes):
        if number[node] >= 0:
            kept = number[node]
            type_id[kept] = dag.type_id[node]
            edge_ptr[kept + 1] = edge_ptr[kept] + ptr[node + 1] - ptr[node]
            edge_src[edge_ptr[kept] : edge_ptr[kept + 1]] = stack[ptr[node] : ptr[node + 1]]
    return type_id, edge_ptr, edge_src
