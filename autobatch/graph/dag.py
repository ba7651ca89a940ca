"""The part of a graph that policies see: typed nodes and the edges between them.

Decisions about batches depend on types and edges alone, so schedules, bounds and searches work on a `Dag`: of a
mini-batch, of its reverse, or of a smaller equivalent graph. In the reverse every edge points the other way, and a
schedule of it, read from its end, is a schedule of the original. Nodes are in topological order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autobatch._native import count_chains, reverse_dag
from autobatch.arrays import IntArray
from autobatch.graph.graph import Graph, refuse_graph
from autobatch.keywords import refuse_arguments


class Dag(NamedTuple):
    """N nodes of T types, and E edges between them; each points to a later node."""

    type_id: IntArray  # int32[N]
    edge_ptr: IntArray  # int32[N+1] node n reads edge_src[edge_ptr[n]:edge_ptr[n+1]]
    edge_src: IntArray  # int32[E]
    n_types: int


def to_dag(graph: Graph) -> Dag:
    """Return the types and edges of `graph`, without a copy."""
    if type(graph) is not Graph:
        refuse_arguments(to_dag, (graph,), {})
    parts = graph.sections
    return Dag(parts.type_id, parts.edge_ptr, parts.edge_src, graph.n_types)


def reverse(dag: Dag) -> Dag:
    """Reverse every edge; node n of the result is node N - 1 - n, which is a topological order again.

    Raises:
        GraphError: `dag` is a Graph.

    Cost: O(N + E).
    """
    if isinstance(dag, Graph):
        refuse_graph()
    return Dag(*reverse_dag(dag.type_id, dag.edge_ptr, dag.edge_src), dag.n_types)


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
    """Join dags of T types each into one of G * T types, in which type t of dag g has number g * T + t.

    Returns:
        The joined dag, and node_ptr, int32[G+1]: dag g has nodes node_ptr[g]:node_ptr[g+1].
    """
    n_types = dags[0].n_types
    assert all(dag.n_types == n_types for dag in dags), "stacked dags share one table of types"
    node_ptr = np.cumsum([0, *(dag.type_id.size for dag in dags)])
    first_edge = np.cumsum([0, *(dag.edge_src.size for dag in dags)])
    edge_ptr = [dag.edge_ptr[:-1] + e for dag, e in zip(dags, first_edge, strict=False)]
    edge_src = [dag.edge_src + n for dag, n in zip(dags, node_ptr, strict=False)]
    joined = Dag(
        np.concatenate([dag.type_id + g * n_types for g, dag in enumerate(dags)]).astype(np.int32),
        np.concatenate([*edge_ptr, first_edge[-1:]]).astype(np.int32),
        np.concatenate(edge_src).astype(np.int32),
        n_types * len(dags),
    )
    return joined, node_ptr.astype(np.int32)
