"""Threads that make the calls of a stage together: the tiles of a batch side by side, batch after batch.

They are Python threads that sleep until there is work. The counters that they share and the loop that takes tiles
are native (`native/run/team.h`).
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
    """Makes calls with several threads, one sweep after the other."""

    def __init__(self) -> None:
        self._sweep = Sweep()

    def run(self, addresses: Array, calls: CallList, first: int, last: int) -> None:
        """Make the calls of some parts with as many threads as there are addresses for.

        Args:
            addresses: [threads, steps] `ADDRESSES` of each step; all are native.
            calls: see `autobatch.backends.tiles.CallList`.
            first, last: the first part, and the one behind the last.
        """
        number = self._sweep.open(first, last)
        helpers: list[Helper] = []
        try:
            _borrow(len(addresses) - 1, helpers)
            for thread, helper in enumerate(helpers, start=1):
                helper.start(self._sweep, number, addresses[thread], calls)
            self._sweep.lead(addresses[0], calls)
        finally:  # be it by an interrupt: nobody is inside, and works on memory that is somebody else's next
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
        """Hand over work; what was handed over before is over, or refused."""
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
    """Add `n` helpers to a list, or fewer where the system gives no more threads: the rest is done without them."""
    for _ in range(n):
        try:
            helpers.append(_idle.pop())
        except IndexError:
            try:
                helpers.append(Helper())
            except RuntimeError:
                return
