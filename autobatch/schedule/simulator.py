"""Simulate schedules: running a type runs all its ready nodes as one batch. Only this module implements that rule.

Each node becomes ready once, and a batch takes all ready nodes of its type, so the ready nodes of a type are a queue,
and the queues of all types fill one array of N nodes, a segment for each type. At the end a type's segment lists its
nodes in the order in which they ran. A policy is a loop that calls `start`, chooses a type whose head is before its
tail, calls `step`, and ends with `finish`; in compiled code that costs nanoseconds per node.

Many dags are simulated as one: `stack` gives each its own T types and its own range of nodes.
`autobatch.schedule.chains` and `autobatch.schedule.restricted` maintain further quantities for policies during a
simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autobatch.graph.dag import Dag, reverse_edges
from autobatch.jit.arrays import IntArray, empty, indices, zeros
from autobatch.jit.loops import compiled


class Simulator(NamedTuple):
    """The state of G simulated dags of T types each: ready nodes and past batches. Flat arrays, written by `step`.

    Type t of dag g has number g * T + t in all arrays.
    """

    type_id: IntArray  # [N]
    reader_ptr: IntArray  # [N+1] the nodes that read node n: reader[reader_ptr[n]:reader_ptr[n+1]]
    reader: IntArray  # [E]
    waiting: IntArray  # [N] edges from nodes that have not run
    queue: IntArray  # [N] per type a segment: nodes that ran, then ready ones, then room for the rest
    segment: IntArray  # [G*T+1] type t has queue[segment[t]:segment[t+1]]
    head: IntArray  # [G*T] where its ready nodes begin
    tail: IntArray  # [G*T] and end
    node_ptr: IntArray  # [G+1] dag g has nodes node_ptr[g]:node_ptr[g+1], and its history lies in the same range
    order: IntArray  # [N] nodes in the order in which they ran
    batch_type: IntArray  # [N] the type of each batch so far
    batch_end: IntArray  # [N] and where it ends in `order`
    n_batches: IntArray  # [G]


@compiled
def start(dag: Dag) -> Simulator:
    """Set up a simulation of a dag in which nothing has run. Cost: O(N + E + T)."""
    node_ptr = zeros(2, np.int32)
    node_ptr[1] = dag.type_id.size
    return start_all(dag, node_ptr)


@compiled
def start_all(dag: Dag, node_ptr: IntArray) -> Simulator:
    """Set up a simulation of stacked dags, in which nothing has run. Cost: O(N + E + G * T).

    Args:
        dag, node_ptr: what `stack` gives.
    """
    n_nodes = dag.type_id.size
    reader_ptr, reader = reverse_edges(dag.edge_ptr, dag.edge_src)
    segment = zeros(dag.n_types + 1, np.int32)
    count = indices(segment[1:])
    for type_id in indices(dag.type_id):
        count[type_id] += 1
    for type_id in range(dag.n_types):
        segment[type_id + 1] += segment[type_id]
    sim = Simulator(
        dag.type_id, reader_ptr, reader, empty(n_nodes, np.int32), empty(n_nodes, np.int32), segment,
        empty(dag.n_types, np.int32), empty(dag.n_types, np.int32), node_ptr, empty(n_nodes, np.int32),
        empty(n_nodes, np.int32), empty(n_nodes, np.int32), empty(node_ptr.size - 1, np.int32),
    )  # fmt: skip
    for g in range(node_ptr.size - 1):
        restart(sim, dag, g)
    return sim


@compiled
def restart(sim: Simulator, dag: Dag, g: int) -> None:
    """Reset stacked dag `g` to the state in which nothing has run. Cost: O(its nodes + T)."""
    head, tail, edge_ptr, waiting = sim.head, sim.tail, dag.edge_ptr, sim.waiting
    n_types = head.size // sim.n_batches.size
    sim.n_batches[g] = 0
    for type_id in range(g * n_types, (g + 1) * n_types):
        head[type_id] = tail[type_id] = sim.segment[type_id]
    type_ids, queue, free = indices(dag.type_id), indices(sim.queue), indices(tail)
    for node in range(sim.node_ptr[g], sim.node_ptr[g + 1]):
        waiting[node] = edge_ptr[node + 1] - edge_ptr[node]
        type_id = type_ids[node]
        queue[free[type_id]] = node  # as in `step`
        free[type_id] += np.uint32(waiting[node] == 0)


@compiled
def step(sim: Simulator, type_id: int) -> IntArray:
    """Run every ready node of type `type_id` as one batch, and return them. Cost: O(nodes run + their readers)."""
    type_ids, waiting, reader = indices(sim.type_id), indices(sim.waiting), indices(sim.reader)
    reader_start, reader_end = indices(sim.reader_ptr[:-1]), indices(sim.reader_ptr[1:])
    queue, free, head, tail = indices(sim.queue), indices(sim.tail), sim.head, sim.tail
    order, batch_end, n_batches = sim.order, sim.batch_end, sim.n_batches
    first, end = head[type_id], tail[type_id]
    g = type_id * n_batches.size // head.size
    start_of_dag = sim.node_ptr[g]
    k = start_of_dag + n_batches[g]
    done = batch_end[k - 1] if n_batches[g] else start_of_dag
    for i in range(first, end):
        order[done + i - first] = queue[i]
    for node in queue[first:end]:
        for r in range(reader_start[node], reader_end[node]):
            freed = reader[r]
            waiting[freed] -= np.uint32(1)
            other = type_ids[freed]
            queue[free[other]] = freed  # written always, counted only if no input is missing: avoids a branch
            free[other] += np.uint32(waiting[freed] == 0)
    head[type_id] = end
    sim.batch_type[k] = type_id
    batch_end[k] = done + end - first
    n_batches[g] += 1
    return sim.queue[first:end]


@compiled
def finish(sim: Simulator) -> tuple[IntArray, IntArray, IntArray]:
    """Give (batch_type, batch_ptr, order) of the batches so far of a single dag."""
    n_batches, batch_end = sim.n_batches[0], sim.batch_end
    batch_ptr = zeros(n_batches + 1, np.int32)
    for k in range(n_batches):
        batch_ptr[k + 1] = batch_end[k]
    return sim.batch_type[:n_batches].copy(), batch_ptr, sim.order[: batch_ptr[-1]]


def stack(dags: Sequence[Dag]) -> tuple[Dag, IntArray]:
    """Join dags of T types each into one of G * T types, in which type t of dag g has number g * T + t.

    Returns:
        The joined dag, and node_ptr int32[G+1], the range of nodes of each.
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
