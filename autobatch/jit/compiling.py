"""Report what is being compiled to callbacks (`watch_compilation`).

Loops over flat arrays and the kernels of cells are compiled when they are first needed, which takes seconds; code in
the cache on disk is loaded instead. Numba announces the functions that it compiles. A kernel, with all functions that
are compiled as part of it, is reported by the name of the block that it is compiled in (`compiling`).
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NamedTuple

from autobatch.jit.internals import has_internals


class Compilation(NamedTuple):
    """A compilation, in progress or done.

    Attributes:
        what: the thing that is compiled, in words: `cell 'merge' (forward)`, or `loop 'split_words'`.
        is_kernel: whether it belongs to a cell; False for the library's own loops.
        seconds: how long it took; 0 before it is done.
        module: that a loop is defined in.
    """

    what: str
    is_kernel: bool
    seconds: float = 0.0
    module: str = ""


Told = Callable[[Compilation], object]


class _Watch(threading.local):
    """Follows compilation: `open` holds the blocks and loops that this thread is compiling, the outermost first."""

    def __init__(self, begun: Told, done: Told, loaded: Told) -> None:
        self.begun, self.done, self.loaded = begun, done, loaded
        self.open: list[Compilation] = []
        self.entered = 0.0
        self.compiled = False

    def enter(self, compilation: Compilation, begins: bool) -> None:
        """Open a block, which may compile something, or a loop, which `begins` to be compiled."""
        if not self.open:
            self.entered, self.compiled = perf_counter(), False
        self.open.append(compilation)
        if begins:
            self.compiles()

    def compiles(self) -> None:
        """Note that the outermost one is compiled."""
        if self.open and not self.compiled:
            self.compiled = True
            self.begun(self.open[0])

    def leave(self) -> None:
        """Close the innermost one: it is done. There is none if it began before the watch."""
        if not self.open:
            return
        left = self.open.pop()
        if not self.open:
            tell = self.done if self.compiled else self.loaded
            tell(left._replace(seconds=perf_counter() - self.entered))


_watches: list[_Watch] = []


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
def compiling(what: str, is_kernel: bool, module: str = "") -> Iterator[None]:
    """Name the things that are compiled in the block. Cost: microseconds while nothing watches."""
    watches = list(_watches)
    for watch in watches:
        watch.enter(Compilation(what, is_kernel, module=module), begins=False)
    try:
        with without_collection():
            yield
    finally:
        for watch in watches:
            watch.leave()


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
    if not has_internals():  # without these, compilations cannot be named
        return lambda: None
    from numba.core import event

    events: Any = event
    watch = _Watch(begun, done, loaded)

    class Loops(events.Listener):  # type: ignore[misc]
        """Is notified of functions that are compiled when they are called."""

        def on_start(self, event: Any) -> None:
            loop = event.data["dispatcher"].py_func
            watch.enter(Compilation(f"loop {loop.__name__!r}", False, module=loop.__module__ or ""), begins=True)

        def on_end(self, event: Any) -> None:
            watch.leave()

    class Passes(events.Listener):  # type: ignore[misc]
        """Is notified of every pass of the compiler; a pass inside a block means that its kernel is compiled."""

        def on_start(self, event: Any) -> None:
            watch.compiles()

        def on_end(self, event: Any) -> None:
            pass

    listeners = {"numba:compile": Loops(), "numba:run_pass": Passes()}
    _watches.append(watch)
    for kind, listener in listeners.items():
        events.register(kind, listener)

    def stop() -> None:
        for kind, listener in listeners.items():
            events.unregister(kind, listener)
        _watches.remove(watch)

    return stop
