"""What runs now: programs of requests, which join and leave one growing graph between two rounds.

    begin -> record ─▶ growing graph ─sketch─▶ schedule of all that is pending ─cut─▶ round: emit, plan, run
      ▲                                                                                          │
      └───────────── numbers that a program awaited; or its result, and its place is free ◀──────┘

A round runs the first batches of the schedule, about as many as take `QUANTUM` seconds, so that what arrives meanwhile
waits no longer than that before it shares batches with what is on its way. The rest of the schedule goes on in the next
round, unless something was recorded.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from autobatch.api import Batched
from autobatch.engine.counts import Clock
from autobatch.engine.kept_values import KeptValues, run_and_keep
from autobatch.jit.arrays import IntArray
from autobatch.ops.operators import stage
from autobatch.schedule.schedule import Schedule
from autobatch.system.turns import recording_lock
from autobatch.trace.phases import Phases
from autobatch.trace.record import MiniBatch

QUANTUM = 4e-3
"""Seconds that a round shall take: short against a request, long against what a round costs beside its batches."""
NEARLY_OVER = 0.25
"""A program whose remaining nodes take less than this share of a round ends in this round, whatever the policy says."""
PATIENCE = 16
"""Rounds after which the remaining nodes of the program that began first are in the next round, whatever they take."""
FIRST_RATE = 1e9  # multiply-adds per second, until rounds were timed
PER_NODE, PER_BATCH = 2e3, 2e4  # multiply-adds that take as long as a node and a batch cost beside their products
SMOOTHING = 0.2  # of the rate: the weight of the last round
COMPACT_AT = 1 << 14  # nodes, of which at most half may be in use


class Waiting(NamedTuple):
    """What a program waits for.

    Attributes:
        values: that it needs.
        slots: of each of them, if it has ended and they are its result; else None.
        asked: the structures of what its branches ask for, if it has not.
    """

    values: IntArray
    slots: list[int] | None
    asked: list[Any]


class Batch(NamedTuple):
    """A batch of a schedule: pending nodes of one type."""

    type_id: int
    nodes: IntArray


class Round(NamedTuple):
    """What a round ran, for reports.

    Attributes:
        places: of the programs that it ran nodes of; n_nodes, n_batches: how many.
        seconds: that it took; kernels: of these, in batches.
    """

    places: int
    n_nodes: int
    n_batches: int
    seconds: float
    kernels: float


class Running:
    """The programs that run now, each at a place. One thread calls it.

    Args:
        engine: of the function, which is async.
        n_places: how many programs run at a time.
    """

    def __init__(self, engine: Batched, n_places: int) -> None:
        self._engine, self._recorder = engine, engine.recorder
        self._phases = Phases(self._recorder, n_places)
        self._options = engine.options_now(training=False, has_aux=False)
        self._kept = KeptValues(self._phases.graph, self._phases.table_of, self._options.dtype)
        self._keys = np.zeros(n_places, np.int64)
        self._begun: dict[int, int] = {}  # the round before which the program at each place began, the first one first
        self._ready: set[int] = set()
        self._waiting: dict[int, Waiting] = {}
        self._left: list[Batch] = []  # batches of the schedule
        self._n_rounds, self._rate, self._compact_at = 0, FIRST_RATE, COMPACT_AT

    @property
    def n_running(self) -> int:
        """How many programs there are."""
        return len(self._begun)

    def begin(self, place: int, key: int, instance: Any) -> None:
        """Begin the program of an instance at a free place.

        Args:
            key: on which its random numbers depend.
        """
        self._keys[place] = key
        self._phases.begin(place, instance)
        self._begun[place] = self._n_rounds
        self._ready.add(place)

    def record(self) -> list[tuple[int, Exception]]:
        """Let the programs that can go on do so; give the places of those that failed, which are free, and the errors.

        Raises:
            AutobatchError: a call that none of them recorded alone is to blame for.
        """
        if not self._ready:
            return []
        phases, places = self._phases, sorted(self._ready)
        self._recorder.renew()
        with self._recorder.patching():
            phase = phases.go_on(places)
        failed = []
        for place in places:
            program = phases.programs[place]
            if program.error is not None:
                failed.append((place, program.error))
                self._leave(place)
                continue
            if program.is_over:
                self._waiting[place] = Waiting(*phases.result(place)[:2], [])
            else:
                values = phase.values[phase.ptr[place] : phase.ptr[place + 1]]
                phases.graph.hold(values, 1)
                self._waiting[place] = Waiting(values, None, phases.asked(place))
        self._ready.clear()
        self._left = []
        return failed

    def run(self) -> Round | None:
        """Run a round; None if nothing is to be run."""
        began, batches = perf_counter(), self._next_batches()
        if not batches:
            return None
        phases, kept, types, planning = self._phases, self._kept, self._recorder.types, self._engine.planning
        nodes = np.concatenate([batch.nodes for batch in batches])
        chosen = phases.graph.pick(nodes, phases.output_slots.slot, kept.next_run, types)
        with recording_lock():
            phases.sources_known(chosen.sources)
        kept.settle()
        graph = phases.graph.emit(chosen, phases.output_slots.source, types)
        graph.keys = self._keys
        self._options = self._engine.options_now(training=False, has_aux=False)
        step = planning.prepare(MiniBatch([], graph), self._options, Clock())
        planned = perf_counter()
        run_and_keep(self._engine.executor, kept, step, chosen.kept.values, (self._options.seed, 0), None)
        ended = perf_counter()
        rate = sum(self._cost(batch) for batch in batches) / max(ended - planned, 1e-6)
        self._rate += SMOOTHING * (rate - self._rate)
        self._n_rounds += 1
        n_batches = sum(part.plan.schedule.n_batches for part in step.parts)
        return Round(np.unique(phases.graph.owner[nodes]).size, nodes.size, n_batches, ended - began, ended - planned)

    def answer(self) -> list[tuple[int, Any]]:
        """Answer programs whose values were computed; give the results of those that ended, whose places are free."""
        phases, graph = self._phases, self._phases.graph
        places = [place for place, waiting in self._waiting.items() if graph.are_done(waiting.values).all()]
        if not places:
            return []
        found = {place: self._waiting.pop(place) for place in places}
        wanted = np.concatenate([waiting.values for waiting in found.values()])
        numbers = iter(self._kept.read(wanted, phases.int_slots))
        over = list[int]()
        columns: list[list[Any]] = [[] for _ in self._recorder.slots.shapes]
        for place, waiting in found.items():
            if waiting.slots is None:
                phases.programs[place].answer([phases.fill(structure, numbers) for structure in waiting.asked])
                self._ready.add(place)
            else:
                over.append(place)
                for slot, number in zip(waiting.slots, numbers, strict=False):
                    columns[slot].append(number)
        graph.hold(wanted, -1)
        structures = [phases.result(place)[2] for place in over]
        for place in over:
            self._leave(place)
        arrays = [
            np.array(rows, self._options.dtype).reshape(len(rows), *shape)
            for rows, shape in zip(columns, self._recorder.slots.shapes, strict=True)
        ]
        return [*zip(over, self._engine.results_of(structures, arrays), strict=True)]

    def leave(self, place: int) -> None:
        """End the program at a place, which is free then."""
        with stage(self._recorder.calls):
            self._phases.programs[place].end(GeneratorExit())
        waiting = self._waiting.pop(place, None)
        if waiting is not None:
            self._phases.graph.hold(waiting.values, -1)
        self._leave(place)
        self._left = []

    def compact(self) -> None:
        """Forget what nothing can read any more, where much was recorded since the last time."""
        if self._phases.graph.n_nodes < self._compact_at:
            return
        self._kept.settle()
        of_value = self._phases.compact()
        self._kept.renumber(of_value)
        for place, waiting in self._waiting.items():
            self._waiting[place] = waiting._replace(values=of_value[waiting.values])
        self._left = []
        self._compact_at = max(COMPACT_AT, 2 * self._phases.graph.n_nodes)

    def close(self) -> None:
        """Leave the recording."""
        self._kept.close()
        self._phases.close()

    def _leave(self, place: int) -> None:
        self._ready.discard(place)
        del self._begun[place]
        self._phases.graph.drop(place)

    def _next_batches(self) -> list[Batch]:
        """The batches of the next round: the first ones of the schedule; and all that programs which shall end need."""
        if not self._left:
            self._left = self._schedule([*self._waiting])
        budget, n = QUANTUM * self._rate, 0
        while n < len(self._left) and budget > 0:
            budget -= self._cost(self._left[n])
            n += 1
        batches, self._left = self._left[:n], self._left[n:]
        ending = self._ending() if self._left else []
        if ending:
            own = np.isin(self._phases.graph.owner, ending)
            batches += [Batch(type_id, nodes[own[nodes]]) for type_id, nodes in self._left]
            self._left = [Batch(type_id, nodes[~own[nodes]]) for type_id, nodes in self._left]
        self._left = [batch for batch in self._left if batch.nodes.size]
        return [batch for batch in batches if batch.nodes.size]

    def _schedule(self, places: list[int]) -> list[Batch]:
        """The batches of all pending nodes that the programs at some places need."""
        wanted = [self._waiting[place].values for place in places]
        if not wanted:
            return []
        nodes, sketch = self._phases.graph.sketch(np.concatenate(wanted), self._recorder.types)
        if not nodes.size:
            return []
        schedule: Schedule = self._options.policy.schedule(sketch)
        return [Batch(type_id, nodes[own]) for type_id, own in schedule]

    def _ending(self) -> list[int]:
        """The places of the programs that end in this round: those that nearly are over, and one that waited long."""
        costs = np.zeros(len(self._keys))
        for batch in self._left:
            costs += np.bincount(self._phases.graph.owner[batch.nodes], minlength=costs.size) * self._cost_of_node(
                batch
            )
        ending = [place for place in self._waiting if 0 < costs[place] < NEARLY_OVER * QUANTUM * self._rate]
        first = next(iter(self._begun))
        if self._n_rounds - self._begun[first] >= PATIENCE and costs[first] and first not in ending:
            ending.append(first)
        return ending

    def _cost_of_node(self, batch: Batch) -> float:
        """Multiply-adds of a node, with what takes as long."""
        return PER_NODE + float(self._recorder.types.arrays().product_work[batch.type_id])

    def _cost(self, batch: Batch) -> float:
        return PER_BATCH + batch.nodes.size * self._cost_of_node(batch)
