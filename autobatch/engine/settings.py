"""Settings of a batched function: its function, model, policy, planner, backend and options."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from autobatch.arguments import show
from autobatch.backends.base import Backend
from autobatch.backends.options import Options
from autobatch.engine.planning import Planning
from autobatch.errors import BackendError
from autobatch.params.module import Module
from autobatch.plan.plan import Planner
from autobatch.schedule.schedule import Policy, adapt
from autobatch.system.locks import run_lock
from autobatch.trace.record import Recorder
from autobatch.trace.scanning import functions_in

if TYPE_CHECKING:
    from autobatch.engine.threads import ThreadChoice


def _option(name: str) -> Any:
    """Build a property that reads and replaces a field of `Settings.options`."""

    def assign(settings: Settings, value: Any) -> None:
        settings.options = settings.options._replace(**{name: value})

    return property(lambda settings: getattr(settings.options, name), assign)


class Settings:
    """The settings by which the mini-batches of one function are planned and run.

    A deep copy or a pickled copy runs a copy of the model, and starts without recordings.

    Args:
        threads: the number of threads per mini-batch, or "auto".
        plan_cache: the number of plans to keep.

    Attributes:
        step: the number of calls of value_and_grad so far; random numbers depend on it and on the seed.
        options: the options of planning and running; its fields `rewrites`, `seed`, `max_bytes` and `precision` are
            attributes that may be assigned.
        recorder: records instances, and holds the types of their nodes.
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
        self.recorder = Recorder(function, module)
        self.planning = Planning(self.recorder, planner, backend, plan_cache)
        self.threads = threads

    def __repr__(self) -> str:
        function = self.recorder.function
        runs: list[Any] = [*functions_in(function), type(function)]
        return (
            f"{type(self).__name__}({runs[0].__qualname__}, policy={self.policy.name!r}, backend={self.backend.name!r})"
        )

    def __copy__(self) -> Self:
        """Return a shallow copy."""
        twin = object.__new__(type(self))
        vars(twin).update(vars(self))
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """Return the constructor arguments and the step for deep copies and pickles, without recordings."""
        made = self.recorder.function, self.recorder.module, self.planner, self.backend, self.options, self.threads
        return {"made": (*made, self.planning.cache.size), "step": self.step}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state["made"])  # type: ignore[misc]
        self.step = state["step"]

    def of_programs(self, wrap: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> Self:
        """Return the same settings, without a plan cache, for the function that `wrap` makes of this one."""
        function, *made, _ = self.__getstate__()["made"]
        twin = object.__new__(type(self))
        twin.__setstate__({"made": (wrap(function), *made, 0), "step": self.step})
        return twin

    @property
    def policy(self) -> Policy:
        """Return the policy that makes schedules."""
        return self.options.policy.given

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self.options = self.options._replace(policy=adapt(policy))

    @property
    def planner(self) -> Planner:
        """Return the planner that assigns memory. Assigning another one drops all plans."""
        return self.planning.planner

    @planner.setter
    def planner(self, planner: Planner) -> None:
        self.planning = Planning(self.recorder, planner, self.backend, self.planning.cache.size)

    @property
    def backend(self) -> Backend:
        """Return the backend that executes plans. Assigning another one drops all plans."""
        return self.planning.backend

    @backend.setter
    def backend(self, backend: Backend) -> None:
        self.planning = Planning(self.recorder, self.planner, backend, self.planning.cache.size)

    @property
    def threads(self) -> int | str:
        """Return the number of threads per mini-batch, or "auto" if it is chosen by measurement."""
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
        """Return whether no number of threads is being measured; a new size of mini-batch may start a measurement."""
        with run_lock():
            return self._thread_choice is None or self._thread_choice.is_settled
