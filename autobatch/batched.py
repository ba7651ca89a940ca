"""A function over mini-batches, made of one over a single instance; the entry point of every call.

    record -> merge -> rewrite -> schedule -> place -> execute

`autobatch.runtime.planning` has the stages before execution and keeps plans of mini-batches seen before. Where
`max_bytes` would be exceeded, `autobatch.plan.budget` cuts the mini-batch into parts that run one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import is_not
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from autobatch.devices.late import Late
from autobatch.errors import GraphError
from autobatch.graph.build import split_graph
from autobatch.graph.graph import Graph
from autobatch.graph.rewrite.passes import rewrite
from autobatch.inspect.profiling import N_CALLS, Profile
from autobatch.inspect.report import Report, make_report
from autobatch.ir.precision import check_precision
from autobatch.nn.prefetching import prefetch
from autobatch.params.module import Module
from autobatch.params.sparse_rows import Gradient
from autobatch.plan.plan import Planner
from autobatch.runtime.backend import Backend, Run
from autobatch.runtime.execution import Executor
from autobatch.runtime.input_gradients import InputGradients
from autobatch.runtime.losses import UnreadLoss, loss_slot, loss_weights, put_gradients, take_gradients, weighted_sum
from autobatch.runtime.planning import Choices, Planning
from autobatch.runtime.rounds import Rounds
from autobatch.runtime.settings import Settings
from autobatch.runtime.step import Clock, LastCall, Step
from autobatch.schedule.schedule import Policy
from autobatch.system.turns import run_lock
from autobatch.trace.record import MiniBatch, Recorder, list_instances, refuse_inside
from autobatch.trace.results import join_columns, list_results, stack_results

if TYPE_CHECKING:
    from autobatch.tuning import Tuning

Array = NDArray[Any]


class Batched:
    """A function over one instance, run on mini-batches; made by `batched`.

    Calls from several threads take turns. A deep copy, or one through pickle, runs a copy of the model and has recorded
    nothing.

    Attributes:
        last: counts and times of the last call; None before the first.
        seed, step: what random numbers depend on; `step` counts the calls of value_and_grad.
        policy, planner, backend: the policy makes schedules, the planner assigns memory, the backend executes.
        max_bytes: what a mini-batch's values may take before it is run in parts; None for no limit.
        precision: of matrix products, see `autobatch.ir.precision`.
        threads: that a mini-batch has, where they are not measured or pinned.
        waiting: how long async programs may wait, and what their errors do.
        recorder, planning: record instances, and plan mini-batches as given; not to be assigned.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        module: Module | None,
        policy: Policy,
        planner: Planner,
        backend: Backend,
        settings: Settings,
    ) -> None:
        self.policy, self.planner, self.backend, self.rewrites = policy, planner, backend, settings.rewrites
        self.seed, self.step, self.max_bytes = settings.seed, 0, settings.max_bytes
        self.precision, self._settings, self.waiting = settings.precision, settings, settings.waiting
        self._tuned_for: tuple[Any, ...] = (None,) * 4
        self.last: LastCall | None = None
        self.recorder = Recorder(function, module)
        self.planning = Planning(self.recorder, planner, settings.plan_cache)
        self._profile: Profile | None = None
        self._executor = Executor(self.recorder)
        self._unread: UnreadLoss | None = None
        self.threads = self._tune().base.threads

    def __copy__(self) -> Batched:
        """Another one that has all in common with this one but what is assigned to either afterwards."""
        twin = object.__new__(Batched)
        vars(twin).update(vars(self))
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """What deep copies and pickles take along: how it was made, and the step; what was recorded stays behind."""
        now = {name: getattr(self, name) for name in ("rewrites", "seed", "max_bytes", "precision", "waiting")}
        made = self.recorder.function, self.recorder.module, self.policy, self.planner, self.backend
        return {"made": (*made, replace(self._settings, **now)), "step": self.step}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state["made"])  # type: ignore[misc]
        self.step = state["step"]

    @property
    def decisions(self) -> dict[str, dict[str, Any]]:
        """How mini-batches run, by class, and under "*" all others: JSON can hold it, and `tune=` pins it."""
        with run_lock():
            return self._tune().decisions

    @property
    def settled(self) -> bool:
        """Whether nothing is being measured for these decisions now; a new size of mini-batches may begin it again."""
        with run_lock():
            return self._tune().settled

    def __call__(self, instances: Iterable[Any]) -> Any:
        """Compute `[function(x) for x in instances]`, stacked.

        Args:
            instances: whatever the function takes, or graphs from `record_all`.

        Returns:
            What the function returns, with arrays `(B, *shape)`; lists, and what is in them, come back per instance. An
            array of shape (0,) for no instances.

        Raises:
            PlanError: an instance needs more than `max_bytes` alone.
        """
        read = self._read(instances)
        with run_lock(), self._planned(*read, training=False) as (step, rounds):
            if not step.graph.n_instances:
                return np.zeros(0, self._executor.dtype)
            columns = join_columns([run.outputs for _, run in self._run(step)])
            self._finish(step, rounds)
        give = list_results if rounds is not None and self.waiting.on_error == "return" else stack_results
        return give(step.graph.structures, columns)

    def value_and_grad(
        self,
        instances: Iterable[Any],
        reduce: str | Sequence[float] | Array = "mean",
        has_aux: bool = False,
        out: dict[str, Gradient] | None = None,
        inputs: bool = False,
    ) -> Any:
        """Compute the loss of a mini-batch and its gradients.

        Args:
            instances: as for a call; the function returns a scalar value, or `(loss, aux)` with `has_aux`.
            reduce: "mean" or "sum" over instances, or a weight for each, shape (B,).
            out: gradients that the call adds to, as returned before, or arrays. By default the call returns buffers of
                this thread, which its next call overwrites, `explain(training=True)` too. `Rows` of a table that has
                been read in another way since are replaced by an array.
            inputs: also differentiate with respect to the float arrays of the instances, which are not recorded
                graphs; the function is given inputs in their place, see `autobatch.trace.inputs`.

        Returns:
            value, grads; or (value, aux), grads with `has_aux`. `grads` has a gradient for every trainable parameter,
            by name: an array, zero where it is not used, or `Rows` for a table that nothing but `lookup` reads.
            Where the parameters are on a device, the gradients are there too, and the call does not wait for it:
            `value` is a `Late`, a number that waits when it is read. A loss that is not finite is then known when it
            is read, or at the next call; optimizers ignore its gradients.
            With `inputs` a third element: a list of what the instances are with each float array replaced by its
            gradient, of its shape and type and zero where it is not used, and all that holds no float array by None.

        Raises:
            DataError: no instances, or `out` cannot be written, or a float array is in a set, deque or array.
            GraphError: the function did not return a scalar value, or the gradient of an input would be lost.
            ShapeError: `out` does not hold gradients of these parameters.
            NumericError: a loss is not finite; `out` is as it was, unless the call did not wait: then steps skip it.
            PlanError: an instance needs more than `max_bytes` alone.
        """
        minibatch, clock = self._read(instances, inputs)
        with run_lock(), self._planned(minibatch, clock, training=True, has_aux=has_aux) as (step, rounds):
            slot = loss_slot(step.graph, self.recorder.slots, has_aux)
            weights = loss_weights(reduce, step.graph.n_instances)
            is_simple = not has_aux and not inputs and self._profile is None and self._tuning.is_off
            late = is_simple and self._executor.can_be_late(out)
            apart = len(step.parts) > 1 and not late
            taken = None if out is None else take_gradients(out, self._executor.trainable(), apart)
            read = InputGradients(minibatch.inputs, self._executor.dtype)
            runs, grads = self._executor.train(step, self._run(step), slot, weights, taken, read, late)
            grads = put_gradients(out, grads)
            self.step += 1
            self._finish(step, rounds)
            loss = UnreadLoss(runs, slot, weights) if late else None
            before, self._unread = self._unread, loss
        if before is not None:
            before.check()
        if loss is not None:
            return Late(loss), grads
        columns = join_columns([run.outputs for run in runs])
        value = weighted_sum(columns[slot], weights)
        if has_aux:
            found = value, stack_results([s.children[1] for s in step.graph.structures], columns)
            return (found, grads, read.structures()) if inputs else (found, grads)
        return (value, grads, read.structures()) if inputs else (value, grads)

    def record_all(self, instances: Iterable[Any], progress: bool = False) -> list[Graph]:
        """Record each instance once, for use in many mini-batches.

        Of an async function all instances are run, and the graphs hold the numbers that programs awaited as they were.
        With `progress`, standard error shows how far it is.
        """
        listed: Iterable[Any] = list_instances(instances)
        if self.recorder.is_async:
            return split_graph(self._record_rounds(list(listed)))
        if progress:
            from rich.console import Console
            from rich.progress import track

            listed = track(listed, "recording", console=Console(stderr=True))
        return split_graph(self.recorder.record(listed))

    def prefetch(self, minibatches: Iterable[Iterable[Any]]) -> Iterator[list[Any]]:
        """Record mini-batches ahead, each in a thread while the last one is in use; for instances recorded afresh.

        That pays where drawing or recording instances waits, for files or inside NumPy; where it is all Python it is
        slower: see `autobatch.nn.prefetching`. Random numbers are drawn ahead too: leave their generator to the thread.

        Yields for each mini-batch a list of graphs, one per instance; raises what drawing or recording raises, where
        the mini-batch would have come.
        """
        refuse_inside()
        return prefetch(minibatches, self.recorder.to_graphs)

    def prepare(self, instances: Iterable[Any], training: bool = False, has_aux: bool = False) -> Step:
        """Plan a mini-batch and do not run it: its graph, and for each part the schedule, the plan and the executable.

        The arguments, and what is raised, are those of `explain`.

        >>> import autobatch as ab
        >>> double = ab.batched(lambda x: 2.0 * x)
        >>> (part,) = double.prepare([np.ones(3), np.ones(3)]).parts
        >>> part.plan.schedule.n_batches, part.plan.size
        (1, 16)
        """
        read = self._read(instances)
        if read[0].has_programs:
            raise GraphError(
                "prepare was given instances of an async function, which are planned while they run; give graphs from "
                "record_all, or see explain."
            )
        with run_lock():
            return self._prepare(*read, training, has_aux, tried=False)

    def explain(
        self,
        instances: Iterable[Any],
        training: bool = False,
        has_aux: bool = False,
        bound: str = "chain",
        memory: bool = False,
    ) -> Report:
        """Run a mini-batch and say what happened: nodes, batches, bound and gap, launches, copies, memory, rewrites.

        Args:
            instances: as for a call.
            training: run backward too; launches and copies are those of both.
            has_aux: as for `value_and_grad`, with `training`.
            bound: "chain", or "pairs" for a better bound on the batches, which takes a second or so.
            memory: also say where values lie and what moves, in the largest part.

        Raises:
            PolicyError: there is no such bound.
            PlanError: an instance needs more than `max_bytes` alone.
        """
        from autobatch.memplan.report.memory import report_memory
        from autobatch.policies.search.judging import judge

        minibatch, clock = self._read(instances)
        with run_lock(), self._planned(minibatch, clock, training, has_aux, tried=False) as (step, rounds):
            self._execute(step, training, has_aux)
            decided = "" if rounds is not None else self._tuning.describe(minibatch, training)
            step = step if rounds is None else rounds.joined(step)
        judgements = [judge(part.plan.graph, part.plan.schedule, bound) for part in step.parts]
        largest = max(step.parts, key=lambda part: part.n_bytes)
        shown = report_memory(largest.plan, step.cells) if memory else None
        return make_report(step, self.policy, self.recorder.types, judgements, shown, self.precision, decided)

    def profile(
        self,
        instances: Iterable[Any] | None = None,
        training: bool = False,
        has_aux: bool = False,
        n_calls: int = N_CALLS,
    ) -> Profile:
        """Say where the time goes: milliseconds and bytes per stage and per batch, as a table and as a trace.

        Args:
            instances: run once, as for `explain`; None to profile calls as they come, while the profile is entered.
            n_calls: how many to keep, the last.

        Raises:
            DataError: `n_calls` is no number of calls.

        Cost: about a microsecond per batch.

        >>> import autobatch as ab
        >>> double = ab.batched(lambda x: 2.0 * x)
        >>> with double.profile() as profile:
        ...     _ = double([np.ones(3)]), double([np.ones(3)])
        >>> [list(profile.stage_ms()), len(profile.calls), profile.calls[0].batches[0].rows]
        [['record', 'layout', 'rewrite', 'schedule', 'place', 'forward'], 2, 1]
        """
        profile = Profile(self.recorder.types, n_calls, self._watch)
        if instances is not None:
            with profile:
                read = self._read(instances)
                with run_lock(), self._planned(*read, training, has_aux) as (step, rounds):
                    self._execute(step, training, has_aux)
                    self._finish(step, rounds)
        return profile

    def merged(self, instances: Iterable[Any]) -> Graph:
        """Give the graph of a mini-batch as policies see it: recorded, merged and rewritten.

        That of an async function holds the numbers that programs awaited.
        """
        minibatch = self.recorder.read(instances)
        is_async = minibatch.has_programs
        graph = self._record_rounds(minibatch.instances) if is_async else self.recorder.to_graph(minibatch)
        return rewrite(graph, self.rewrites)[0]

    def learn_policy(
        self,
        minibatches: Iterable[Iterable[Any]],
        encoding: str = "sort",
        seed: int = 0,
        *,
        held_out: Iterable[Iterable[Any]] = (),
        online: bool = False,
        progress: bool = False,
        **options: Any,
    ) -> Any:
        """Learn a state machine that decides what runs together, by Q-learning, and use it from now on.

        Args:
            minibatches: lists of instances, or of graphs from `record_all`; at least one.
            encoding: what the machine sees of the ready nodes: "base", "max" or "sort".
            seed: same seed, same policy.
            held_out: mini-batches that decide which of the machines met on the way is the best.
            online: go on learning, from each mini-batch in which the machine meets a state that it does not know.
            progress: show how far it is on standard error.
            options: critical, mask, rival, reward, direction, compact, ...: see `autobatch.policies.learning`, whose
                defaults do best. What ED-Batch published is `**ab.policies.PUBLISHED`. reward="time" minimises the time
                that `autobatch doctor --calibrate` measured on this backend, or that of `costs`. With device="cuda" a
                GPU plays the mini-batches, many at once.

        Returns:
            The policy: `save` writes it to a file, whose path is a policy for `ab.batched`.

        Raises:
            PolicyError: no mini-batches, an option that does not exist or is out of range, a reward in time where
                nothing was measured, or a GPU that cannot hold the mini-batches.
            BackendError: a GPU is to learn, and there is none.

        Cost: about as long as planning the mini-batches `episodes` times, 1000 by default, in each direction, and as
            much again for the machine as it was published, which is learned beside ours unless `rival=False`.
        """
        from autobatch.policies.fsm.online import keep_learning
        from autobatch.policies.learning import learn, show_learning

        graphs, held = [self.merged(batch) for batch in minibatches], [self.merged(batch) for batch in held_out]
        with show_learning(progress) as on_progress:
            terms: dict[str, Any] = {"held_out": held, "seed": seed, "on_progress": on_progress}
            policy = learn(graphs, encoding=encoding, backend=self.backend.name, **terms, **options)
        if online:
            keep_learning(policy)
        self.policy = policy
        return policy

    def _read(self, instances: Iterable[Any], inputs: bool = False) -> tuple[MiniBatch, Clock]:
        """Record a mini-batch, unless it was recorded before; beside what other threads run."""
        clock = Clock(profiled=self._profile is not None)
        return self.recorder.read(instances, inputs), clock

    def _tune(self) -> Tuning:
        """Give what decides how mini-batches run, and plans them; made anew where settings changed that it is for."""
        from autobatch.tuning import make_tuning

        if self.planning.planner is not self.planner:
            self.planning = Planning(self.recorder, self.planner, self.planning.cache.size)
        settings = self.planning, self.backend, self.rewrites, self.precision
        if any(map(is_not, settings, self._tuned_for)):
            self._tuning: Tuning = make_tuning(self.recorder, *settings, self._settings.threads, self._settings.tune)
            self._tuned_for = settings
        return self._tuning

    def _prepare(
        self, minibatch: MiniBatch, clock: Clock, training: bool, has_aux: bool = False, tried: bool = True
    ) -> Step:
        """Merge, rewrite, schedule and place, in parts if the whole does not fit; or find the plan.

        With `tried`, the mini-batch may run under a variant that is being measured; its time then counts.
        """
        if minibatch.graph is not None:
            clock.lap("record")  # and waiting for other threads
        choices, tuning = self._choose(training, has_aux), self._tune()
        if tuning.is_off:
            return self.planning.prepare(minibatch, choices, clock)
        return tuning.prepare(minibatch, choices, clock, tried)

    def _choose(self, training: bool, has_aux: bool) -> Choices:
        """Look up what the call depends on."""
        self._executor.refresh()
        self.recorder.refresh(self._executor.dtype)
        check_precision(self.precision, self._executor.dtype, self.backend.name)
        return Choices(
            self.policy, self.rewrites, self.max_bytes, self._executor.dtype,
            self._executor.purpose(training), self.backend, self.precision, self.threads, has_aux,
            store=self._executor.store,
        )  # fmt: skip

    @contextmanager
    def _planned(
        self, minibatch: MiniBatch, clock: Clock, training: bool, has_aux: bool = False, tried: bool = True
    ) -> Iterator[tuple[Step, Rounds | None]]:
        """Within the context, the last step of a mini-batch is ready to run, and the rounds before it have run."""
        if self._profile is not None:
            self._profile.begin()
        if not minibatch.has_programs:
            yield self._prepare(minibatch, clock, training, has_aux, tried), None
            return
        rounds = self._rounds(clock)
        if not training:
            with rounds.run(minibatch.instances) as step:
                yield step, rounds
            return
        graph = rounds.record(minibatch.instances, minibatch.inputs)
        whole = MiniBatch(minibatch.instances, graph, minibatch.inputs)
        yield self._prepare(whole, clock, training, has_aux, tried=False), rounds  # the clock has run for rounds too

    def _rounds(self, clock: Clock) -> Rounds:
        """What runs the rounds of a mini-batch."""
        choices = self._choose(training=False, has_aux=False)
        self._tune()
        about = choices, clock, (self.seed, self.step), self.waiting, self._profile
        return Rounds(self.recorder, self.planning, self._executor, *about)

    def _record_rounds(self, instances: list[Any]) -> Graph:
        """Run async programs, and give the graph of all that they recorded."""
        with run_lock():
            return self._rounds(Clock()).record(instances, with_awaited=True)

    def _execute(self, step: Step, training: bool, has_aux: bool) -> None:
        """Run all parts, and backward in training, for what is learned from that."""
        slot = loss_slot(step.graph, self.recorder.slots, has_aux) if training else -1
        for part, run in self._run(step):
            if training:
                seeds = {slot: np.ones(part.stop - part.start, self._executor.dtype)}
                self._executor.backward(step, run, seeds, None)

    def _finish(self, step: Step, rounds: Rounds | None = None) -> None:
        """Keep what there is to say about a call."""
        if rounds is None:
            self._tuning.finish(step)
        else:
            step = rounds.joined(step)
        self.last = step.finish()
        if self._profile is not None:
            self._profile.add(step, self._executor.dtype.itemsize, self.precision)

    def _watch(self, profile: Profile | None) -> Profile | None:
        """Take this profile from now on, or none; give the one that was taken."""
        with run_lock():
            before, self._profile = self._profile, profile
        return before

    def _run(self, step: Step) -> Iterator[tuple[slice, Run]]:
        return self._executor.forward(step, self.seed, self.step, self._profile)
