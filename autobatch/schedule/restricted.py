"""Track which nodes of each type would be ready if there were no other types.

G_a has only the type-a nodes of a dag, with an edge where a path between two has no other type-a node. Its frontier is
every unrun type-a node without an unrun type-a node before it. The ratio of type a's ready nodes to that frontier is 1
exactly when waiting for more of them gains nothing (ED-Batch, arXiv:2302.03851, section 2.3).

During a simulation, this module counts, per node and type, the incoming edges with an unrun node of that type at or
before their source. Each count falls to zero once, so the whole schedule costs O(T * E).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autobatch.graph.dag import Dag
from autobatch.jit.arrays import IntArray
from autobatch.jit.loops import compiled
from autobatch.schedule.simulator import Simulator


class Restricted(NamedTuple):
    """Frontiers of the type-restricted dags of G stacked dags of T types each; type t of dag g has number g * T + t."""

    blocked: IntArray  # [N, T] edges into the node that have an unrun type-a node at or before their source
    frontier: IntArray  # [G*T] size of the frontier of G_a
    stack: IntArray  # [N] room for the nodes that are being unblocked


@compiled
def start_restricted(dag: Dag) -> Restricted:
    """Count for a dag in which nothing has run. Cost: O(T * (N + E))."""
    return start_all_restricted(dag, np.array([0, dag.type_id.size], np.int32))


@compiled
def start_all_restricted(dag: Dag, node_ptr: IntArray) -> Restricted:
    """Count for stacked dags in which nothing has run. Cost: O(T * (N + E)).

    Args:
        dag, node_ptr: from `autobatch.schedule.simulator.stack`.
    """
    restricted = Restricted(
        np.empty((dag.type_id.size, dag.n_types // (node_ptr.size - 1)), np.int32),
        np.empty(dag.n_types, np.int32),
        np.empty(dag.type_id.size + 1, np.int32),
    )
    for g in range(node_ptr.size - 1):
        restart_stacked(restricted, dag, node_ptr, g)
    return restricted


@compiled
def restart_restricted(restricted: Restricted, dag: Dag) -> None:
    """Reset the counts of a single dag to the state in which nothing has run. Cost: O(T * (N + E))."""
    restart_stacked(restricted, dag, np.array([0, dag.type_id.size], np.int32), 0)


@compiled
def restart_stacked(restricted: Restricted, dag: Dag, node_ptr: IntArray, g: int) -> None:
    """Reset the counts of stacked dag `g` to the state in which nothing has run. Cost: O(T * (its nodes + edges))."""
    type_ids, edge_ptr, edge_src = dag.type_id, dag.edge_ptr, dag.edge_src
    blocked, frontier = restricted.blocked, restricted.frontier
    n_types = blocked.shape[1]
    first = g * n_types
    frontier[first : first + n_types] = 0
    for node in range(node_ptr[g], node_ptr[g + 1]):
        for a in range(n_types):
            blocked[node, a] = 0
        for e in range(edge_ptr[node], edge_ptr[node + 1]):
            source = edge_src[e]
            for a in range(n_types):
                blocked[node, a] += blocked[source, a] > 0 or type_ids[source] == first + a
        type_id = type_ids[node]
        frontier[type_id] += blocked[node, type_id - first] == 0


@compiled
def unblock(restricted: Restricted, sim: Simulator, batch: IntArray) -> None:
    """Update the frontiers after `step` ran `batch`."""
    blocked, frontier, stack = restricted
    type_ids, reader_ptr, readers = sim.type_id, sim.reader_ptr, sim.reader
    type_id = type_ids[batch[0]]
    own = type_id % blocked.shape[1]
    for done in batch:
        frontier[type_id] -= 1
        stack[0], size = done, 1
        while size:
            size -= 1
            node = stack[size]
            for r in range(reader_ptr[node], reader_ptr[node + 1]):
                reader = readers[r]
                blocked[reader, own] -= 1
                if blocked[reader, own] == 0:
                    if type_ids[reader] == type_id:
                        frontier[type_id] += 1
                    else:
                        stack[size] = reader
                        size += 1
