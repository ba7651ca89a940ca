"""Record, plan and run the mini-batches of one function: what a `Batched` is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from autobatch.arguments import show
from autobatch.arrays import LongArray
from autobatch.backends.base import Backend, Run, Timer
from autobatch.backends.options import Options
from autobatch.devices.late import Late
from autobatch.devices.store import HOST
from autobatch.engine.counts import Clock, LastCall, Step
from autobatch.engine.execution import Differentiation, Executor, OfSum, join_columns
from autobatch.engine.group import Exchange
from autobatch.engine.input_gradients import InputGradients
from autobatch.engine.losses import (
    LateLosses,
    UnreadLoss,
    add_gradients,
    loss_weights,
    put_gradients,
    take_gradients,
    weighted_sum,
)  # fmt: skip
from autobatch.engine.planning import Planning
from autobatch.errors import BackendError
from autobatch.graph.graph import Graph
from autobatch.ir.precision import check_precision
from autobatch.params.gradients import Gradients
from autobatch.params.module import Module
from autobatch.params.sparse_rows import Gradient
from autobatch.plan.budget import Part
from autobatch.plan.plan import Planner
from autobatch.schedule.schedule import Policy, adapt
from autobatch.system.background import n_waiting
from autobatch.system.trust import is_trusted
from autobatch.system.turns import run_lock
from autobatch.trace.record import MiniBatch, Recorder
from autobatch.trace.results import stack_results
from autobatch.trace.scanning import functions_in

if TYPE_CHECKING:
    from autobatch.engine.each_instance import EachInstance
    from autobatch.engine.rounds import Rounds
    from autobatch.engine.threads import ThreadChoice


Array = NDArray[Any]


class GradientOptions(NamedTuple):
    """The options of a call of `value_and_grad`.

    Attributes:
        reduce, has_aux, out, inputs: the arguments of the call; "sum" stands for "none" in `reduce`.
        each: the request for gradients or norms of each instance; None if only the sum of the losses is differentiated.
    """

    reduce: str | Sequence[float] | Array
    has_aux: bool
    out: dict[str, Gradient] | None
    inputs: bool
    each: EachInstance | None


class Profiler(Timer, Protocol):
    """Takes the times of calls; see `autobatch.inspect.profiling.Profile`."""

    def begin(self) -> None:
        """Drop the batches of a call that did not finish."""

    def add(self, step: Step, itemsize: int, precision: str = "float32") -> None:
        """Add a call that has just ended, whose numbers have `itemsize` bytes."""


def _option(name: str) -> Any:
    """A field of `Engine.options` as an attribute; assigning it replaces the record."""

    def assign(engine: Engine, value: Any) -> None:
        engine.options = engine.options._replace(**{name: value})

    return property(lambda engine: getattr(engine.options, name), assign)


def _within_limits(options: Options) -> Options:
    """The options with no more threads than there are cores to use now."""
    from autobatch.blas.threads import most_threads

    return options._replace(threads=min(options.threads, most_threads()))


class Call:
    """A call with a mini-batch. Used as a context manager, it plans the mini-batch and returns the step to run.

    Async programs run all their rounds first; the step is then the last one. An internal error, here or within the
    context, gets a note that says how to report it.

    Args:
        engine: of the function.
        minibatch: as read. When async programs are trained, entering replaces it by what they recorded.
        clock: started before the mini-batch was read.
        training: whether the mini-batch is differentiated.
        has_aux: whether the function returns `(loss, aux)`; None for PyTorch, whose functions return any tensors.
        measured: whether it may try a number of threads that is being measured; its time then counts, unless code is
            being compiled.
        each: the request for per-instance gradients or norms, or None.

    Attributes:
        step: the step to run, and rounds: the rounds of async programs; both set on entry.
    """

    step: Step

    def __init__(
        self,
        engine: Engine,
        minibatch: MiniBatch,
        clock: Clock,
        training: bool,
        has_aux: bool | None = False,
        measured: bool = True,
        each: EachInstance | None = None,
    ) -> None:
        self._engine, self.minibatch, self.clock = engine, minibatch, clock
        self.training, self.has_aux, self.measured, self.each = training, has_aux, measured, each
        self.rounds: Rounds | None = None
        self._running: AbstractContextManager[Step] | None = None

    def __enter__(self) -> Step:
        engine = self._engine
        if engine._profile is not None:
            engine._profile.begin()
        try:
            if self.minibatch.has_programs:
                self.rounds = engine._rounds(self.clock)
                if self.training:
                    whole = self.rounds.record(self.minibatch)
                    self.minibatch = MiniBatch(self.minibatch.instances, whole, self.minibatch.inputs)
                    self.measured = False  # the clock has run for rounds too
                else:
                    self._running = self.rounds.run(self.minibatch)
            self.step = engine._prepare(self) if self._running is None else self._running.__enter__()
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
        return self.step if self.rounds is None else self.rounds.joined(self.step)

    def _note(self, error: Exception) -> None:
        """Note on an error how to report it, if it is one of autobatch."""
        from autobatch.engine.defects import note_defect

        is_own = is_trusted(self._engine.policy) and is_trusted(self._engine.planner)
        note_defect(error, is_own, self.training, bool(self.has_aux))


class _Trial:
    """Runs backward for `explain` and `profile`, which drop the gradients; see `Differentiation`."""

    def add(self, executor: Executor, step: Step, part: Part, instances: slice, run: Run) -> None:
        """See `Differentiation`."""
        executor.backward(step, run, {step.loss_slot: np.ones(part.graph.n_instances, executor.dtype)}, None)

    def gradients(self) -> dict[str, Gradient]:
        """See `Differentiation`."""
        return {}


class Engine:
    """Records, plans and runs the mini-batches of one function.

    A deep copy, or one through pickle, runs a copy of the model and has recorded nothing.

    Args:
        threads: the number of threads of a mini-batch, or "auto".
        plan_cache: how many plans to keep.

    Attributes:
        last: counts and times of the last call, and of each round of an async function; None before the first.
        step: counts the calls of value_and_grad; random numbers depend on it and on the seed.
        options: how mini-batches are planned and run; `rewrites`, `seed`, `max_bytes` and `precision` are fields of it,
            and may be assigned.
        recorder: records instances, and knows the types of their nodes.
        planning: plans mini-batches.
    """

    rewrites: tuple[str, ...] = _option("rewrites")
    seed: int = _option("seed")
    max_bytes: int | None = _option("max_bytes")
    precision: str = _option("precision")

    def __init__(
        self,
        function: Callable[[Any], Any],
        module: Module | None,
        planner: Planner,
        backend: Backend,
        options: Options,
        threads: int | str,
        plan_cache: int,
    ) -> None:
        self.options, self.step = options, 0
        self.last: LastCall | None = None
        self.recorder = Recorder(function, module)
        self.planning = Planning(self.recorder, planner, backend, plan_cache)
        self.threads = threads
        self._profile: Profiler | None = None
        self.executor = Executor(self.recorder)
        self._unread: UnreadLoss | None = None
        self._facts: tuple[Any, ...] = ()
        self._now: Options

    def __repr__(self) -> str:
        function = self.recorder.function
        runs: list[Any] = [*functions_in(function), type(function)]
        return (
            f"{type(self).__name__}({runs[0].__qualname__}, policy={self.policy.name!r}, backend={self.backend.name!r})"
        )

    def __copy__(self) -> Self:
        """Another one that has all in common with this one but what is assigned to either afterwards."""
        twin = object.__new__(type(self))
        vars(twin).update(vars(self))
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """What deep copies and pickles take along: how it was made, and the step; what was recorded stays behind."""
        made = self.recorder.function, self.recorder.module, self.planner, self.backend, self.options, self.threads
        return {"made": (*made, self.planning.cache.size), "step": self.step}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state["made"])  # type: ignore[misc]
        self.step = state["step"]

    def of_programs(self, wrap: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> Self:
        """Another engine, of what `wrap` makes of the function, with the same model, planner, backend and options."""
        function, *made, _ = self.__getstate__()["made"]
        twin = object.__new__(type(self))
        twin.__setstate__({"made": (wrap(function), *made, 0), "step": self.step})
        return twin

    @property
    def policy(self) -> Policy:
        """What makes schedules."""
        return self.options.policy.given

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self.options = self.options._replace(policy=adapt(policy))

    @property
    def planner(self) -> Planner:
        """What assigns memory; plans are made anew when it is assigned."""
        return self.planning.planner

    @planner.setter
    def planner(self, planner: Planner) -> None:
        self.planning = Planning(self.recorder, planner, self.backend, self.planning.cache.size)

    @property
    def backend(self) -> Backend:
        """What executes; plans are made anew when it is assigned."""
        return self.planning.backend

    @backend.setter
    def backend(self, backend: Backend) -> None:
        self.planning = Planning(self.recorder, self.planner, backend, self.planning.cache.size)

    @property
    def threads(self) -> int | str:
        """The number of threads of a mini-batch; "auto" where they are measured."""
        return self.options.threads if self._thread_choice is None else "auto"

    @threads.setter
    def threads(self, threads: int | str) -> None:
        is_number = isinstance(threads, int | np.integer) and not isinstance(threads, bool) and threads >= 1
        if not is_number and not (isinstance(threads, str) and threads == "auto"):
            raise BackendError(f"threads must be an int of at least 1 or 'auto', got {show(threads)}.")
        self._thread_choice: ThreadChoice | None = None
        if isinstance(threads, str):
            from autobatch.engine.threads import ThreadChoice

            self._thread_choice, threads = ThreadChoice(), 1
        self.options = self.options._replace(threads=int(threads))

    @property
    def settled(self) -> bool:
        """Whether no number of threads is being measured now; a new size of mini-batches may begin it again."""
        with run_lock():
            return self._thread_choice is None or self._thread_choice.is_settled

    def _call(
        self,
        instances: Iterable[Any],
        training: bool,
        has_aux: bool = False,
        measured: bool = True,
        each: EachInstance | None = None,
        inputs: bool = False,
        keys: LongArray | None = None,
    ) -> Call:
        """Begin a call: record its mini-batch unless it was recorded before. Other threads may run meanwhile.

        Args:
            inputs, keys: see `Recorder.read`; the others are those of `Call`.
        """
        clock = Clock(profiled=self._profile is not None)
        return Call(self, self.recorder.read(instances, inputs, keys), clock, training, has_aux, measured, each)

    def options_now(self, training: bool, has_aux: bool | None) -> Options:
        """The options with the facts of a call: the parameters' type and device, and what they are run for."""
        executor = self.executor
        executor.refresh()
        self.recorder.refresh(executor.dtype)
        purpose = executor.names if training else None
        facts = self.options, self.planning.backend, executor.dtype, executor.store, purpose, has_aux
        if self._facts != facts:
            given, backend, dtype, store, purpose, _ = facts
            check_precision(given.precision, dtype, backend.name)
            self._now = given._replace(dtype=dtype, store=store, purpose=purpose, has_aux=has_aux)
            self._facts = facts
        return self._now if self._now.threads == 1 else _within_limits(self._now)

    def _prepare(self, call: Call) -> Step:
        """Merge, rewrite, schedule and place, in parts if the whole does not fit; or find the plan."""
        minibatch, each = call.minibatch, call.each
        if minibatch.graph is not None:
            call.clock.lap("record")  # and waiting for other threads
        options = self.options_now(call.training, call.has_aux)
        if each is not None:
            options = each.planned(options, self.executor.trainable, len(minibatch.instances))
        if self._thread_choice is None:
            return self.planning.prepare(minibatch, options, call.clock)
        size_class = self._thread_choice.of(minibatch, call.training)
        measured = call.measured and not n_waiting()
        n = size_class.next() if measured else size_class.threads
        step = self.planning.prepare(minibatch, _within_limits(options._replace(threads=n)), call.clock)
        if measured:
            step.on_end = lambda seconds: size_class.add(n, seconds)
        return step

    def _rounds(self, clock: Clock) -> Rounds:
        """What runs the rounds of a mini-batch."""
        from autobatch.engine.rounds import Rounds

        options = self.options_now(training=False, has_aux=False)
        return Rounds(self.recorder, self.planning, self.executor, options, clock, self.step, self._profile)

    def _record_rounds(self, instances: list[Any]) -> Graph:
        """Run async programs, and give the graph of all that they recorded."""
        with run_lock():
            return self._rounds(Clock()).record(MiniBatch(instances, None), with_awaited=True)

    def differentiate(
        self,
        instances: Iterable[Any],
        options: GradientOptions,
        exchange: Exchange | None = None,
        keys: LongArray | None = None,
    ) -> Any:
        """Compute the loss and the gradients of what this process has of a mini-batch; see `value_and_grad`.

        Args:
            exchange: adds up those of all processes; None for one process.
            keys: see `Recorder.read`.
        """
        reduce, has_aux, out, inputs, each = options
        call = self._call(instances, True, has_aux, each is None, each, inputs, keys)
        with run_lock(), call as step:
            slot = step.loss_slot
            weights = loss_weights(reduce, step.graph.keys.size)
            executor, late = self.executor, None
            if executor.store is not HOST and not (has_aux or inputs) and each is None:
                is_timed = self._profile is not None or self._thread_choice is not None
                if not is_timed and (out is None or (exchange is None and isinstance(out, Gradients))):
                    late = LateLosses(executor.store, exchange is not None)
            apart = exchange is not None or (len(step.parts) > 1 and late is None)
            taken = None if out is None else take_gradients(out, executor.trainable, apart)
            given = call.minibatch.inputs
            read = None if given is None else InputGradients(given, executor.dtype)
            own = taken if exchange is None else None
            wanted: Differentiation
            if each is None:
                wanted = OfSum(slot, weights, own, read, late)
            else:
                wanted = each.differentiation(executor, step, weights, own, read)
            runs = executor.run(step, (self.options.seed, self.step), wanted, self._profile)
            grads = wanted.gradients()
            if exchange is not None and self._unread is not None:
                self._unread.check()  # while the others wait, so that all raise in the same call
            loss: UnreadLoss | None = None
            if late is not None:
                whole = None if exchange is None else exchange.add_late(late, grads, call.clock)
                loss = UnreadLoss(runs, slot, weights, whole)
            else:
                columns = runs[0].outputs if len(runs) == 1 else join_columns([run.outputs for run in runs])
                value = weighted_sum(columns[slot], weights)
                if each is not None:
                    value, grads = each.finish(columns[slot], value, grads, exchange, call.clock)
                elif exchange is not None:
                    value = exchange.add(value, grads, call.clock)
            if exchange is not None and taken is not None:
                grads = add_gradients(taken, grads)
            grads = grads if out is None else put_gradients(out, grads)
            self.step += 1
            self._finish(call)
            before, self._unread = self._unread, loss
        if before is not None:
            before.check()
        if loss is not None:
            return Late(loss), grads
        if has_aux:
            found = value, stack_results([s.children[1] for s in step.graph.structures], self._typed(columns))
            return (found, grads) if read is None else (found, grads, read.structures())
        return (value, grads) if read is None else (value, grads, read.structures())

    def differentiate_nothing(self, options: GradientOptions, exchange: Exchange) -> Any:
        """The loss and the gradients of a mini-batch of which this process has no instance; see `differentiate`."""
        _, has_aux, out, inputs, each = options
        clock = Clock()
        with run_lock():
            self.options_now(True, has_aux)
            executor, none = self.executor, np.zeros(0, self.executor.dtype)
            trainable = executor.trainable
            taken = None if out is None else take_gradients(out, trainable, apart=True)
            if each is None:
                value, grads = exchange.add_nothing(executor.dtype, [*trainable], executor.zeros, clock)
            else:
                value, grads = each.of_nothing(executor, exchange, clock)
            if out is not None and taken is not None:
                grads = put_gradients(out, add_gradients(taken, grads))
            self.step += 1
            self.last = LastCall((), [], clock.ms, None, self.planning.cache.hit_rate)
        found = ((value, none) if has_aux else value), grads
        return (*found, []) if inputs else found

    def _typed(self, columns: list[Any]) -> list[Any]:
        """The rows of each slot as what they stand for."""
        return self.recorder.slots.typed(columns)

    def _execute(self, step: Step, training: bool) -> None:
        """Run all parts, in training backward too, and drop the results."""
        self.executor.run(step, (self.options.seed, self.step), _Trial() if training else None, self._profile)

    def _finish(self, call: Call) -> None:
        """Keep what there is to say about a call."""
        step = call.step if call.rounds is None else call.joined()
        self.last = step.finish()
        if self._profile is not None:
            self._profile.add(step, self.executor.dtype.itemsize, self.precision)

    def _watch(self, profile: Profiler | None) -> Profiler | None:
        """Take this profile from now on, or none; give the one that was taken."""
        with run_lock():
            before, self._profile = self._profile, profile
        return before
