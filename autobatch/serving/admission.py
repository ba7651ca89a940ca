"""Decide what the next round of a server runs: when requests start, how much work there is, and on which nodes.

Requests that await values start in groups, so that their first steps are batched.

For example, a translator first reads its sentence word by word. If it starts alone, it runs batches of one row for
these words. A group that starts together runs no more batches than a single request does.

The work budget of a round is the work of the last rounds, scaled to their target time.

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

SHARE = 1 / 4
"""The rounds between two groups, as a share of the mean number of rounds of a request."""
SMOOTHING = 0.2  # the weight of the last request in the mean number of rounds


class AdmissionWindow:
    """The rule that decides when a group of requests may start, from the mean number of rounds of a request.

    Args:
        n_places: the maximum number of running requests.
    """

    def __init__(self, n_places: int) -> None:
        self._n_rounds, self._last, self._mean = 0, 0, 0.0
        self._born = np.zeros(n_places, np.int64)  # the rounds counted when the request at each place began

    @property
    def is_open(self) -> bool:
        """Return whether requests may begin while others run."""
        return self._n_rounds - self._last >= SHARE * self._mean

    def count_round(self) -> None:
        self._n_rounds += 1

    def begin(self, place: int) -> None:
        self._born[place] = self._last = self._n_rounds

    def end(self, place: int) -> None:
        self._mean += SMOOTHING * (self._n_rounds - int(self._born[place]) - self._mean)


FIRST_RATE = 1e11  # multiply-adds per second, assumed until a round is timed; high, so that first rounds are large


class Budget:
    """The work that a round of a given duration may have, in multiply-adds.

    After a round that was too long, the budget shrinks to the work that would have fitted, but at most by half, because
    an interruption may have caused the delay. After a shorter round it grows to the work that would have fitted. It
    does not shrink then, because larger rounds have fuller batches and so do more work per second.

    Args:
        seconds: the target duration of a round.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self.work = seconds, seconds * FIRST_RATE

    def learn(self, work: float, seconds: float) -> None:
        """Update the budget after a round with this work and duration."""
        scaled = work * self._seconds / max(seconds, 1e-9)
        self.work = max(0.5 * self.work if seconds > self._seconds else self.work, scaled)


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
        # Whatever is ready now, so that every program advances; then results that became ready by that, which would
        # otherwise wait as long as requests arrive (see above).
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


class TimeShares:
    """The seconds in batches, divided among the programs at all places by the work of their nodes.

    Args:
        n_places: the maximum number of running programs.
    """

    def __init__(self, n_places: int) -> None:
        self._total, self._before, self._own = 0.0, np.zeros(n_places), np.zeros(n_places)

    def begin(self, place: int) -> None:
        """Start counting for a new program at a place."""
        self._before[place], self._own[place] = self._total, 0.0

    def add(self, shares: NDArray[np.float64], seconds: float) -> None:
        """Add the seconds of a run: the share of the program at each place, and their sum."""
        self._own += shares
        self._total += seconds

    def of(self, place: int) -> tuple[float, float]:
        """Return the seconds for nodes of the program at a place, and for nodes of others since it began."""
        own = float(self._own[place])
        return own, self._total - float(self._before[place]) - own
