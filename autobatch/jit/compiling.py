"""Report what is being compiled to callbacks (`watch_compilation`).

The kernels of cells are compiled when they are first needed, which takes seconds; code in the cache on disk is loaded
instead. Numba announces the functions that it compiles. A kernel, with all functions that are compiled as part of it,
is reported by the name of the block that it is compiled in (`compiling`).
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from time import perf_counter
from typing import Any, NamedTuple


class Compilation(NamedTuple):
    """A compilation, in progress or done.

    Attributes:
        what: the thing that is compiled, in words: `cell 'merge' (forward)`, or `loop 'f'`.
        is_kernel: whether it is ours; False for loops of the user.
        seconds: how long it took; 0 before it is done.
    """

    what: str
    is_kernel: bool
    seconds: float = 0.0


Told = Callable[[Compilation], object]


class _Watcher(NamedTuple):
    begun: Told
    done: Told
    loaded: Told


_watchers: list[_Watcher] = []


class _Now(threading.local):
    """What this thread compiles: `open` are the blocks and loops that it is in, the outermost first."""

    def __init__(self) -> None:
        self.open: list[tuple[Compilation, ExitStack]] = []
        self.entered = 0.0
        self.compiles = False

    def enter(self, compilation: Compilation) -> None:
        """Open a block, which may compile something, or a loop."""
        if not self.open:
            self.entered, self.compiles = perf_counter(), False
        inside = ExitStack()
        inside.enter_context(without_collection())
        self.open.append((compilation, inside))

    def begin(self) -> None:
        """Note that the outermost one is compiled."""
        if self.open and not self.compiles:
            self.compiles = True
            for watcher in tuple(_watchers):
                watcher.begun(self.open[0][0])

    def leave(self) -> None:
        """Close the innermost one: it is done."""
        if not self.open:  # it was opened before Numba's events were followed
            return
        left, inside = self.open.pop()
        inside.close()
        if not self.open:
            took = left._replace(seconds=perf_counter() - self.entered)
            for watcher in tuple(_watchers):
                (watcher.done if self.compiles else watcher.loaded)(took)


_NOW = _Now()


@contextmanager
def without_collection() -> Iterator[None]:
    """Switch off Python's garbage collector, whose passes over the compiler's objects take a tenth of the time.

    Garbage from inside the block is collected after it.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def compiling(what: str) -> Iterator[None]:
    """Name the kernels that are compiled in the block. Cost: microseconds while nothing watches."""
    _NOW.enter(Compilation(what, is_kernel=True))
    try:
        yield
    finally:
        _NOW.leave()


@contextmanager
def watch_compilation(
    begun: Told, done: Told = lambda compilation: None, loaded: Told = lambda compilation: None
) -> Iterator[None]:
    """Call functions for everything that is compiled while the block runs.

    Args:
        begun, done: are called when a compilation begins, and when it ends.
        loaded: is called for a named block in which nothing had to be compiled.

    Threads are watched alike. Loads Numba.

    >>> import numba
    >>> @numba.njit
    ... def double(x: int) -> int:
    ...     return 2 * x
    >>> with watch_compilation(lambda compilation: print("compiling", compilation.what)):
    ...     double(3), double(4)
    compiling loop 'double'
    (6, 8)
    """
    stop = start_watching(begun, done, loaded)
    try:
        yield
    finally:
        stop()


def start_watching(
    begun: Told, done: Told = lambda compilation: None, loaded: Told = lambda compilation: None
) -> Callable[[], None]:
    """Call functions for everything that is compiled, until the function that is returned is called."""
    _listen()
    watcher = _Watcher(begun, done, loaded)
    _watchers.append(watcher)
    return lambda: _watchers.remove(watcher)


@cache
def _listen() -> None:
    """Follow what Numba compiles, from now on."""
    from numba.core import event

    events: Any = event

    class Loops(events.Listener):  # type: ignore[misc]
        """Is notified of functions that are compiled when they are called."""

        def on_start(self, event: Any) -> None:
            loop = event.data["dispatcher"].py_func
            _NOW.enter(Compilation(f"loop {loop.__name__!r}", is_kernel=False))
            _NOW.begin()

        def on_end(self, event: Any) -> None:
            _NOW.leave()

    class Passes(events.Listener):  # type: ignore[misc]
        """Is notified of every pass of the compiler; a pass inside a block means that its kernel is compiled."""

        def on_start(self, event: Any) -> None:
            _NOW.begin()

        def on_end(self, event: Any) -> None:
            pass

    events.register("numba:compile", Loops())
    events.register("numba:run_pass", Passes())
