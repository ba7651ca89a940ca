"""Rounds: run a mini-batch of async programs; each round computes what the programs wait for.

    programs run until all wait or have ended -> choose and plan the nodes they wait for -> run -> answer -> ...

What nobody waits for is held back, and runs in one last step with the results. In training the runs of all rounds stay
open. Backward begins with the last step and goes through the rounds from the last to the first; the gradients of values
that a later step has read are added up in the tables of kept values. If the open runs would take more than `max_bytes`,
the rounds only find the numbers that programs wait for, and the whole graph is then trained as if it had been recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from autobatch.errors import GraphError
from autobatch.graph.graph import Graph
from autobatch.graph.growth import NOWHERE
from autobatch.jit.arrays import IntArray
from autobatch.params.sparse_rows import Gradient
from autobatch.runtime.backend import Run, Timer
from autobatch.runtime.execution import Executor
from autobatch.runtime.kept_values import Done, KeptValues
from autobatch.runtime.planning import Choices, Planning
from autobatch.runtime.settings import Waiting
from autobatch.runtime.step import Clock, Step, join_steps
from autobatch.trace.phases import Phases, record_in_phases
from autobatch.trace.record import MiniBatch, Recorder


class Rounds:
    """Runs the rounds of one mini-batch.

    Args:
        choices: of the call; in training its purpose is that of gradients.
        draw: the seed and the number of the step.
    """

    def __init__(
        self,
        recorder: Recorder,
        planning: Planning,
        executor: Executor,
        choices: Choices,
        clock: Clock,
        draw: tuple[int, int],
        waiting: Waiting,
        timer: Timer | None = None,
    ) -> None:
        self._recorder, self._planning, self._executor, self._choices = recorder, planning, executor, choices
        self._clock, self._draw, self._waiting, self._timer = clock, draw, waiting, timer
        self._purpose, self._training = choices.purpose, choices.purpose is not None
        self._steps: list[tuple[Step, Run | None]] = []
        self._waited: list[tuple[int, ...]] = []
        self._n_sources = 0
        self._phases: Phases
        self._kept: KeptValues

    @contextmanager
    def run(self, instances: list[Any]) -> Iterator[Step]:
        """Run all rounds; within the context the last step, which gives the results, is ready to run.

        Raises:
            GraphError: more rounds than are allowed; names an instance, and where it waits.
            Whatever a program raises, with a note that names its instance; the other programs are ended.
        """
        with self._rounds(instances):
            yield self._plan_last()

    def record(self, instances: list[Any]) -> Graph:
        """Run all rounds, and give the graph of all, in which the numbers that programs waited for are held."""
        with self._rounds(instances):
            return self._phases.whole(with_awaited=True)

    @contextmanager
    def _rounds(self, instances: list[Any]) -> Iterator[None]:
        """Within the context, all programs have ended."""
        with record_in_phases(self._recorder, instances) as self._phases:
            phases, dtype = self._phases, self._choices.dtype
            self._kept = KeptValues(phases.graph, phases.table_of, dtype, self._training)
            try:
                while self._advance():
                    pass
                yield
            finally:
                self._kept.close()

    def backward(self, grads: dict[str, Gradient], kept: dict[int, Any]) -> dict[str, Gradient]:
        """Differentiate the rounds, after the last step.

        Args:
            grads: of the parameters; added to.
            kept: the gradients of the tables of kept values that the last step has found, from `kept_gradients`.
        """
        if not self._kept.training:
            return grads
        self._kept.add_gradients(kept)
        for number in range(len(self._steps) - 1, -1, -1):
            step, run = self._steps[number]
            if run is not None:
                for rows in kept.values():
                    rows.clear()
                grads = self._executor.backward(step, run, self._kept.seeds(number), grads, kept)
                step.counts[:] = [run.counts()]
                self._kept.add_gradients(kept)
        return grads

    def kept_gradients(self) -> dict[int, Any]:
        """Empty gradients of the tables of kept values, by the `id` of the table."""
        return self._kept.gradients() if self._kept.training else {}

    def joined(self, last: Step) -> Step:
        """All rounds and the last step as one step."""
        return join_steps([*(step for step, _ in self._steps), last], self._waited, self._n_sources)

    def _advance(self) -> bool:
        """Let all programs go on, and run the round that they wait for; False if all have ended."""
        phases, kept = self._phases, self._kept
        wanted = phases.advance()
        self._clock.lap("record")
        if self._training or self._waiting.on_error == "raise":
            self._raise_first()
        if phases.is_over:
            return False
        waited = tuple(phases.waiting)
        if self._waiting.max_rounds is not None and len(self._steps) == self._waiting.max_rounds:
            raise GraphError(
                f"instance {waited[0]} of {len(phases.programs)} still waits after max_rounds={len(self._steps)} "
                f"rounds, {phases.programs[waited[0]].where()}; allow more, or end the program earlier."
            )
        with phases.graph.holding(wanted):
            self._round(wanted, waited)
            numbers = kept.read(wanted, phases.int_slots)
        phases.answer(numbers)
        return True

    def _round(self, wanted: IntArray, waited: tuple[int, ...]) -> None:
        """Run the nodes that wanted values depend on, if there are any."""
        phases, kept = self._phases, self._kept
        kept.clear()
        graph, types = phases.graph, self._recorder.types
        chosen = graph.choose(wanted, phases.kinds, kept.next_run, types)
        if not chosen.nodes.size:
            return
        phases.sources_known(chosen.sources)
        kept.settle(chosen.sources)
        emitted = graph.emit(chosen, phases.kinds, types)
        self._n_sources += chosen.sources.size
        seeded = frozenset(chosen.kept.slots.tolist()) if kept.training else None
        step = self._planning.prepare(MiniBatch([], emitted, seeded=seeded), self._choices, self._clock)
        self._waited.append(waited)
        run = self._start(step, chosen.kept.values, is_open=self._fits(step))
        self._steps.append((step, run))

    def _fits(self, step: Step) -> bool:
        """Whether the run of a step may stay open beside those that are; if not, none does from now on."""
        limit, used = self._choices.max_bytes, sum(s.planned_bytes for s, run in self._steps if run is not None)
        fits = len(step.parts) == 1 and (limit is None or used + step.planned_bytes <= limit)
        if self._kept.training and not fits:
            self._choices = replace(self._choices, purpose=None)
            self._kept.training = False
            self._steps = [(s, None) for s, _ in self._steps]
        return fits

    def _start(self, step: Step, values: IntArray, is_open: bool) -> Run | None:
        """Run a round; give its run in training, if it stays open."""
        copies: list[list[Any]] = []
        slots = range(len(step.cells.slot_shapes))
        for part, instances in self._executor.parts(step):
            run = self._executor.start(step, part, instances, self._draw, self._timer, copies=False)
            step.counts.append(run.counts())
            if is_open:
                self._kept.add(Done(run.on_device, values, run.close), run.store)
                return run if self._kept.training else None
            store = run.store
            copies.append([store.xp.array(run.on_device(slot)) for slot in slots])
            run.close()
        columns = [store.xp.concatenate(parts) for parts in zip(*copies, strict=True)]
        self._kept.add(Done(columns.__getitem__, values, lambda: None), store)
        return None

    def _plan_last(self) -> Step:
        """Plan the step that computes the results."""
        phases, kept = self._phases, self._kept
        results, structures = phases.results()
        if self._training and not kept.training:
            return self._plan_whole()
        types = self._recorder.types
        chosen = phases.graph.choose(results.values, phases.kinds, NOWHERE, types)
        phases.sources_known(chosen.sources)
        kept.settle(chosen.sources)
        self._n_sources += chosen.sources.size
        graph = phases.graph.emit(chosen, phases.kinds, types, results, structures)
        step = self._planning.prepare(MiniBatch([], graph), self._choices, self._clock)
        return self._plan_whole() if self._steps and self._training and not self._fits(step) else step

    def _plan_whole(self) -> Step:
        """Plan the graph of the whole mini-batch, to be trained."""
        choices = replace(self._choices, purpose=self._purpose)
        return self._planning.prepare(MiniBatch([], self._phases.whole(with_awaited=False)), choices, self._clock)

    def _raise_first(self) -> None:
        """Raise the first error of a program."""
        for i, program in enumerate(self._phases.programs):
            if program.error is not None:
                error = self._recorder.explain(program.error)
                error.add_note(f"raised by instance {i} of the mini-batch, after {len(self._steps)} rounds")
                raise error
