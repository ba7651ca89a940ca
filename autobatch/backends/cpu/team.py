"""Share the calls of a stage between threads: the tiles of a batch run in parallel, one batch after the other.

The threads are Python threads that sleep until there is work. Their shared counters and the loop that takes tiles are
native (`native/run/team.h`).
"""

from __future__ import annotations

import os
import threading
from typing import Any

from numpy.typing import NDArray

from autobatch._native import Sweep
from autobatch.backends.tiles import CallList

Array = NDArray[Any]


class Sweeps:
    """A runner that makes calls with several threads, one sweep after the other."""

    def __init__(self) -> None:
        self._sweep = Sweep()

    def run(self, addresses: Array, calls: CallList, first: int, last: int) -> None:
        """Make the calls of parts first:last with one thread per row of `addresses`.

        Args:
            addresses: [threads, steps] `BOUND_STEP` of each step; all are native.
            calls: see `autobatch.backends.tiles.CallList`.
        """
        number = self._sweep.open(first, last)
        helpers: list[Helper] = []
        try:
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
        if self._awake.locked():
            self._awake.release()

    def _serve(self) -> None:
        while self._awake.acquire():
            sweep, number, addresses, calls = self._work
            sweep.join(number, addresses, calls)


_idle: list[Helper] = []
if hasattr(os, "register_at_fork"):
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
