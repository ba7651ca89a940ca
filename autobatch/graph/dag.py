"""The part of a graph that policies see: typed nodes and the edges between them.

Decisions about batches depend on types and edges alone, so schedules, bounds and searches work on a `Dag`: of a
mini-batch, of its reverse, or of a smaller equivalent graph. In the reverse every edge points the other way, and a
schedule of it, read from its end, is a schedule of the original. Nodes are in topological order.

The best schedule is the one whose batches cost the least in total. A batch costs 1, unless its type has another cost;
by default, the best schedule thus has the fewest batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from autobatch._native import count_chains, reverse_dag
from autobatch.arguments import refusal, show
from autobatch.arrays import FloatArray, IntArray
from autobatch.errors import GraphError
from autobatch.graph.graph import Graph, NamedTypes, refuse_graph
from autobatch.graph.graph_check import refuse_backward_edges
from autobatch.keywords import checked

MOST_TYPES = 2**31 - 1  # type ids are int32


class Dag(NamedTuple):
    """N nodes of T types, and E edges between them; each points to a later node.

    Attributes:
        type_id: int32[N], the type of each node.
        edge_ptr: int32[N+1]; node n reads the nodes edge_src[edge_ptr[n]:edge_ptr[n+1]].
        edge_src: int32[E], the source node of each edge.
        n_types: T.
        costs: float64[T], the cost of a batch of each type, whatever its number of nodes; or None: 1 each.

    >>> dag = Dag.from_edges([0, 0, 1], [(0, 2), (1, 2)])
    >>> dag.edge_ptr.tolist(), dag.edge_src.tolist(), dag.n_types
    ([0, 0, 0, 2], [0, 1], 2)
    """

    type_id: IntArray
    edge_ptr: IntArray
    edge_src: IntArray
    n_types: int
    costs: FloatArray | None = None

    def __repr__(self) -> str:
        return f"Dag(nodes={self.type_id.size}, edges={self.edge_src.size}, types={self.n_types})"

    @classmethod
    @checked(costs=None)
    def from_edges(
        cls,
        types: npt.ArrayLike,
        edges: npt.ArrayLike,
        n_types: int | None = None,
        costs: npt.ArrayLike | None = None,
    ) -> Dag:
        """Make a dag of types and edges.

        Args:
            types: ints of shape (N,), the type of each node.
            edges: ints of shape (E, 2), for each edge a node and a later one that reads it; or nothing.
            n_types: T; by default one more than the greatest type.
            costs: floats of shape (T,), the cost of a batch of each type; by default 1.

        Raises:
            GraphError: an array is malformed, a type or a node does not exist, an edge points backwards, there is a
                cycle, or the costs are not a positive number for each type.

        Cost: O(N + E log E).
        """
        # As int64: a number that does not fit into int32 would otherwise wrap around, possibly into the valid range.
        type_id, pairs = _read_ints("types", types, 1), _read_ints("edges", edges, 2)
        if pairs.size and pairs.shape[1] != 2:
            raise GraphError(f"making a dag: edges must have the shape (edges, 2), got {pairs.shape}.")
        most = int(type_id.max(initial=-1)) + 1
        n = most if n_types is None else n_types
        if n > MOST_TYPES:
            raise GraphError(f"making a dag: the number of types must be at most {MOST_TYPES}, got {n}.")
        if type_id.min(initial=0) < 0 or most > n:
            raise GraphError(f"making a dag: types must lie in 0..{n - 1}, got {type_id.min()}..{most - 1}.")
        source, reader = pairs.reshape(-1, 2).T
        for node in pairs[(pairs < 0) | (pairs >= type_id.size)]:
            raise GraphError(f"making a dag: edges must join nodes 0..{type_id.size - 1}, got {node}.")
        if (source >= reader).any():
            refuse_backward_edges([str(x) for x in type_id.tolist()], [(a, b) for a, b in pairs.tolist()])
        edge_ptr = np.zeros(type_id.size + 1, np.int32)
        np.cumsum(np.bincount(reader, minlength=type_id.size), out=edge_ptr[1:])
        # Stable, so that each node reads its inputs in the order of `edges`.
        edge_src = source[np.argsort(reader, kind="stable")].astype(np.int32)
        return cls(type_id.astype(np.int32), edge_ptr, edge_src, n, _read_costs(costs, n))

    @classmethod
    @checked(costs=None)
    def from_networkx(
        cls, graph: Any, type: str = "type", n_types: int | None = None, costs: npt.ArrayLike | None = None
    ) -> Dag:
        """Make a dag of a `networkx.DiGraph`, whose edges lead from a node to one that reads it.

        Node n of the dag is the n-th of `networkx.topological_sort(graph)`.

        Args:
            graph: the graph.
            type: the name of the node attribute that holds the type, an int of at least 0.
            n_types: T; by default one more than the greatest type.
            costs: floats of shape (T,), the cost of a batch of each type; by default 1.

        Raises:
            GraphError: the graph is not directed, has a cycle, a node lacks the attribute, or the costs are not a
                positive number for each type.

        Cost: O(N + E log E), in Python.
        """
        import networkx

        try:
            number = {node: n for n, node in enumerate(networkx.topological_sort(graph))}
        except networkx.NetworkXUnfeasible:
            edges = networkx.find_cycle(graph)
            cycle = " -> ".join(repr(node) for node in (edges[0][0], *(reader for _, reader in edges)))
            raise GraphError(f"making a dag: the graph must not have a cycle, got {cycle}.") from None
        except (networkx.NetworkXError, networkx.NetworkXNotImplemented):
            raise GraphError(f"making a dag: the graph must be directed, got {graph}.") from None
        types = [graph.nodes[node].get(type) for node in number]
        for node, found in zip(number, types, strict=True):
            if not isinstance(found, int | np.integer):
                raise GraphError(f"making a dag: {type!r} of node {node!r} must be an int, got {found!r}.")
        edges = [(number[a], number[b]) for a, b in graph.edges()]
        return cls.from_edges(np.array(types, np.int64), np.array(edges, np.int64), n_types, costs)


def _read_ints(what: str, values: npt.ArrayLike, ndim: int) -> NDArray[np.int64]:
    """Read an array of ints with `ndim` dimensions; an empty array may have any number of them."""
    try:
        array = np.asarray(values)
    except ValueError:  # lists that differ in length
        array = np.empty(0, object)
    if not array.size and array.dtype != object:
        return np.empty((0,) * ndim, np.int64)
    if array.ndim != ndim or array.dtype.kind not in "iu":
        plural = "s" if ndim > 1 else ""
        raise GraphError(
            f"making a dag: {what} must be an array of ints with {ndim} dimension{plural}, got {show(values)}."
        )
    return array.astype(np.int64)


def _read_costs(costs: npt.ArrayLike | None, n_types: int) -> FloatArray | None:
    """Read a positive number for each type; None stays None."""
    if costs is None:
        return None
    try:
        array = np.asarray(costs)
    except ValueError:  # lists that differ in length
        array = np.empty(0, object)
    if array.shape != (n_types,) or array.dtype.kind not in "iuf" or not ((array > 0) & (array < np.inf)).all():
        got = show(costs.tolist() if isinstance(costs, np.ndarray) else costs)
        raise GraphError(f"making a dag: costs must be {n_types} positive numbers, one for each type, got {got}.")
    return array.astype(np.float64)


def type_costs(dag: Dag) -> FloatArray:
    """Return the cost of a batch of each type, float64[T]."""
    costs = np.ones(dag.n_types)
    if dag.costs is not None:
        costs[: dag.costs.size] = dag.costs  # `dag` may have been given more types since; they have no nodes
    return costs


def cost_of(dag: Dag, sequence: IntArray) -> float:
    """Add up the costs of batches of these types, int32[K]; return K if `dag` has no costs."""
    return float(sequence.size if dag.costs is None else type_costs(dag)[sequence].sum())


def to_dag(graph: Graph) -> Dag:
    """Return the types and edges of `graph`, without a copy, and the costs of types that `to_graph` kept."""
    if not isinstance(graph, Graph):
        raise refusal("graph", "a Graph", graph)
    parts = graph.sections
    costs = graph.types.costs if isinstance(graph.types, NamedTypes) else None
    return Dag(parts.type_id, parts.edge_ptr, parts.edge_src, graph.n_types, None if costs is None else np.array(costs))


def reverse(dag: Dag) -> Dag:
    """Reverse every edge; node n of the result is node N - 1 - n, which is a topological order again.

    Raises:
        GraphError: `dag` is a Graph.

    Cost: O(N + E).
    """
    if isinstance(dag, Graph):
        refuse_graph()
    return Dag(*reverse_dag(dag.type_id, dag.edge_ptr, dag.edge_src), dag.n_types, dag.costs)


def chains_ahead(dag: Dag) -> IntArray:
    """Count, per node and type, the most nodes of that type on a path that starts at the node: int32[N, T].

    The node itself counts. The maximum over all nodes, added up over types, is the chain bound.

    Raises:
        GraphError: `dag` is a Graph.

    Cost: O(T * (N + E)).
    """
    if isinstance(dag, Graph):
        refuse_graph()
    return count_chains(dag.type_id, dag.edge_ptr, dag.edge_src, dag.n_types)


def stack(dags: Sequence[Dag]) -> tuple[Dag, IntArray]:
    """Join G dags of T types each into one of G * T types, without costs; type t of dag g becomes type g * T + t.

    Returns:
        The joined dag, and node_ptr, int32[G+1]: dag g has nodes node_ptr[g]:node_ptr[g+1].
    """
    n_types = dags[0].n_types
    assert all(dag.n_types == n_types for dag in dags), "stacked dags share one table of types"
    node_ptr = np.cumsum([0, *(dag.type_id.size for dag in dags)])
    first_edge = np.cumsum([0, *(dag.edge_src.size for dag in dags)])
    # `first_edge` and `node_ptr` have one element more than there are dags: the ends, which `zip` drops.
    edge_ptr = [dag.edge_ptr[:-1] + e for dag, e in zip(dags, first_edge, strict=False)]
    edge_src = [dag.edge_src + n for dag, n in zip(dags, node_ptr, strict=False)]
    joined = Dag(
        np.concatenate([dag.type_id + g * n_types for g, dag in enumerate(dags)]).astype(np.int32),
        np.concatenate([*edge_ptr, first_edge[-1:]]).astype(np.int32),
        np.concatenate(edge_src).astype(np.int32),
        n_types * len(dags),
    )
    return joined, node_ptr.astype(np.int32)
