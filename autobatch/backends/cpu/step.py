"""Define the steps of a compiled stage: functions that a plan calls for tiles of a type, in one or several threads.

A native or generated function takes the address of the memory of its stage, which lists the addresses of the arrays of
a run; the address of its descriptor; and the number of a tile (see `native/run/steps.h`). Other functions run in
Python. The choice of a function depends on the sizes of a plan; plans with batches of about the same size share steps.

Threads run the tiles of a batch in parallel, one batch after the other. They are Python threads that sleep until there
is work. Their shared counters and the loop that takes tiles are native (`native/run/team.h`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from autobatch._native import Sweep, step_addresses
from autobatch.arrays import Array, LongArray
from autobatch.backends.tables import CallList
from autobatch.blas.choosing import Chooser

BOUND_STEP = np.dtype([("function", np.int64), ("memory", np.int64), ("descriptor", np.int64)])
"""`BoundStep` of `native/run/team.h`: the addresses of a function, the memory of its stage, and its descriptor."""
FUNCTIONS = step_addresses()
"""The addresses of native functions by name; see `native/run/steps.h`."""
OPERAND = (np.int64, 4)
"""`Operand` of `native/run/operands.h`.

The slot of an array, the field of a tile that holds where its rows begin, the byte offset from there, and the row
stride in elements.
"""


class Sizes(NamedTuple):
    """The properties of a plan that the choice of a function depends on.

    Attributes:
        index_type: the name of the integer type of destinations.
        mean_rows: [domains, 2] mean rows of a tile, as in `autobatch.backends.tables.PlanTables`.
        n_rows: [domains] the number of rows of the type.
        n_threads: the number of threads that share tiles.
        chooser: chooses the library for each product.
    """

    index_type: str
    mean_rows: LongArray
    n_rows: LongArray
    n_threads: int
    chooser: Chooser


@dataclass(eq=False, slots=True)
class Step:
    """A step for plans of some sizes.

    Attributes:
        function: the address of the native or generated function; 0 if Python runs the step.
        descriptor: the ints that this function reads; its address must not change.
        run: runs the step in Python, given the number of a tile.
        load: writes the current addresses of parameters to the descriptor; called when parameters have changed.
        calls_library: whether the step may call a matrix library, whose threads must be limited.
    """

    function: int = 0
    descriptor: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    run: Callable[[int], None] | None = None
    load: Callable[[], None] | None = None
    calls_library: bool = False


@dataclass(eq=False, slots=True)
class StepTemplate:
    """A step of a stage, before the sizes of a plan are known.

    Attributes:
        statement: the computation: a kernel, or a statement of `autobatch.compiler.statement`.
        make: builds the step for a choice.
        choose: derives a choice from the sizes of a plan; by default the same for all.
        steps: the steps built so far, by choice.
    """

    statement: Any
    make: Callable[..., Step]
    choose: Callable[[Sizes], tuple[Any, ...]] = lambda sizes: ()
    steps: dict[tuple[Any, ...], Step] = field(default_factory=dict)

    def bind(self, sizes: Sizes) -> Step:
        """Return the step for a plan of these sizes."""
        choice = self.choose(sizes)
        if choice not in self.steps:
            self.steps[choice] = self.make(*choice)
        return self.steps[choice]


class Sweeps:
    """A runner of lists of calls by several threads, one sweep (a run over some parts of a list) at a time."""

    def __init__(self) -> None:
        self._sweep = Sweep()

    def run(self, addresses: Array, calls: CallList, first: int, last: int) -> None:
        """Make the calls of parts first:last with one thread per row of `addresses`.

        Args:
            addresses: [threads, steps] `BOUND_STEP` of each step; all are native.
            calls: see `autobatch.backends.tables.CallList`.
        """
        helpers: list[Helper] = []
        try:
            number = self._sweep.open(first, last)
            # Fills the list as it goes, so that an interrupt does not lose helpers.
            _borrow(len(addresses) - 1, helpers)
            for thread, helper in enumerate(helpers, start=1):
                helper.start(self._sweep, number, addresses[thread], calls)
            self._sweep.lead(addresses[0], calls)
        finally:  # even after an interrupt, no helper may go on with memory that the next run uses
            self._sweep.close()
            _idle.extend(helpers)


class Helper:
    """A thread that sleeps until there is work."""

    def __init__(self) -> None:
        self._work: tuple[Sweep, int, Array, CallList]
        self._awake = threading.Lock()
        self._awake.acquire()
        threading.Thread(target=self._serve, name="autobatch helper", daemon=True).start()

    def start(self, sweep: Sweep, number: int, addresses: Array, calls: CallList) -> None:
        """Hand over work and wake the thread; earlier work has ended, or its sweep is closed and refuses helpers."""
        self._work = sweep, number, addresses, calls
        # The lock is a binary semaphore: held while the thread sleeps, and released to wake it.
        # If it is unlocked, the thread has been woken for earlier work, but has not run yet: it will find this work.
        if self._awake.locked():
            self._awake.release()

    def _serve(self) -> None:
        while self._awake.acquire():
            sweep, number, addresses, calls = self._work
            sweep.join(number, addresses, calls)


_idle: list[Helper] = []
if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork: in the child, these helpers would never wake up.
    os.register_at_fork(after_in_child=_idle.clear)


def _borrow(n: int, helpers: list[Helper]) -> None:
    """Add `n` helpers to a list, or fewer if the system cannot start more threads; the others then do all the work."""
    for _ in range(n):
        try:
            helpers.append(_idle.pop())
        except IndexError:
            try:
                helpers.append(Helper())
            except RuntimeError:
                return
