"""The part of a graph that policies see: typed nodes and the edges between them.

Decisions about batches depend on types and edges alone, so schedules, bounds and searches work on a `Dag`: of a
mini-batch, of its reverse, or of a smaller equivalent graph. In the reverse every edge points the other way; a schedule
of it, read from its end, is a schedule of the original. Nodes are in topological order.
"""

from __future__ import annotations

from typing import NamedTuple

from autobatch._native import count_chains, reverse_dag
from autobatch.graph.graph import Graph, refuse_graph
from autobatch.jit.arrays import IntArray
from autobatch.keywords import refuse_arguments


class Dag(NamedTuple):
    """N nodes of T types, and E edges between them; each points to a later node."""

    type_id: IntArray  # int32[N]
    edge_ptr: IntArray  # int32[N+1] node n reads edge_src[edge_ptr[n]:edge_ptr[n+1]]
    edge_src: IntArray  # int32[E]
    n_types: int


def to_dag(graph: Graph) -> Dag:
    """Give the types and edges of `graph`, without a copy."""
    if type(graph) is not Graph:
        refuse_arguments(to_dag, (graph,), {})
    parts = graph.sections
    return Dag(parts.type_id, parts.edge_ptr, parts.edge_src, graph.n_types)


def reverse(dag: Dag) -> Dag:
    """Reverse every edge; node n of the result is node N - 1 - n, so that it is in topological order too.

    Raises:
        GraphError: a graph is given.

    Cost: O(N + E).
    """
    if isinstance(dag, Graph):
        refuse_graph()
    return Dag(*reverse_dag(dag.type_id, dag.edge_ptr, dag.edge_src), dag.n_types)


def chains_ahead(dag: Dag) -> IntArray:
    """Count, per node and type, the most nodes of that type on a path that starts at the node: int32[N, T].

    The node itself counts. The maximum over all nodes, added up over types, is the chain bound.

    Raises:
        GraphError: a graph is given.

    Cost: O(T * (N + E)).
    """
    if isinstance(dag, Graph):
        refuse_graph()
    return count_chains(dag.type_id, dag.edge_ptr, dag.edge_src, dag.n_types)
