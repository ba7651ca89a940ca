"""Policies that need no learning: the baselines that every other policy is measured against."""

from __future__ import annotations

from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from autobatch._native import find_depths
from autobatch.graph.dag import Dag
from autobatch.graph.graph import Graph
from autobatch.jit.arrays import IntArray
from autobatch.jit.loops import compiled
from autobatch.policies.rules.directed import Batches, Directed
from autobatch.schedule.schedule import BasePolicy, Schedule
from autobatch.schedule.simulator import Simulator, finish, start, step
from autobatch.system.trust import trusted


@final
@trusted
class Unbatched(BasePolicy):
    """Every node is its own batch, in the order in which it was recorded."""

    name = "unbatched"

    def schedule(self, graph: Graph) -> Schedule:
        """Give N batches of one node. Cost: O(N)."""
        nodes = np.arange(graph.n_nodes + 1, dtype=np.int32)
        return Schedule(graph.type_id.copy(), nodes, nodes[:-1])


@final
@trusted
class Depth(Directed):
    """One batch per depth and type, in order of depth, then type id.

    The depth of a node is the number of edges on the longest path to it. Nodes of one depth do not depend on each
    other, so the schedule is valid; a type that occurs at many depths needs that many batches.

    Args:
        direction: "forward", "backward" or "both", see `Directed`.
        compact: delete superfluous batches.

    Source: TensorFlow Fold (Looks et al. 2017, arXiv:1702.02181).
    """

    rule: ClassVar[str] = "depth"

    def plan(self, dag: Dag) -> Batches:
        """Sort the nodes by (depth, type id, node). Cost: O(N + E + T)."""
        return _by_depth(dag.type_id, find_depths(dag.edge_ptr, dag.edge_src))


@final
@trusted
class Agenda(Directed):
    """Run the ready type whose remaining nodes have the least mean depth.

    Remaining nodes are those that have not run, ready or not: a type with much work far from the inputs waits, so that
    its batches grow. Means are compared exactly, as fractions; among equals the lowest type id runs.

    Args:
        direction: "forward", "backward" or "both", see `Directed`.
        compact: delete superfluous batches.

    Source: DyNet's agenda (Neubig, Goldberg, Dyer 2017, arXiv:1705.07860).
    """

    rule: ClassVar[str] = "agenda"

    def plan(self, dag: Dag) -> Batches:
        """Simulate batch by batch. Cost: O(N + E + K * T) for K batches."""
        return _agenda(dag, find_depths(dag.edge_ptr, dag.edge_src))


@compiled
def _agenda(dag: Dag, depth: IntArray) -> Batches:
    sim = start(dag)
    total_depth = np.zeros(dag.n_types, np.int64)
    for node in range(dag.type_id.size):
        total_depth[dag.type_id[node]] += depth[node]
    while True:
        type_id = _shallowest(sim, total_depth)
        if type_id < 0:
            return finish(sim)
        for node in step(sim, type_id):
            total_depth[type_id] -= depth[node]


@compiled
def _shallowest(sim: Simulator, total_depth: NDArray[np.int64]) -> int:
    """Find the ready type of least mean depth over its remaining nodes; -1 if nothing is ready."""
    best, best_remaining = -1, 0
    for type_id in range(total_depth.size):
        if sim.head[type_id] < sim.tail[type_id]:
            remaining = sim.segment[type_id + 1] - sim.head[type_id]
            if best < 0 or _is_less(total_depth[type_id], remaining, total_depth[best], best_remaining):
                best, best_remaining = type_id, remaining
    return best


@compiled
def _is_less(a: int, b: int, c: int, d: int) -> bool:
    """Say whether a / b < c / d, for a, c >= 0 and b, d > 0, without the overflow of a * d."""
    if a // b != c // d:
        return a // b < c // d
    return (a % b) * d < (c % d) * b


@compiled
def _by_depth(type_id: IntArray, depth: IntArray) -> Batches:
    order = _stable_order(depth, _stable_order(type_id, np.arange(type_id.size).astype(np.int32)))
    batch_type, batch_ptr = np.empty(order.size, np.int32), np.empty(order.size + 1, np.int32)
    k = 0
    for i in range(order.size):
        node = order[i]
        if i == 0 or type_id[node] != type_id[order[i - 1]] or depth[node] != depth[order[i - 1]]:
            batch_type[k], batch_ptr[k] = type_id[node], i
            k += 1
    batch_ptr[k] = order.size
    return batch_type[:k].copy(), batch_ptr[: k + 1].copy(), order


@compiled
def _stable_order(key: IntArray, order: IntArray) -> IntArray:
    """Sort the nodes of `order` stably by key: one pass of a radix sort."""
    place = np.zeros(key.max() + 2 if key.size else 1, np.int64)
    for value in key:
        place[value + 1] += 1
    place = np.cumsum(place)
    result = np.empty(order.size, np.int32)
    for node in order:
        result[place[key[node]]] = node
        place[key[node]] += 1
    return result
