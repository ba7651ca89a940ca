"""What the next round runs, of all that is pending.

A round runs all of it, if that is little. Else it runs the first batches of the policy's schedule, up to some work;
then every node that is ready by then; and of what gets ready by that, all that only results read. So every program gets
on in every round, and ends after at most as many rounds as its longest chain has nodes, whatever arrives meanwhile: a
policy alone would put off what gets better by waiting, such as the outputs of trees, for as long as requests arrive.
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
        nodes: their numbers; sketch: their types and edges, numbered from 0.
        policy: schedules the sketch, if a round cannot run all of it.
    """

    def __init__(self, nodes: IntArray, sketch: Graph, policy: Policy) -> None:
        self.nodes, self._sketch, self._policy, self._n_done = nodes, sketch, policy, 0
        self._work = work_of(sketch)
        self._is_left = np.ones(nodes.size, bool)

    def take(self, budget: float, whole: float) -> tuple[IntArray, NDArray[np.float64]]:
        """The nodes of the next round, which count as done; and the work of each, in multiply-adds.

        Args:
            budget: work of the schedule's first batches; there is one at least.
            whole: work up to which all is taken.
        """
        before = self._is_left.copy()
        work = self._work[before]
        if float(work.sum()) <= whole:
            self._is_left[:] = False
            return self.nodes[before], work
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
        chosen = before & ~self._is_left
        return self.nodes[chosen], self._work[chosen]

    @cached_property
    def _schedule(self) -> Schedule:
        return self._policy.schedule(self._sketch)

    @cached_property
    def _readers(self) -> NDArray[np.int64]:
        """Return the node that each edge leads to."""
        return np.repeat(np.arange(self.nodes.size), np.diff(self._sketch.edge_ptr))

    def _ready(self) -> NDArray[np.bool_]:
        """Find the nodes left that read nothing left."""
        waits = np.bincount(self._readers, self._is_left[self._sketch.edge_src], self._is_left.size) > 0
        return self._is_left & ~waits
