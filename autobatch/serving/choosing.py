"""What the next round runs, of all that is pending.

A round runs all of it, if that fits into its budget. Else it runs the first batches of the policy's schedule that do;
then every node that is ready by then; and of what gets ready by that, all that only results read. So every program gets
on in every round, and ends after at most as many rounds as its longest chain has nodes, whatever arrives meanwhile: a
policy alone would put off what gets better by waiting, such as the outputs of trees, for as long as requests arrive.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autobatch.graph.graph import Graph
from autobatch.jit.arrays import IntArray
from autobatch.schedule.schedule import Policy, Schedule

PER_NODE, PER_BATCH = 2e3, 2e4  # multiply-adds that take as long as a node and a batch cost beside their products


class Pending:
    """The pending nodes that programs need.

    Args:
        nodes: their numbers; sketch: their types and edges, numbered from 0.
        policy: schedules the sketch, if a round cannot run all of it.
        work: multiply-adds of a node of each type.
    """

    def __init__(self, nodes: IntArray, sketch: Graph, policy: Policy, work: NDArray[np.int64]) -> None:
        self.nodes, self._sketch, self._policy, self._n_done = nodes, sketch, policy, 0
        self._costs: NDArray[np.float64] = PER_NODE + work[sketch.type_id].astype(np.float64)
        self._sources = sketch.edge_src
        self._readers = np.repeat(np.arange(nodes.size), np.diff(sketch.edge_ptr))
        self._is_read = np.bincount(self._sources, minlength=nodes.size) > 0
        self._is_left = np.ones(nodes.size, bool)

    def take(self, budget: float) -> tuple[IntArray, NDArray[np.float64]]:
        """The nodes of the next round, which count as done; and the multiply-adds that take as long as each.

        Args:
            budget: multiply-adds of the schedule's first batches; there is one at least.
        """
        before = self._is_left.copy()
        if float(self._costs[before].sum()) <= budget:
            self._is_left[:] = False
            return self.nodes[before], self._costs[before]
        cost, order, ends = 0.0, self._schedule.order, self._schedule.batch_ptr
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
        return self.nodes[taken], self._costs[taken]

    @cached_property
    def _schedule(self) -> Schedule:
        return self._policy.schedule(self._sketch)

    def _ready(self) -> NDArray[np.bool_]:
        """Which of the nodes that are left read nothing that is left."""
        waits = np.bincount(self._readers, self._is_left[self._sources], self._is_left.size) > 0
        return self._is_left & ~waits
