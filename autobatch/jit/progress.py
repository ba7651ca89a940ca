"""Tell a program or a notebook on standard error that compiling takes long; commands show it in their own way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Timer
from time import monotonic

from autobatch.jit.compiling import Compilation, start_watching
from autobatch.system.cache import cache_folder

SECONDS_UNTOLD = 2.0  # of compiling, before a line tells of it
SECONDS_APART = 10.0  # without compiling, after which a line may come again


def say_kept() -> str:
    """Say that later runs find what is compiled, if there is a cache."""
    return "" if cache_folder() is None else ", which later runs find in the cache"


class Notice:
    """Prints one line once compiling has taken some seconds, while it goes on.

    Attributes:
        is_quiet: nothing is printed.
        timer: prints the line if what is compiled now takes so long; None while nothing is.
    """

    def __init__(self) -> None:
        self.is_quiet = self._is_waiting = False
        self.timer: Timer | None = None
        self._seconds, self._told, self._ended = 0.0, False, 0.0

    def begun(self, compilation: Compilation) -> None:
        """Take note of what begins; other people's loops do not count."""
        if not compilation.is_kernel:
            return
        if monotonic() - self._ended > SECONDS_APART:
            self._seconds, self._told = 0.0, False
        if self.timer is None and not (self.is_quiet or self._told):
            self.timer = Timer(max(SECONDS_UNTOLD - self._seconds, 0.0), self._tell, (compilation,))
            self.timer.start()

    def done(self, compilation: Compilation) -> None:
        """Take note of what is done."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self._seconds, self._ended = self._seconds + compilation.seconds, monotonic()

    def _tell(self, compilation: Compilation) -> None:
        self._told = True
        sys.stderr.write(f"autobatch: compiling {compilation.what} and what else is new{say_kept()}.\n")

    def waiting(self, count: Callable[[], tuple[int, int]]) -> None:
        """Print a line, once in a process, if another process is compiling for some seconds.

        Args:
            count: gives how many parts are compiled, and how many were asked for.
        """
        if not self._is_waiting:
            self._is_waiting = True
            later = Timer(SECONDS_UNTOLD, self._tell_waiting, (count, monotonic()))
            later.daemon = True
            later.start()

    def _tell_waiting(self, count: Callable[[], tuple[int, int]], began: float) -> None:
        n_compiled, n_all = count()
        if n_compiled < n_all:
            sys.stderr.write(
                f"autobatch: compiling in the background, {n_compiled} of {n_all} parts in "
                f"{monotonic() - began:.0f} s; until then mini-batches are interpreted, with results equal up to "
                f"rounding (AUTOBATCH_COMPILE=now waits instead).\n"
            )


NOTICE = Notice()


@cache
def tell_of_compilation() -> None:
    """Print a line where compiling takes long, from now on."""
    start_watching(NOTICE.begun, NOTICE.done)


@contextmanager
def untold() -> Iterator[None]:
    """Print nothing while the block runs, which shows what is compiled by itself."""
    before, NOTICE.is_quiet = NOTICE.is_quiet, True
    try:
        yield
    finally:
        NOTICE.is_quiet = before
