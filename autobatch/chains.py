"""How many batches of each type are still needed, and which types lower that number when they run.

U[n, a] counts the most type-a nodes on a path that starts at node n (`dag.chains_ahead`). M[a], the largest U[n, a] of
the ready nodes, is a number of type-a batches that no schedule of what is left can go below, and the M of all types
add up. Type a is *critical* when every ready node with U[n, a] = M[a] is itself of type a: running a then lowers M[a]
by one. To run a type that is not critical never lowers the sum.

Kept beside a simulation: per type the ready nodes by their U, in all and of the own type. M only falls, so looking for
it costs no more than the chains are long.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autobatch._jit import compiled
from autobatch.dag import Dag, chains_ahead
from autobatch.simulator import Simulator
from autobatch.words import IntArray

LevelArray: TypeAlias = NDArray[np.uint32]


class Chains(NamedTuple):
    """Remaining chains of G stacked dags of T types each; type t of dag g has number g * T + t.

    A type's ready nodes are counted by their U. Level ptr[a] + u of the counts is that of U = u of type a.
    """

    level: LevelArray  # [N, T] where the node is counted for each type
    height: IntArray  # [N] the sum of U over the types
    level_ptr: IntArray  # [G*T+1]
    n_at: IntArray  # [levels] ready nodes with that U
    n_own_at: IntArray  # [levels] those of them that are of type a
    most: IntArray  # [G*T] M
    ready_height: NDArray[np.int64]  # [G*T] sum of `height` over the type's ready nodes
    seen: IntArray  # [G*T] the simulator's tail up to which ready nodes are counted


@compiled
def start_chains(dag: Dag, sim: Simulator) -> Chains:
    """Count the chains ahead of what is ready at the start of a simulation of `dag`. Cost: O(T * (N + E))."""
    n_graphs, n_nodes = sim.n_batches.size, dag.type_id.size
    n_types = sim.head.size // n_graphs
    node_ptr, type_id = sim.node_ptr, dag.type_id
    own = np.empty(n_nodes, np.int32)
    for g in range(n_graphs):
        for node in range(node_ptr[g], node_ptr[g + 1]):
            own[node] = type_id[node] - g * n_types
    ahead = chains_ahead(Dag(own, dag.edge_ptr, dag.edge_src, n_types))
    height = np.empty(n_nodes, np.int32)
    longest = np.zeros((n_graphs, n_types), np.int32)
    for g in range(n_graphs):
        for node in range(node_ptr[g], node_ptr[g + 1]):
            total = 0
            for a in range(n_types):
                total += ahead[node, a]
                longest[g, a] = max(longest[g, a], ahead[node, a])
            height[node] = total
    level_ptr = np.zeros(dag.n_types + 1, np.int32)
    for kind in range(dag.n_types):
        level_ptr[kind + 1] = level_ptr[kind] + longest[kind // n_types, kind % n_types] + 1
    level = ahead.view(np.uint32)
    for g in range(n_graphs):
        for node in range(node_ptr[g], node_ptr[g + 1]):
            for a in range(n_types):
                level[node, a] += np.uint32(level_ptr[g * n_types + a])
    chains = Chains(
        level, height, level_ptr, np.zeros(level_ptr[-1], np.int32), np.zeros(level_ptr[-1], np.int32),
        np.zeros(dag.n_types, np.int32), np.zeros(dag.n_types, np.int64), np.zeros(dag.n_types, np.int32),
    )  # fmt: skip
    for g in range(n_graphs):
        restart_chains(chains, sim, g)
    return chains


@compiled
def restart_chains(chains: Chains, sim: Simulator, g: int) -> None:
    """Count anew for stacked dag `g`, of which nothing has run. Cost: O(its levels + T * its ready nodes)."""
    n_types = chains.level.shape[1]
    first, end = g * n_types, (g + 1) * n_types
    chains.n_at[chains.level_ptr[first] : chains.level_ptr[end]] = 0
    chains.n_own_at[chains.level_ptr[first] : chains.level_ptr[end]] = 0
    for kind in range(first, end):
        chains.most[kind] = chains.level_ptr[kind + 1] - chains.level_ptr[kind] - 1
        chains.ready_height[kind] = 0
        chains.seen[kind] = sim.segment[kind]
    _take_in(chains, sim, first, end)


@compiled
def follow(chains: Chains, sim: Simulator, batch: IntArray) -> None:
    """Bring the counts up to date after `step` ran `batch`. Cost: O(T * (nodes run + nodes that became ready))."""
    level, height, n_at, n_own_at = chains.level, chains.height, chains.n_at, chains.n_own_at
    n_types = level.shape[1]
    kind = sim.type_id[batch[0]]
    own = kind % n_types
    left = 0
    for node in batch:
        left += height[node]
        for a in range(n_types):
            n_at[level[node, a]] -= 1
        n_own_at[level[node, own]] -= 1
    chains.ready_height[kind] -= left
    _take_in(chains, sim, kind - own, kind - own + n_types)


@compiled
def _take_in(chains: Chains, sim: Simulator, first: int, end: int) -> None:
    """Count what became ready of the types of one dag, and lower M to what is left."""
    level, height, level_ptr, n_at, n_own_at, most, ready_height, seen = chains
    queue, tail = sim.queue, sim.tail
    for kind in range(first, end):
        come = 0
        for q in range(seen[kind], tail[kind]):
            node = queue[q]
            come += height[node]
            for a in range(end - first):
                n_at[level[node, a]] += 1
            n_own_at[level[node, kind - first]] += 1
        ready_height[kind] += come
        seen[kind] = tail[kind]
    for kind in range(first, end):
        while most[kind] > 0 and n_at[level_ptr[kind] + most[kind]] == 0:
            most[kind] -= 1


@compiled
def is_critical(chains: Chains, kind: int) -> bool:
    """Say whether running `kind` lowers the number of batches that are still needed."""
    top = chains.level_ptr[kind] + chains.most[kind]
    return bool(chains.most[kind] > 0 and chains.n_own_at[top] == chains.n_at[top])


@compiled
def own_share(chains: Chains, kind: int) -> float:
    """Give the share of the ready nodes at U = M that are of type `kind`; 0 when none is left."""
    top = chains.level_ptr[kind] + chains.most[kind]
    return chains.n_own_at[top] / chains.n_at[top] if chains.most[kind] > 0 else 0.0
