"""The running programs of requests, which join and leave one growing graph between two rounds.

    begin -> record ─▶ growing graph ─sketch─▶ schedule of all pending nodes ─cut─▶ round: emit, plan, run
      ▲                                                                                        │
      └──────────── numbers that a program awaited; or its result, which frees its place ◀─────┘

A round takes about `QUANTUM` seconds, so a new request waits no longer than that before it shares batches with running
ones. A round runs all pending nodes that programs wait for if their work is small; otherwise a sketch of them is
scheduled, and `autobatch.serving.admission` chooses the nodes of each round. Programs that await nothing skip the
growing graph as long as none of them is long: those that have arrived run as a mini-batch of `ab.batched`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.api import Batched
from autobatch.arrays import IntArray
from autobatch.engine.counts import Clock, Step
from autobatch.engine.kept_values import KeptValues, run_and_keep
from autobatch.engine.results import join_columns
from autobatch.graph.graph import PER_NODE, Graph, work_of
from autobatch.graph.growing import NONE, Request
from autobatch.plan.plan import Plan
from autobatch.serving.admission import AdmissionWindow, Budget, Pending, TimeShares
from autobatch.serving.arrivals import NOBODY, Arrivals, Recorded, Result
from autobatch.trace.record import MiniBatch

QUANTUM = 8e-3
"""Target seconds of a round: short compared with a request, long compared with the overhead of a round."""
WHOLE = 0.2
"""Maximum seconds of a mini-batch of programs that await nothing; it is shorter if few requests wait."""
SMOOTHING = 0.2  # the weight of the last mini-batch in the mean work of a request
COMPACT_AT = 1 << 14  # nodes at which the graph is first compacted; later, twice the nodes left by the last time
MOST_CALLS = 1 << 30  # calls of cells in one recording, half of the calls that it can number


class KeptResults(KeptValues):
    """The kept values of requests."""

    @property
    def n_bytes(self) -> int:
        """Return the bytes of the rows that programs may still read, except those of the last run."""
        sizes = [n * math.prod(self._table_of(slot).row) for slot, n in enumerate(self.rows.in_use.tolist()) if n]
        return self._dtype.itemsize * int(sum(sizes))

    def columns(self, values: IntArray, slots: Sequence[int], shapes: Sequence[tuple[int, ...]]) -> list[NDArray[Any]]:
        """Return the result values of programs as one column per slot.

        Args:
            values: the values, in the order of the programs.
            slots: the slot of each value.
            shapes: the shape of each slot.
        """
        of_each = np.asarray(slots, np.int64)
        return [self._rows_of(values[of_each == slot], shape) for slot, shape in enumerate(shapes)]

    def _rows_of(self, values: IntArray, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the rows of values of one shape and type, which are all kept in the same slot."""
        found = np.empty((values.size, *shape), self._dtype)
        for _, places, rows in self._columns(values):
            found[... if places is None else places] = rows
        return found


class Round(NamedTuple):
    """A completed round, for reports.

    Attributes:
        n_programs: the number of programs whose nodes it ran.
        plans: the plans of its parts.
        seconds: the duration.
        kernels: the part of the duration in batches.
    """

    n_programs: int
    plans: Sequence[Plan]
    seconds: float
    kernels: float


class Ended(NamedTuple):
    """A program that has ended.

    Attributes:
        place: its place.
        result: its result.
        own: its share of the seconds in batches, by the work of its nodes.
        others: the share of other programs meanwhile.
    """

    place: int
    result: Any
    own: float
    others: float


class Whole(NamedTuple):
    """A recorded graph that runs as a mini-batch: the places of its instances, and the work of each of its nodes."""

    graph: Graph
    places: Sequence[int]
    work: NDArray[np.float64]


