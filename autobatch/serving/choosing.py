"""What the next round runs, of all that is pending.

A round runs the first batches of the policy's schedule, as many as fit into its budget. Then it runs every node that is
ready by then, and of what gets ready by that, all that only results read. So every program gets on in every round, and
ends after at most as many rounds as its longest chain has nodes, whatever arrives meanwhile: a policy alone would put
off what gets better by waiting, such as the outputs of trees, for as long as requests arrive.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autobatch.graph.graph import Graph
from autobatch.jit.arrays import IntArray
from autobatch.schedule.schedule import Schedule

PER_NODE, PER_BATCH = 2e3, 2e4  # multiply-adds that take as long as a node and a batch cost beside their products


class Pending:
    """The pending nodes that programs need.

    Args:
        nodes: their numbers; sketch: their types and edges, numbered from 0.
        schedule: of the sketch.
        work: multiply-adds of a node of each type.
    """

    def __init__(self, nodes: IntArray, sketch: Graph, schedule: Schedule, work: NDArray[np.int64]) -> None:
        self.nodes, self._schedule, self._n_done = nodes, schedule, 0
        self._costs = PER_NODE + work[sketch.type_id]
        self._sources = sketch.edge_src
        self._readers = np.repeat(np.arange(nodes.size), np.diff(sketch.edge_ptr))
        self._is_read = np.bincount(self._sources, minlength=nodes.size) > 0
        self._is_left = np.ones(nodes.size, bool)

    def take(self, budget: float) -> tuple[IntArray, float]:
        """The nodes of the next round, which count as done; and the multiply-adds that take as long.

        Args:
            budget: multiply-adds of the schedule's first batches; there is one at least.
        """
        before, cost = self._is_left.copy(), 0.0
        order, ends = self._schedule.order, self._schedule.batch_ptr
        while self._n_done < self._schedule.n_batches and cost <= budget:
            batch = order[ends[self._n_done] : ends[self._n_done + 1]]
            batch = batch[self._is_left[batch]]
            if batch.size:
                cost += PER_BATCH + float(self._costs[batch].sum())
                self._is_left[batch] = False
            self._n_done += 1
        self._is_left &= ~self._ready()
        self._is_left &= ~self._ready() | self._is_read
        taken = before & ~self._is_left
        return self.nodes[taken], float(self._costs[taken].sum())

    def _ready(self) -> NDArray[np.bool_]:
        """Which of the nodes that are left read nothing that is left."""
        waits = np.bincount(self._readers, self._is_left[self._sources], self._is_left.size) > 0
        return self._is_left & ~waits
