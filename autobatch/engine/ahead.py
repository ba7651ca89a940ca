"""Plan the next mini-batches of an iterator in a thread while the current one runs.

A mini-batch that `ab.minibatches(..., ahead=n)` yields knows the next `n`. When a function runs it, the session starts
to plan these for the same function, with the same options. The core plans without the GIL, so that Python and kernels
continue to run. The call that runs a planned mini-batch uses the plan, or makes a new one if anything that the plan
depends on has changed. That call raises any error of its instances. If the thread has not begun the plan, the call
makes it, so that a call never takes longer than without planning ahead.
"""

from __future__ import annotations

import os
import threading
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, Self

from autobatch.backends.options import Options
from autobatch.graph.graph import Graph
from autobatch.plan.plan import PlannedTypes

if TYPE_CHECKING:
    from autobatch.memplan.placement import PlanJob


class _Planner:
    """The planning thread, which plans one mini-batch after another; the first job starts it."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[weakref.ref[PlanJob]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def begin(self, job: PlanJob) -> None:
        """Plan as soon as possible, unless the job is dropped before then."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="autobatch planning", daemon=True)
                self._thread.start()
        # Only the mini-batch keeps the job alive, so that one that is dropped without a run is not planned.
        self._jobs.put(weakref.ref(job))

    def _work(self) -> None:
        while True:
            job = self._jobs.get()()
            if job is not None:
                job.run()  # its errors are raised by `result`
            del job  # so that its plan can be freed while the thread waits


_planner = _Planner()


def _renew() -> None:
    """Replace the planner in a forked child, where its thread does not exist and its running jobs never end."""
    global _planner
    _planner = _Planner()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


class PlanAhead(NamedTuple):
    """A plan that was begun ahead of its run.

    Attributes:
        graphs: the mini-batch.
        options, cells, slot: the call that began it had these options and planned types, and its loss this slot.
        job: the job that makes the plan.
        planner: the thread that was asked to plan.
    """

    graphs: list[Graph]
    options: Options
    cells: PlannedTypes
    slot: int
    job: PlanJob
    planner: _Planner

    @classmethod
    def begin(cls, graphs: list[Graph], options: Options, cells: PlannedTypes, slot: int, job: PlanJob) -> Self:
        """Begin to plan in the thread."""
        _planner.begin(job)
        return cls(graphs, options, cells, slot, job, _planner)

    def is_for(self, graphs: list[Graph], options: Options, cells: PlannedTypes, slot: int) -> bool:
        """Return whether this is the plan of these graphs with these settings, begun in this process."""
        return (
            self.planner is _planner
            and self.slot == slot
            # Types that are laid out again are a new object. Equal traces give equal plans, as in the key of the plan
            # cache.
            and (self.cells is cells or self.cells.traces == cells.traces)
            and (self.options is options or (self.options.policy is options.policy and self.options == options))
            and self.graphs == graphs  # the same objects, because graphs are compared by identity
        )
