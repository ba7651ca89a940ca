"""Build a graph of types and edges only, node by node: enough for policies, bounds and searches.

A `Sketch` grows by `add`, in topological order, and `to_dag` makes a `Dag` of it. `to_graph` adds type names to a
`Dag`, for functions that take a graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from autobatch.errors import GraphError
from autobatch.graph.dag import Dag
from autobatch.graph.graph import Graph, NamedTypes
from autobatch.graph.words import words_size, write_header
from autobatch.keywords import checked


class Sketch:
    """A growing list of nodes of `n_types` types, and their inputs.

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

    def add(self, type_id: int, inputs: Sequence[int] = ()) -> int:
        """Add a node of type `type_id` that reads earlier nodes; return its number."""
        self.type_id.append(type_id)
        self.inputs.append(inputs)
        return len(self.inputs) - 1

    def to_dag(self) -> Dag:
        """Make a `Dag` of the nodes so far.

        Raises:
            GraphError: a type does not exist, or a node reads itself, a later node or one that does not exist.

        Cost: O(N + E), some 200 ns per node.
        """
        type_id = np.array(self.type_id, np.int32)
        edge_ptr = np.zeros(len(self.inputs) + 1, np.int32)
        np.cumsum(np.fromiter(map(len, self.inputs), np.int32, len(self.inputs)), out=edge_ptr[1:])
        edge_src = np.fromiter(chain.from_iterable(self.inputs), np.int32, edge_ptr[-1])
        reader = np.repeat(np.arange(type_id.size, dtype=np.int32), np.diff(edge_ptr))
        for node in np.flatnonzero((type_id < 0) | (type_id >= self.n_types)):
            raise GraphError(
                f"sketching a graph: the type of node {node} must lie in 0..{self.n_types - 1}, got {type_id[node]}."
            )
        for e in np.flatnonzero((edge_src < 0) | (edge_src >= reader)):
            raise GraphError(
                f"sketching a graph: node {reader[e]} must read earlier nodes, got {edge_src[e]}; add nodes after "
                f"their inputs."
            )
        return Dag(type_id, edge_ptr, edge_src, self.n_types)


@checked()
def to_graph(dag: Dag, names: Iterable[str] | None = None) -> Graph:
    """Make a graph of one instance from a Dag: every node has one output and one port, and nothing is returned.

    It keeps the costs of the types.

    Args:
        dag: N nodes of T types.
        names: the names of the T types; by default "0", "1" and so on.

    Raises:
        GraphError: the number of names is not T, or two are equal.

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
    costs = None if dag.costs is None else tuple(dag.costs.tolist())
    types = NamedTypes(tuple(map(str, range(dag.n_types)) if names is None else names), costs)
    if len(types.names) != dag.n_types:
        raise GraphError(
            f"naming the types of a graph: there must be a name for each of its {dag.n_types} types, got "
            f"{list(types.names)}."
        )
    n_nodes, n_edges = dag.type_id.size, dag.edge_src.size
    words = np.zeros(words_size(1, n_nodes, n_edges, 0, 0), np.int32)
    parts = write_header(words, 1, n_nodes, n_edges, 0, 0, 0)
    parts.instance_ptr[1] = n_nodes
    parts.type_id[:], parts.edge_ptr[:], parts.edge_src[:] = dag.type_id, dag.edge_ptr, dag.edge_src
    return Graph(words, np.empty(0), types, (None,))
