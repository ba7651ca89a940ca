"""What a batched function is made of, and how it plans and runs mini-batches. Users call `autobatch.batched`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from operator import is_not
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from autobatch.graph.graph import Graph
from autobatch.inspect.profiling import Profile
from autobatch.ir.precision import check_precision
from autobatch.params.module import Module
from autobatch.plan.plan import Planner
from autobatch.runtime.backend import Backend, Run
from autobatch.runtime.execution import Executor
from autobatch.runtime.losses import UnreadLoss, loss_slot
from autobatch.runtime.planning import Choices, Planning
from autobatch.runtime.settings import Settings
from autobatch.runtime.step import Clock, LastCall, Step
from autobatch.schedule.schedule import Policy, adapt
from autobatch.system.turns import run_lock
from autobatch.trace.record import MiniBatch, Recorder
from autobatch.trace.scanning import functions_in

if TYPE_CHECKING:
    from autobatch.runtime.rounds import Rounds
    from autobatch.tuning import Tuning


class Engine:
    """Records, plans and runs the mini-batches of one function.

    A deep copy, or one through pickle, runs a copy of the model and has recorded nothing.

    Attributes:
        last: counts and times of the last call, and of each round of an async function; None before the first.
        seed: what random numbers depend on.
        step: what they depend on as well; it counts the calls of value_and_grad.
        planner: assigns memory.
        backend: executes.
        max_bytes: what a mini-batch's values may take before it is run in parts; None for no limit.
        precision: of matrix products, see `autobatch.ir.precision`.
        threads: that a mini-batch has, where they are not measured or pinned.
        waiting: how long async programs may wait, and what their errors do.
        recorder: records instances, and knows the types of their nodes; not to be assigned.
        planning: plans mini-batches as given; not to be assigned.
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
        now = {name: getattr(self, name) for name in ("rewrites", "seed", "max_bytes", "precision", "waiting")}
        made = self.recorder.function, self.recorder.module, self.policy, self.planner, self.backend
        return {"made": (*made, replace(self._settings, **now)), "step": self.step}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state["made"])  # type: ignore[misc]
        self.step = state["step"]

    @property
    def policy(self) -> Policy:
        """Makes schedules."""
        return self._policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self._policy, self._scheduler = policy, adapt(policy)

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
        self, minibatch: MiniBatch, clock: Clock, training: bool, has_aux: bool | None = False, tried: bool = True
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

    def _choose(self, training: bool, has_aux: bool | None) -> Choices:
        """Look up what the call depends on."""
        self._executor.refresh()
        self.recorder.refresh(self._executor.dtype)
        check_precision(self.precision, self._executor.dtype, self.backend.name)
        return Choices(
            self._scheduler, self.rewrites, self.max_bytes, self._executor.dtype,
            self._executor.purpose(training), self.backend, self.precision, self.threads, has_aux,
            store=self._executor.store,
        )  # fmt: skip

    @contextmanager
    def _planned(
        self, minibatch: MiniBatch, clock: Clock, training: bool, has_aux: bool | None = False, tried: bool = True
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
        from autobatch.runtime.rounds import Rounds

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
