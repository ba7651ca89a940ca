"""Track how many batches of each type are still needed, and which types lower that number when they run.

U[n, a] counts the most type-a nodes on a path that starts at node n. M[a], the largest U[n, a] of the ready nodes, is a
lower bound on the type-a batches of any schedule of the remaining nodes; the bounds of all types add up. Type a is
*critical* when every ready node with U[n, a] = M[a] is itself of type a: running a then lowers M[a] by one. Running a
type that is not critical never lowers the sum.

During a simulation, this module keeps, per type and per a, the largest U of its ready nodes, and the number of nodes
that have it. A type that has run has no ready node left, so each node is looked at only once, when it becomes ready.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.graph.dag import Dag
from autobatch.jit.arrays import IntArray, empty, indices, zeros
from autobatch.jit.loops import compiled
from autobatch.schedule.simulator import Simulator

LANES = 4  # columns compared by one instruction, on any current processor


class Chains(NamedTuple):
    """Remaining chains of G stacked dags of T types each; type t of dag g has number g * T + t."""

    ahead: IntArray  # [N, T rounded up to LANES] U, and zeros
    height: IntArray  # [N] the sum of U over the types
    longest: IntArray  # [G*T, T] the largest U of a type's ready nodes, for each type; -1 where none is ready
    n_longest: IntArray  # [G*T, T] how many of them have it
    most: IntArray  # [G*T] M
    n_most: IntArray  # [G*T] ready nodes with U = M
    n_own_most: IntArray  # [G*T] those of them that are of type a
    ready_height: NDArray[np.int64]  # [G*T] sum of `height` over the type's ready nodes
    seen: IntArray  # [G*T] the simulator's tail up to which ready nodes are counted


@compiled
def start_chains(dag: Dag, sim: Simulator) -> Chains:
    """Count the chains ahead of the ready nodes at the start of a simulation of `dag`. Cost: O(T * (N + E))."""
    n_graphs, n_all = sim.n_batches.size, dag.n_types
    n_types = n_all // n_graphs
    ahead, height = _look_ahead(dag, sim.node_ptr, n_types)
    chains = Chains(
        ahead, height, empty((n_all, n_types), np.int32), empty((n_all, n_types), np.int32),
        empty(n_all, np.int32), empty(n_all, np.int32), empty(n_all, np.int32), empty(n_all, np.int64),
        empty(n_all, np.int32),
    )  # fmt: skip
    for g in range(n_graphs):
        restart_chains(chains, sim, g)
    return chains


@compiled
def _look_ahead(dag: Dag, node_ptr: IntArray, n_types: int) -> tuple[IntArray, IntArray]:
    """Count U, and its sum over the types."""
    n_nodes, width = dag.type_id.size, (n_types + LANES - 1) // LANES * LANES
    ahead, height = zeros((n_nodes, width), np.int32), zeros(n_nodes, np.int32)
    for lane in range(0, width, LANES):
        _look_ahead_lanes(dag, node_ptr, n_types, lane, ahead, height)
    return ahead, height


@compiled
def _look_ahead_lanes(dag: Dag, node_ptr: IntArray, n_types: int, lane: int, ahead: IntArray, height: IntArray) -> None:
    """Count U of the types in `LANES` columns from `lane` on, last node first; add them to the sums."""
    flat, width = ahead.reshape(ahead.size), np.uint64(ahead.shape[1])
    type_id, start, end = indices(dag.type_id), indices(dag.edge_ptr[:-1]), indices(dag.edge_ptr[1:])
    edge_src = indices(dag.edge_src)
    one, two, three = np.uint64(1), np.uint64(2), np.uint64(3)
    for g in range(node_ptr.size - 1):
        for node in range(node_ptr[g + 1] - 1, node_ptr[g] - 1, -1):
            at = np.uint64(node) * width + np.uint64(lane)
            own = np.int64(type_id[node]) - g * n_types - lane
            if 0 <= own < LANES:
                flat[at + np.uint64(own)] += 1
            u0, u1, u2, u3 = flat[at], flat[at + one], flat[at + two], flat[at + three]
            height[node] += u0 + u1 + u2 + u3
            for e in range(start[node], end[node]):
                to = edge_src[e] * width + np.uint64(lane)
                flat[to] = max(flat[to], u0)
                flat[to + one] = max(flat[to + one], u1)
                flat[to + two] = max(flat[to + two], u2)
                flat[to + three] = max(flat[to + three], u3)


@compiled
def restart_chains(chains: Chains, sim: Simulator, g: int) -> None:
    """Reset the counts of stacked dag `g` to the state in which nothing has run. Cost: O(T * (T + its ready nodes))."""
    n_types = chains.longest.shape[1]
    first, end = g * n_types, (g + 1) * n_types
    for type_id in range(first, end):
        _forget(chains, type_id)
        chains.seen[type_id] = sim.segment[type_id]
    _take_in(chains, sim, first, end)


@compiled
def follow(chains: Chains, sim: Simulator, batch: IntArray) -> None:
    """Update the counts after `step` ran `batch`. Cost: O(T * (T + nodes that became ready))."""
    n_types = chains.longest.shape[1]
    type_id = sim.type_id[batch[0]]
    _forget(chains, type_id)
    first = type_id - type_id % n_types
    _take_in(chains, sim, first, first + n_types)


@compiled
def _forget(chains: Chains, type_id: int) -> None:
    """Reset the counts of a type without ready nodes."""
    chains.longest[type_id], chains.n_longest[type_id], chains.ready_height[type_id] = -1, 0, 0


@compiled
def _take_in(chains: Chains, sim: Simulator, first: int, end: int) -> None:
    """Count the nodes of one dag that became ready, and find M and the nodes that attain it."""
    n_types, ahead, height = end - first, chains.ahead, indices(chains.height)
    for type_id in range(first, end):
        longest, n_longest = chains.longest[type_id], chains.n_longest[type_id]
        total = np.int64(0)
        for node in indices(sim.queue[chains.seen[type_id] : sim.tail[type_id]]):
            total += np.int64(height[node])
            for a in range(n_types):
                u = ahead[node, a]
                if u > longest[a]:
                    longest[a], n_longest[a] = u, 1
                elif u == longest[a]:
                    n_longest[a] += 1
        chains.ready_height[type_id] += total
        chains.seen[type_id] = sim.tail[type_id]
    most, n_most, n_own_most = chains.most, chains.n_most, chains.n_own_most
    for a in range(n_types):
        most[first + a] = n_most[first + a] = 0
        for type_id in range(first, end):
            u, n = chains.longest[type_id, a], chains.n_longest[type_id, a]
            if u > most[first + a]:
                most[first + a], n_most[first + a] = u, n
            elif u == most[first + a]:
                n_most[first + a] += n
        has_it = chains.longest[first + a, a] == most[first + a]
        n_own_most[first + a] = chains.n_longest[first + a, a] if has_it else 0


@compiled
def is_critical(chains: Chains, type_id: int) -> bool:
    """Say whether running `type_id` lowers the number of batches that are still needed."""
    return bool(chains.most[type_id] > 0 and chains.n_own_most[type_id] == chains.n_most[type_id])


@compiled
def own_share(chains: Chains, type_id: int) -> float:
    """Give the share of the ready nodes at U = M that are of type `type_id`; 0 if there are none."""
    return chains.n_own_most[type_id] / chains.n_most[type_id] if chains.most[type_id] > 0 else 0.0
