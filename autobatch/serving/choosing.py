"""The choice of the pending nodes that the next round runs.

A round runs all pending nodes if their work is small. Otherwise it runs the first batches of the policy's schedule, up
to a budget; then every node that is ready by then; then every node that became ready and that no other node reads. So
every program advances in every round, and ends after at most as many rounds as its longest chain has nodes, whatever
arrives meanwhile. A policy alone would postpone nodes whose batches grow by waiting, such as the outputs of trees, for
as long as requests arrive.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autobatch.arrays import IntArray
from autobatch.graph.graph import Graph, work_of
from autobatch.schedule.schedule import Policy, Schedule


class Pending:
    """The pending nodes that programs need.

    Args:
        nodes: their numbers.
        sketch: their types and edges, with nodes numbered from 0.
        policy: the policy that schedules the sketch if a round cannot run all of it.
    """

    def __init__(self, nodes: IntArray, sketch: Graph, policy: Policy) -> None:
        self.nodes, self._sketch, self._policy, self._n_done = nodes, sketch, policy, 0
        self._work = work_of(sketch.type_id, sketch.types)
        self._is_left = np.ones(nodes.size, bool)

    def take(self, budget: float, whole: float) -> IntArray:
        """Take the nodes of the next round, which then count as done; return their numbers.

        Args:
            budget: the work of the schedule's first batches; at least one batch is taken.
            whole: the work up to which all nodes are taken.
        """
        before = self._is_left.copy()
        if float(self._work[before].sum()) <= whole:
            self._is_left[:] = False
            return self.nodes[before]
        taken, order, ends = 0.0, self._schedule.order, self._schedule.batch_ptr
        while self._n_done < self._schedule.n_batches and taken <= budget:
            batch = order[ends[self._n_done] : ends[self._n_done + 1]]
            batch = batch[self._is_left[batch]]
            taken += float(self._work[batch].sum())
            self._is_left[batch] = False
            self._n_done += 1
        self._is_left &= ~self._ready()
        is_read = np.bincount(self._sketch.edge_src, minlength=before.size) > 0
        self._is_left &= ~self._ready() | is_read
        return self.nodes[before & ~self._is_left]

    @cached_property
    def _schedule(self) -> Schedule:
        return self._policy.schedule(self._sketch)

    @cached_property
    def _readers(self) -> NDArray[np.int64]:
        """Return the target node of each edge."""
        return np.repeat(np.arange(self.nodes.size), np.diff(self._sketch.edge_ptr))

    def _ready(self) -> NDArray[np.bool_]:
        """Find the remaining nodes that read no remaining node."""
        waits = np.bincount(self._readers, self._is_left[self._sketch.edge_src], self._is_left.size) > 0
        return self._is_left & ~waits