class Running:
    """The running programs, each at a place. Not thread-safe.

    Args:
        engine: the batched function.
        n_places: the maximum number of running programs.
    """

    def __init__(self, engine: Batched, n_places: int) -> None:
        self._engine, self._recorder = engine, engine.recorder
        self._phases = Arrivals(self._recorder, n_places)
        self._options = engine.options_now(training=False, has_aux=False)
        self._kept = KeptResults(self._phases.graph, self._phases.table_of, self._options.dtype)
        self._ready: set[int] = set()
        self._waiting = NOBODY
        self._whole: Whole | None = None  # the next mini-batch
        self._over = list[Ended]()  # ended programs that `answer` returns next
        self._pending: Pending | None = None  # None if the graph has changed since it was found
        self._budget, self._whole_budget = Budget(QUANTUM), Budget(QUANTUM if self._recorder.is_async else WHOLE)
        self._each, self._compact_at = PER_NODE, COMPACT_AT  # the mean work of a request
        self._n_needed = np.zeros(n_places, np.int64)  # pending nodes that the program at each place waits for
        self._time_shares, self._admission = TimeShares(n_places), AdmissionWindow(n_places)
        self._has_new = False  # whether programs have begun since options were last refreshed

    @property
    def is_full(self) -> bool:
        """Return whether no other request may begin, because the recording has too many calls."""
        return self._phases.n_calls >= MOST_CALLS

    def room(self, n_running: int) -> int:
        """Return the number of requests that may begin now.

        If the kept values fill `max_bytes`, it is 1 if no request runs, else 0.
        """
        if self.is_full:
            return 0
        most = self._options.max_bytes
        if most is not None and self._kept.n_bytes >= most:
            return 0 if n_running else 1
        free = self._phases.graph.n_instances - n_running
        if self._recorder.is_async:
            return free if self._admission.is_open or not n_running else 0
        return min(free, max(0, 1 + int(self._whole_budget.work / self._each) - n_running))

    def begin(self, place: int, key: int, instance: Any) -> None:
        """Begin the program of an instance at a free place.

        Args:
            place: the place.
            key: the key of its random numbers.
            instance: the instance.
        """
        self._phases.graph.keys[place] = key
        self._time_shares.begin(place)
        self._admission.begin(place)
        self._phases.arrive(place, instance)
        self._ready.add(place)
        self._has_new = True

    def record(self) -> dict[int, BaseException]:
        """Resume the programs that are ready; return the errors of those that failed, by place, which is then free.

        Raises:
            AutobatchError: a call is invalid, and cannot be attributed to one of the programs.
        """
        if not self._ready:
            return {}
        phases, ready = self._phases, sorted(self._ready)
        if self._recorder.is_async:
            waiting, failed = phases.resume(ready, renews=self._has_new)
            self._waiting = self._waiting.joined(waiting)
        else:
            recorded, failed = phases.record(ready)
            self._whole = self._as_whole(recorded)
            if self._whole is None:
                for graph, places in recorded:
                    self._waiting = self._waiting.joined(phases.take(graph, places))
        self._ready.clear()
        self._pending = None
        if failed:
            self._free(failed)
        return failed

    def _as_whole(self, recorded: list[Recorded]) -> Whole | None:
        """Return the only recorded graph as a mini-batch; None if programs wait, or if its work is too large."""
        if self._waiting.results or len(recorded) != 1:
            return None
        graph, places = recorded[0]
        work = work_of(graph.type_id, graph.types)
        # `room` admits about one budget of work. Much more means that a program is long; it runs in rounds, which other
        # requests can join.
        return Whole(graph, places, work) if float(work.sum()) <= 2.0 * self._whole_budget.work else None

    def run(self) -> Round | None:
        """Run a round; None if nothing is pending."""
        self._admission.count_round()
        if self._whole is not None:
            whole, self._whole = self._whole, None
            return self._run_whole(whole)
        began, wanted = perf_counter(), NONE
        phases, kept, types = self._phases, self._kept, self._recorder.types
        if self._pending is None and phases.graph.pending_work(types) <= self._whole_budget.work:
            wanted = self._waiting.values  # one round computes all of it
            self._n_needed[:] = 0
        else:
            self._pending = self._pending or self._look()
            nodes = self._pending.take(self._budget.work, self._whole_budget.work)
            if not nodes.size:
                return None
            phases.graph.pick(nodes)
            self._n_needed -= np.bincount(phases.graph.owner[nodes], minlength=phases.graph.n_instances)
        # Only for new programs, because looking them up would cost time in every round.
        if self._has_new:
            self._has_new = False
            self._options = self._engine.options_now(training=False, has_aux=False)
        request = Request(wanted, phases.output_slots, kept.next_run)
        chosen, step = self._engine.planning.prepare_round(phases, kept, request, self._options, Clock())
        if step is None:
            return None
        planned = perf_counter()
        run_and_keep(self._engine, kept, step, chosen.kept.values, (self._options.seed, 0), None)
        kernels = perf_counter() - planned
        total, by_place = phases.graph.work_by_instance(chosen.nodes, types)
        self._learn(total, by_place, kernels)
        return Round(int(np.count_nonzero(by_place)), _plans(step), perf_counter() - began, kernels)

    def _run_whole(self, whole: Whole) -> Round:
        """Run a mini-batch as `ab.batched` does; all its programs end."""
        began = perf_counter()
        graph, places, work = whole
        owner = np.repeat(places, np.diff(graph.instance_ptr))
        by_place = np.asarray(np.bincount(owner, work, self._n_needed.size), np.float64)
        graph.keys = self._phases.graph.keys[[*places]]
        self._options = self._engine.options_now(training=False, has_aux=False)
        step = self._engine.planning.prepare(MiniBatch([], graph), self._options, Clock())
        planned = perf_counter()
        runs = self._engine.run(step, draw=(self._options.seed, 0))
        columns = join_columns([run.outputs for run in runs])
        kernels = perf_counter() - planned
        total = float(by_place.sum())
        self._learn(total, by_place, kernels)
        self._each += SMOOTHING * (total / len(places) - self._each)
        self._over += map(self._ended, places, self._engine.results_of(graph.structures, columns))
        return Round(len(places), _plans(step), perf_counter() - began, kernels)

    def _learn(self, work: float, by_place: NDArray[np.float64], seconds: float) -> None:
        """Update time shares and budgets after a run.

        Args:
            work: the work of all nodes in multiply-adds.
            by_place: that of the program at each place.
            seconds: the duration of the run.
        """
        self._time_shares.add(by_place * (seconds / max(work, 1.0)), seconds)
        for budget in (self._budget, self._whole_budget):
            budget.learn(work, seconds)

    def answer(self) -> list[Ended]:
        """Answer programs whose values were computed; return those that ended, whose places are then free."""
        ended, self._over = self._over, []
        done, left = self._waiting, NOBODY
        if done.is_empty:
            return ended
        if self._n_needed.any():
            done, left = done.split(self._n_needed == 0)
        self._waiting = left
        if done.asked:
            self._phases.answer(self._kept.read(done.awaited, self._phases.int_slots), done.asked)
            self._ready.update(done.asked)
        if done.results:
            ended += map(self._ended, done.results, self._results(done.results))
        # After the values were read, because their rows and nodes may now be reused.
        self._phases.graph.hold(done.values, -1)
        if done.results:
            self._free(done.results)
        return ended

    def _ended(self, place: int, result: Any) -> Ended:
        self._admission.end(place)
        return Ended(place, result, *self._time_shares.of(place))

    def _results(self, results: dict[int, Result]) -> list[Any]:
        """Return the computed results of programs, by place."""
        values = np.concatenate([result.values for result in results.values()])
        slots = [slot for result in results.values() for slot in result.slots]
        columns = self._kept.columns(values, slots, self._recorder.slots.shapes)
        return self._engine.results_of([self._phases.result(place)[2] for place in results], columns)

    def leave(self, places: Collection[int]) -> None:
        """End the programs at some places, which are then free."""
        for place in places:
            self._phases.end_at(place)
        is_left = np.zeros(self._n_needed.size, bool)
        is_left[[*places]] = True
        gone, self._waiting = self._waiting.split(is_left)
        self._phases.graph.hold(gone.values, -1)
        self._free(places)
        self._pending = None

    def compact(self) -> None:
        """Drop nodes and values that cannot be read any more, if much was recorded since the last time."""
        if self._phases.graph.n_nodes < self._compact_at:
            return
        # No values may be left in the last run, whose numbers are not updated.
        self._kept.settle()
        of_value = self._phases.compact()
        self._kept.renumber(of_value)
        self._waiting = self._waiting.renumbered(of_value)
        self._pending = None
        self._compact_at = max(COMPACT_AT, 2 * self._phases.graph.n_nodes)

    def close(self) -> None:
        """End all programs, and leave the recording."""
        for place in (*self._ready, *self._waiting.asked, *self._waiting.results):
            self._phases.end_at(place)
        self._kept.close()
        self._phases.close()

    def _free(self, places: Collection[int]) -> None:
        """Drop the nodes of programs that have ended."""
        self._ready.difference_update(places)
        self._phases.graph.drop(places)

    def _look(self) -> Pending:
        """Find the pending nodes that programs wait for, and schedule them."""
        nodes, sketch = self._phases.graph.sketch(self._waiting.values, self._recorder.types)
        self._n_needed = np.bincount(self._phases.graph.owner[nodes], minlength=self._phases.graph.n_instances)
        return Pending(nodes, sketch, self._options.policy)


def _plans(step: Step) -> list[Plan]:
    return [part.plan for part in step.parts]
