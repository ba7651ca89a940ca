"""Run a mini-batch of async programs in rounds; each round computes the values that programs wait for.

    programs run until all wait or have ended -> choose the awaited nodes -> plan -> run -> answer -> ...

Nodes that no program waits for are deferred to one last step, which computes the results. In training, the rounds find
the awaited numbers only. The graph of all nodes that the losses depend on is then trained as a whole, with these
numbers as constants: see `docs/decisions/training-runs-the-whole.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from autobatch.arrays import IntArray
from autobatch.backends.base import Timer
from autobatch.backends.options import Options
from autobatch.engine.counts import Clock, RoundsSoFar, Step
from autobatch.engine.kept_values import KeptValues, run_and_keep
from autobatch.engine.planning import Planning
from autobatch.engine.runner import Runner
from autobatch.errors import GraphError
from autobatch.graph.graph import Graph
from autobatch.graph.growing import NOWHERE, Chosen, Request
from autobatch.trace.phases import Phases, record_in_phases
from autobatch.trace.record import MiniBatch, Recorder, note_instance


class Rounds:
    """The rounds of one mini-batch.

    Args:
        options: the options of the call, for inference.
        timer: called after every batch.
        keeps_plans: whether to keep the plans of all rounds, for a profile or a report.

    Attributes:
        so_far: the counts of the rounds that have run.
    """

    def __init__(
        self,
        recorder: Recorder,
        planning: Planning,
        runner: Runner,
        options: Options,
        clock: Clock,
        timer: Timer | None,
        keeps_plans: bool,
    ) -> None:
        self._recorder, self._planning, self._runner, self._options = recorder, planning, runner, options
        self._clock, self._timer = clock, timer
        self.so_far = RoundsSoFar(keeps_plans)
        self._n_idle = 0  # the rounds since the last step, whose awaited values were all known already
        self._phases: Phases
        self._kept: KeptValues

    @contextmanager
    def run(self, minibatch: MiniBatch) -> Iterator[Step]:
        """Run all rounds, and yield the last step, which computes the results, ready to run within the context.

        Raises:
            GraphError: the rounds exceed `max_rounds`; names an instance, and where it waits. If errors are returned,
                the error becomes the result of each waiting instance instead.
            Exception: any error of a program, with a note that names its instance; the other programs are ended.
        """
        with self._all(minibatch, raises=self._options.on_error == "raise"):
            yield self._plan_last()

    def record(self, minibatch: MiniBatch, with_awaited: bool = False) -> Graph:
        """Run all rounds, and return the graph of all nodes that the results depend on.

        Args:
            with_awaited: whether to include the nodes that only awaited numbers depend on.

        Raises:
            As for `run`.
        """
        with self._all(minibatch, raises=True):
            return self._phases.whole(with_awaited)

    @contextmanager
    def _all(self, minibatch: MiniBatch, raises: bool) -> Iterator[None]:
        """Run all rounds; yield after all programs have ended. With `raises`, raise the first error of a program."""
        with record_in_phases(self._recorder, minibatch.instances, minibatch.inputs, minibatch.keys) as phases:
            self._phases, self._kept = phases, KeptValues(phases.graph, phases.table_of, self._options.dtype)
            try:
                while self._advance(raises):
                    pass
                yield
            finally:
                self._kept.close()

    def _advance(self, raises: bool) -> bool:
        """Advance all programs, and run the round that they wait for; return False if all have ended."""
        phases = self._phases
        wanted = phases.advance()
        self._clock.mark("record")
        if raises:
            self._raise_first()
        if phases.is_over:
            return False
        most = self._options.max_rounds
        if len(self.so_far.per_round) == most:
            self._give_up(raises)
            return False
        # Held, so that the round does not reuse the rows of awaited values that earlier rounds have computed.
        phases.graph.hold(wanted, 1)
        try:
            self._round(wanted)
            # A program may await a known value forever. No round runs then, so the check above is not enough.
            if most is not None and self._n_idle > most:
                self._give_up(raises)
                return False
            numbers = self._kept.read(wanted, phases.int_slots)
        finally:
            phases.graph.hold(wanted, -1)
        phases.answer(numbers)
        return True

    def _give_up(self, raises: bool) -> None:
        """End the programs that still wait; with `raises`, raise the error of the first."""
        if raises:
            raise self._too_long(self._phases.waiting[0])
        self._phases.give_up(self._too_long)

    def _too_long(self, instance: int) -> GraphError:
        """Build the error of an instance that is still waiting after the last round."""
        programs, most = self._phases.programs, self._options.max_rounds
        idle = "" if len(self.so_far.per_round) == most else " in a row that had nothing to compute"
        return GraphError(
            f"instance {instance} of {len(programs)} is still waiting after max_rounds={most} rounds{idle}, "
            f"{programs[instance].where()}; allow more, or end the program earlier."
        )

    def _round(self, wanted: IntArray) -> None:
        """Run the nodes that the wanted values still depend on, if there are any."""
        phases, kept = self._phases, self._kept
        chosen, step = self._prepare(Request(wanted, phases.output_slots, kept.next_run))
        if step is None:
            self._n_idle += 1
            return
        self._n_idle = 0
        run_and_keep(self._runner, kept, step, chosen.kept.values, self._runner.draw_of(step), self._timer)
        self.so_far.add(step, tuple(phases.waiting))

    def _plan_last(self) -> Step:
        results, structures = self._phases.results()
        _, step = self._prepare(Request(results.values, self._phases.output_slots, NOWHERE, results, structures))
        # The last step is run by `Session.run`, which carries no moves.
        self._kept.finish()
        assert step is not None
        return step

    def _prepare(self, request: Request) -> tuple[Chosen, Step | None]:
        chosen, step = self._planning.prepare_round(self._phases, self._kept, request, self._options, self._clock)
        self.so_far.n_sources += chosen.sources.size
        return chosen, step

    def _raise_first(self) -> None:
        """Raise the error of the first program that has one, with a note that names its instance."""
        for i, program in enumerate(self._phases.programs):
            if program.error is not None:
                error = self._recorder.explain(program.error)
                n = len(self.so_far.per_round)
                note_instance(error, i, f", after {n} round{'s' * (n != 1)}")
                raise error
