"""Record, plan and run the mini-batches of one function, forward and backward.

    instances ─read─▶ MiniBatch ─plan─▶ Step ─run─▶ runs ─▶ value, gradients, aux, gradients of inputs

A plan is found in the cache or made (`autobatch.engine.planning`). A run computes forward and, in training, backward
and the gradients of parameters. The results of a call are computed from its runs (`autobatch.engine.results`).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from autobatch.arrays import LongArray
from autobatch.backends.base import RowMoves, RowReader, Run, Timer
from autobatch.backends.options import Options
from autobatch.devices.store import HOST, Store
from autobatch.engine.counts import Clock, LastCall, Step
from autobatch.engine.results import (
    Differentiation,
    Exchange,
    GradientSum,
    InputGradients,
    LateGradientSum,
    LateLosses,
    UnreadLoss,
    add_gradients,
    join_columns,
    loss_weights,
    put_gradients,
    take_gradients,
)
from autobatch.engine.runner import Runner
from autobatch.engine.settings import Settings
from autobatch.graph.graph import Graph
from autobatch.graph.queued import QueuedBatch
from autobatch.ir.precision import check_precision
from autobatch.ops.randomness import Randomness
from autobatch.params.gradients import GradientBuffers, Gradients
from autobatch.params.known import NO_PARAMETERS, ParameterState
from autobatch.params.sparse_rows import Gradient, Rows
from autobatch.plan.budget import Part
from autobatch.system.background import n_waiting
from autobatch.system.locks import run_lock
from autobatch.system.unchecked import is_unchecked
from autobatch.trace.record import MiniBatch
from autobatch.trace.results import stack_results

if TYPE_CHECKING:
    from autobatch.engine.each_instance import EachInstance
    from autobatch.engine.rounds import Rounds


Array = NDArray[Any]


class GradientRequest(NamedTuple):
    """The arguments of a call of `value_and_grad`.

    Attributes:
        reduce, has_aux, out, inputs: the arguments of the call, with `reduce` "sum" in place of "none".
        each: the request for per-instance gradients or clipping; None if only the sum of the losses is differentiated.
    """

    reduce: str | Sequence[float] | Array
    has_aux: bool
    out: dict[str, Gradient] | None
    inputs: bool
    each: EachInstance | None


class Profiler(Timer, Protocol):
    """A recorder of the times of calls; see `autobatch.inspect.profiling.Profile`."""

    def begin(self) -> None:
        """Drop the batches of a call that did not finish."""

    def add(self, step: Step, itemsize: int, precision: str = "float32") -> None:
        """Add a call that has just ended; its numbers have `itemsize` bytes."""


class Call:
    """A call with a mini-batch: a context manager that plans the mini-batch and returns the step to run.

    Async programs run all their rounds first; the step is then the last one. An internal error, here or within the
    context, gets a note that says how to report it.

    Args:
        session: the session of the function.
        minibatch: the mini-batch as read. When async programs are trained, entering replaces it by their recording.
        clock: started before the mini-batch was read.
        training: whether the mini-batch is differentiated.
        has_aux: whether the function returns `(loss, aux)`; None for PyTorch, whose functions return any tensors.
        measured: whether the call may take part in a trial of numbers of threads; its time then counts, unless code
            is being compiled.
        each: the request for per-instance gradients or clipping, or None.
        reports: whether the plans of all rounds are kept, for a report.

    Attributes:
        step: the step to run, set on entry.
        rounds: the rounds of async programs, set on entry; None for other functions.
    """

    step: Step

    def __init__(
        self,
        session: Session,
        minibatch: MiniBatch,
        clock: Clock,
        training: bool,
        has_aux: bool | None = False,
        measured: bool = True,
        each: EachInstance | None = None,
        reports: bool = False,
    ) -> None:
        self._session, self.minibatch, self.clock, self.reports = session, minibatch, clock, reports
        self.training, self.has_aux, self.measured, self.each = training, has_aux, measured, each
        self.rounds: Rounds | None = None
        self._running: AbstractContextManager[Step] | None = None

    def __enter__(self) -> Step:
        session = self._session
        if session._profile is not None:
            session._profile.begin()
        try:
            if self.minibatch.has_programs:
                self.rounds = session._rounds(self.clock, self.reports)
                if self.training:
                    whole = self.rounds.record(self.minibatch)
                    self.minibatch = MiniBatch(self.minibatch.instances, whole, self.minibatch.inputs)
                    self.measured = False  # the clock includes the rounds
                else:
                    self._running = self.rounds.run(self.minibatch)
            self.step = session.plan(self) if self._running is None else self._running.__enter__()
        except Exception as error:
            self._note(error)
            raise
        return self.step

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            if self._running is not None:
                self._running.__exit__(kind, error, traceback)
        finally:
            if isinstance(error, Exception):
                self._note(error)

    def joined(self) -> Step:
        """Return the rounds and the last step as one step."""
        return self.step if self.rounds is None else self.rounds.so_far.joined(self.step)

    def _note(self, error: Exception) -> None:
        """Add a note to an internal error that says how to report it."""
        from autobatch.engine.defects import note_defect

        is_own = is_unchecked(self._session.policy) and is_unchecked(self._session.planner)
        note_defect(error, is_own, self.training, bool(self.has_aux))


class _Trial:
    """The differentiation for `explain` and `profile`, which drop the gradients; see `Differentiation`."""

    def add(self, runner: Runner, step: Step, part: Part, instances: slice, run: Run) -> None:
        runner.backward(step, run, {step.loss_slot: np.ones(part.graph.n_instances, runner.parameters.dtype)}, None)

    def finish(self, exchange: Exchange | None, clock: Clock) -> tuple[Any, dict[str, Gradient]]:
        return None, {}


class _OfThread(threading.local):
    """The gradient buffers of each thread: gradients stay valid until the next step of the same thread."""

    def __init__(self) -> None:
        self.gradients = GradientBuffers()


class Session(Settings):
    """The session of one function: records, plans and runs its mini-batches. Takes the arguments of `Settings`.

    Attributes:
        last: the counts and times of the last call, and of each round of an async function; None before the first.
        parameters: the parameters of the module at the last call of `options_now`.
    """

    def __init__(self, *made: Any) -> None:
        super().__init__(*made)
        self.last: LastCall | None = None
        self.parameters: ParameterState = NO_PARAMETERS
        self._of_thread = _OfThread()
        self._profile: Profiler | None = None
        self._unread: UnreadLoss | None = None
        self._facts: tuple[Any, ...] = ()
        self._now: Options

    # Reading and planning.

    _make_call: type[Call] = Call

    def _call(
        self,
        instances: Iterable[Any],
        training: bool,
        has_aux: bool = False,
        measured: bool = True,
        each: EachInstance | None = None,
        inputs: bool = False,
        keys: LongArray | None = None,
        reports: bool = False,
    ) -> Call:
        """Begin a call: record its mini-batch unless that is done. Does not block runs of other threads.

        Args:
            inputs, keys: see `Recorder.read`; for the others, see `Call`.
        """
        clock = Clock(profiled=self._profile is not None)
        minibatch = self.recorder.read(instances, inputs, keys)
        return self._make_call(self, minibatch, clock, training, has_aux, measured, each, reports)

    def refresh_parameters(self) -> ParameterState:
        """Look up the current parameters of the module, and return them."""
        self.parameters = self.recorder.parameter_state()
        return self.parameters

    def options_now(self, training: bool, has_aux: bool | None) -> Options:
        """Return the options with the facts of a call: the type and device of parameters, and the purpose.

        The last result is reused while these facts stay the same. Sets `parameters`.
        """
        now = self.parameters = self.recorder.refresh()
        purpose = now.names if training else None
        facts = self.options, self.planning.backend, now.dtype, now.store, purpose, has_aux
        if self._facts != facts:
            given, backend, dtype, store, purpose, _ = facts
            check_precision(given.precision, dtype, backend.name)
            self._now = given._replace(dtype=dtype, store=store, purpose=purpose, has_aux=has_aux)
            self._facts = facts
        # Limited in each call, because the limit depends on what other threads run now.
        return self._now if self._now.threads == 1 else _within_limits(self._now)

    def plan(self, call: Call) -> Step:
        """Merge, rewrite, schedule and place, in parts if the whole does not fit; or find the plan in the cache."""
        minibatch, each = call.minibatch, call.each
        if minibatch.graph is not None:
            call.clock.mark("record")  # includes waiting for other threads
        options = self.options_now(call.training, call.has_aux)
        if each is not None:
            options = each.planned(options, self.parameters.trainable, len(minibatch.instances))
        if self._thread_choice is None:
            step = self.planning.prepare(minibatch, options, call.clock)
            if type(minibatch.instances) is QueuedBatch:
                self.planning.plan_following(minibatch.instances, options, step)
            return step
        size_class = self._thread_choice.of(minibatch, call.training)
        measured = call.measured and not n_waiting()
        n = size_class.next() if measured else size_class.threads
        step = self.planning.prepare(minibatch, _within_limits(options._replace(threads=n)), call.clock)
        if measured:
            step.on_end = lambda seconds: size_class.add(n, seconds)
        return step

    def _rounds(self, clock: Clock, reports: bool = False) -> Rounds:
        """Build the rounds of a mini-batch of async programs; `reports` as in `Call`."""
        from autobatch.engine.rounds import Rounds

        options = self.options_now(training=False, has_aux=False)
        profile, keeps_plans = self._profile, reports or self._profile is not None
        return Rounds(self.recorder, self.planning, self, options, clock, profile, keeps_plans)

    def _record_rounds(self, instances: list[Any]) -> Graph:
        """Run async programs, and return the graph of all nodes that they recorded."""
        with run_lock():
            return self._rounds(Clock()).record(MiniBatch(instances, None), with_awaited=True)

    # Running.

    def run(
        self,
        step: Step,
        differentiation: Differentiation | None = None,
        draw: tuple[int, int] | None = None,
        to: Store | None = HOST,
    ) -> list[Run]:
        """Run the parts one after the other; return their runs, which are closed but whose outputs stay readable.

        Args:
            differentiation: differentiates each part; None for inference.
            draw: the seed and the number of the step, on which random numbers depend; None for those of the session.
            to: see `forward`.
        """
        draw = draw or (self.options.seed, self.step)
        found, first = list[Run](), 0
        for part in step.parts:
            instances = slice(first, first + part.graph.keys.size)
            first = instances.stop
            run = self._begin(step, part, instances, draw, self._profile)
            try:
                with run:
                    self.forward(step, run, to)
                    if differentiation is not None:
                        differentiation.add(self, step, part, instances, run)
                step.counts.append(run.counts())
            finally:
                run.close()
            found.append(run)
        return found

    def draw_of(self, step: Step) -> tuple[int, int]:
        """Return the seed and the number on which random numbers of a step depend, the same within a call."""
        return self.options.seed, self.step

    def start(
        self,
        step: Step,
        part: Part,
        instances: slice,
        draw: tuple[int, int],
        timer: Timer | None = None,
        to: Store | None = HOST,
        moves: RowMoves | None = None,
    ) -> Run:
        """Run a part forward; the caller closes the run.

        Args:
            instances: the positions of the part's instances; see `Step.divided`.
            draw: the seed and the number of the step.
            timer: called after every batch.
            to: see `forward`.
            moves: rows to copy before anything is computed.
        """
        run = self._begin(step, part, instances, draw, timer)
        try:
            if moves is not None:
                run.carry(moves)
            with run:
                self.forward(step, run, to)
        except BaseException:
            run.close()
            raise
        return run

    def _begin(self, step: Step, part: Part, instances: slice, draw: tuple[int, int], timer: Timer | None) -> Run:
        module = self.recorder.module
        random = Randomness(*draw, step.graph.keys[instances], module is None or module.training)
        run: Run = part.executable.begin(random, timer)
        return run

    def forward(self, step: Step, run: Run, to: Store | None = HOST) -> None:
        """Compute the values of a part, within the context of its run.

        Args:
            to: the memory to copy the outputs to, see `Run.forward`.
        """
        run.forward(to)
        step.clock.mark("forward")

    def backward(
        self,
        step: Step,
        run: Run,
        seeds: Mapping[int, Array],
        out: dict[str, Gradient] | None,
        reader: RowReader | None = None,
    ) -> dict[str, Gradient]:
        """Differentiate the run of a part, within its context.

        Args:
            seeds: the gradient of the rows of each slot.
            out: the gradients to add to; None for this thread's buffers, set to zero.
            reader: receives the rows whose sums are the gradients, before they are added up.

        Returns:
            The gradients by name: `out`, or the buffers, which the next step of this thread overwrites.
        """
        trainable = self.parameters.trainable
        if out is None:
            out = self._of_thread.gradients.zeros(trainable, step.cells.row_parameters)
        else:
            # A parameter whose gradient was `Rows` in an earlier call may now be read in other ways than by lookup.
            for name, parameter in trainable.items():
                if isinstance(out[name], Rows) and id(parameter) not in step.cells.row_parameters:
                    out[name] = parameter.store.put(np.asarray(out[name]))
        into = dict(zip(map(id, trainable.values()), map(out.__getitem__, trainable), strict=True))
        if reader is None:
            run.backward(seeds, into)
        else:
            run.backward(seeds, into, reader)
        step.clock.mark("backward")
        return out

    def read_rows(self, step: Step, run: Run, seeds: Mapping[int, Array], reader: RowReader) -> None:
        """Differentiate the run of a part up to the rows whose sums are the gradients of parameters, for a reader."""
        run.backward(seeds, {}, reader)
        step.clock.mark("backward")

    def zeros(self, rows: Collection[str]) -> Gradients:
        """Return zero gradients for a mini-batch without instances, in the buffers of this thread.

        Args:
            rows: the names of the gradients that are `Rows`.
        """
        trainable = self.parameters.trainable
        return self._of_thread.gradients.zeros(trainable, frozenset(id(trainable[name]) for name in rows))

    # Results.

    def differentiate(
        self,
        instances: Iterable[Any],
        request: GradientRequest,
        exchange: Exchange | None = None,
        keys: LongArray | None = None,
    ) -> Any:
        """Compute the loss and the gradients of this process's share of a mini-batch; see `value_and_grad`.

        Args:
            exchange: adds up those of all processes; None for a single process.
            keys: see `Recorder.read`.
        """
        reduce, has_aux, out, inputs, each = request
        call = self._call(instances, True, has_aux, each is None, each, inputs, keys)
        with run_lock(), call as step:
            weights = loss_weights(reduce, step.graph.keys.size, self.parameters.dtype)
            late = None if self.parameters.store is HOST else self._late_losses(request, exchange)
            given = call.minibatch.inputs
            read = None if given is None else InputGradients(given, self.parameters.dtype)
            own: dict[str, Gradient] | None = None
            taken: dict[str, Gradient] | None = None
            if out is not None:
                # Copied, because a loss of a later part may be refused, which must leave `out` unchanged; optimizers
                # ignore `out` after late losses. In a group, only the sums over all processes are added to it.
                apart = exchange is not None or (len(step.parts) > 1 and late is None)
                taken = take_gradients(out, self.parameters.trainable, apart)
                own = taken if exchange is None else None
            wanted: Differentiation
            if each is not None:
                each.begin(self, step, weights, own, read)
                wanted = each
            elif late is not None:
                wanted = LateGradientSum(step.loss_slot, weights, own, late)
            else:
                wanted = GradientSum(step.loss_slot, weights, own, read)
            runs = self.run(step, wanted)
            if exchange is not None and self._unread is not None:
                self._unread.check()  # before the exchange, so that all processes raise in the same call
            value, grads = wanted.finish(exchange, call.clock)
            if out is not None:
                assert taken is not None, "they were taken above"
                grads = put_gradients(out, grads if exchange is None else add_gradients(taken, grads))
            self.step += 1
            self._finish(call)
            before, self._unread = self._unread, wanted.unread if isinstance(wanted, LateGradientSum) else None
        # The losses of the previous step. The host waits for them with this step already submitted, so the device has
        # work meanwhile, and the host is never more than one step ahead.
        if before is not None:
            before.check()
        if has_aux:
            columns = self._typed(join_columns([run.outputs for run in runs]))
            value = value, stack_results([s.children[1] for s in step.graph.structures], columns)
        return (value, grads) if read is None else (value, grads, read.structures())

    def _late_losses(self, request: GradientRequest, exchange: Exchange | None) -> LateLosses | None:
        """Return the asynchronous checks of losses on the device; None if the call waits for the device."""
        _, has_aux, out, inputs, each = request
        is_timed = self._profile is not None or self._thread_choice is not None
        if has_aux or inputs or each is not None or is_timed:
            return None
        if out is not None and (exchange is not None or not isinstance(out, Gradients)):
            return None
        return LateLosses(self.parameters.store, exchange is not None)

    def differentiate_nothing(self, request: GradientRequest, exchange: Exchange) -> Any:
        """Return the loss and the gradients of a mini-batch if this process has no instances; see `differentiate`."""
        _, has_aux, out, inputs, each = request
        clock = Clock()
        with run_lock():
            self.options_now(True, has_aux)
            dtype, trainable = self.parameters.dtype, self.parameters.trainable
            taken = None if out is None else take_gradients(out, trainable, apart=True)
            if each is None:
                value, grads = exchange.add_nothing(dtype, [*trainable], self.zeros, clock)
            else:
                value, grads = each.of_nothing(self, exchange, clock)
            if out is not None and taken is not None:
                grads = put_gradients(out, add_gradients(taken, grads))
            self.step += 1
            self.last = LastCall((), [], clock.ms, None, self.planning.cache.hit_rate)
        found = ((value, np.zeros(0, dtype)) if has_aux else value), grads
        return (*found, []) if inputs else found

    def _typed(self, columns: list[Any]) -> list[Any]:
        """Convert the rows of each slot to the type that the function returned."""
        return self.recorder.slots.typed(columns)

    def _try_out(self, step: Step, training: bool) -> None:
        """Run all parts forward, in training also backward, and drop the results."""
        self.run(step, _Trial() if training else None)

    def _finish(self, call: Call) -> None:
        """Store the counts and times of a call in `last`, and add them to the profile."""
        step = call.step if call.rounds is None else call.joined()
        self.last = step.finish()
        if self._profile is not None:
            self._profile.add(step, self.parameters.dtype.itemsize, self.precision)

    def _watch(self, profile: Profiler | None) -> Profiler | None:
        """Add later calls to this profile, or to none; return the previous profile."""
        with run_lock():
            before, self._profile = self._profile, profile
        return before


def _within_limits(options: Options) -> Options:
    """Return the options with the threads limited to the cores that are usable now."""
    from autobatch.blas.threads import most_threads

    return options._replace(threads=min(options.threads, most_threads()))
