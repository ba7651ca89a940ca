"""The one place that knows what running a type means: it runs every ready node of that type, as one batch.

Each node becomes ready once, and a batch takes all that is ready of its type, so the ready nodes of a type are a
queue, and the queues of all types fill one array of N nodes, a segment for each type. At the end a type's segment
lists its nodes in the order in which they ran. A policy is a loop that calls `start`, chooses a type whose
head is before its tail, calls `step`, and ends with `finish`; in compiled code that costs nanoseconds per node.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autobatch._jit import compiled
from autobatch.words import IntArray


@compiled
def depths(edge_ptr: IntArray, edge_src: IntArray) -> IntArray:
    """Count, per node, the edges on the longest path from a node without inputs: int32[N]."""
    depth = np.zeros(edge_ptr.size - 1, np.int32)
    for node in range(depth.size):
        for e in range(edge_ptr[node], edge_ptr[node + 1]):
            depth[node] = max(depth[node], depth[edge_src[e]] + 1)
    return depth


class Simulator(NamedTuple):
    """A schedule being made: what is ready, what has run. Flat arrays, written by `step`."""

    type_id: IntArray  # [N]
    reader_ptr: IntArray  # [N+1] the nodes that read node n: reader[reader_ptr[n]:reader_ptr[n+1]]
    reader: IntArray  # [E]
    waiting: IntArray  # [N] edges from nodes that have not run
    queue: IntArray  # [N] per type a segment: nodes that ran, then ready ones, then room for the rest
    segment: IntArray  # [T+1] type t has queue[segment[t]:segment[t+1]]
    head: IntArray  # [T] where its ready nodes begin
    tail: IntArray  # [T] and end
    order: IntArray  # [N] nodes in the order in which they ran
    batch_type: IntArray  # [N] the type of each batch so far
    batch_ptr: IntArray  # [N+1] and where it ends in `order`
    n_batches: IntArray  # [1]


@compiled
def start(type_id: IntArray, edge_ptr: IntArray, edge_src: IntArray, n_types: int) -> Simulator:
    """Set up a simulation of a graph in which nothing has run. Cost: O(N + E + T)."""
    n_nodes = type_id.size
    reader_ptr, reader = reverse_edges(edge_ptr, edge_src)
    segment = np.zeros(n_types + 1, np.int32)
    for kind in type_id:
        segment[kind + 1] += 1
    for kind in range(n_types):
        segment[kind + 1] += segment[kind]
    tail = segment[:-1].copy()
    waiting = np.empty(n_nodes, np.int32)
    queue = np.empty(n_nodes, np.int32)
    for node in range(n_nodes):
        waiting[node] = edge_ptr[node + 1] - edge_ptr[node]
        if waiting[node] == 0:
            queue[tail[type_id[node]]] = node
            tail[type_id[node]] += 1
    batch_ptr = np.empty(n_nodes + 1, np.int32)
    batch_ptr[0] = 0
    order, batch_type = np.empty(n_nodes, np.int32), np.empty(n_nodes, np.int32)
    return Simulator(
        type_id, reader_ptr, reader, waiting, queue, segment, segment[:-1].copy(), tail,
        order, batch_type, batch_ptr, np.zeros(1, np.int32),
    )  # fmt: skip


@compiled
def step(sim: Simulator, kind: int) -> IntArray:
    """Run every ready node of type `kind` as one batch, and return them. Cost: O(nodes run + their readers)."""
    first, end = sim.head[kind], sim.tail[kind]
    batch = sim.queue[first:end]
    k = sim.n_batches[0]
    done = sim.batch_ptr[k]
    for i in range(batch.size):
        node = batch[i]
        sim.order[done + i] = node
        for r in range(sim.reader_ptr[node], sim.reader_ptr[node + 1]):
            reader = sim.reader[r]
            sim.waiting[reader] -= 1
            if sim.waiting[reader] == 0:
                other = sim.type_id[reader]
                sim.queue[sim.tail[other]] = reader
                sim.tail[other] += 1
    sim.head[kind] = end
    sim.batch_type[k] = kind
    sim.batch_ptr[k + 1] = done + batch.size
    sim.n_batches[0] = k + 1
    return batch


@compiled
def finish(sim: Simulator) -> tuple[IntArray, IntArray, IntArray]:
    """Give (batch_type, batch_ptr, order) of what has run so far."""
    k = sim.n_batches[0]
    return sim.batch_type[:k].copy(), sim.batch_ptr[: k + 1].copy(), sim.order[: sim.batch_ptr[k]]


@compiled
def reverse_edges(edge_ptr: IntArray, edge_src: IntArray) -> tuple[IntArray, IntArray]:
    """List the readers of each node, in node order: reader_ptr[N+1], reader[E]."""
    reader_ptr = np.zeros(edge_ptr.size + 1, np.int32)
    for source in edge_src:
        reader_ptr[source + 2] += 1
    for node in range(1, edge_ptr.size):
        reader_ptr[node + 1] += reader_ptr[node]
    reader = np.empty(edge_src.size, np.int32)
    for node in range(edge_ptr.size - 1):
        for e in range(edge_ptr[node], edge_ptr[node + 1]):
            source = edge_src[e]
            reader[reader_ptr[source + 1]] = node
            reader_ptr[source + 1] += 1
    return reader_ptr[:-1], reader
