"""Say what is being compiled, to functions that watch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import NamedTuple


class Compilation(NamedTuple):
    """A compilation, in progress or done.

    Attributes:
        what: the thing that is compiled, in words: `cell 'merge' (forward)`.
        seconds: how long it took; 0 before it is done.
    """

    what: str
    seconds: float = 0.0


class _Watcher(NamedTuple):
    begun: Callable[[Compilation], object]
    done: Callable[[Compilation], object]


_watchers: list[_Watcher] = []


@contextmanager
def compiling(what: str) -> Iterator[None]:
    """Name what is compiled in the block."""
    began = perf_counter()
    for watcher in tuple(_watchers):
        watcher.begun(Compilation(what))
    try:
        yield
    finally:
        for watcher in tuple(_watchers):
            watcher.done(Compilation(what, perf_counter() - began))


@contextmanager
def watch_compilation(
    begun: Callable[[Compilation], object], done: Callable[[Compilation], object] = lambda compilation: None
) -> Iterator[None]:
    """Call functions for everything that is compiled while the block runs, in any thread.

    Args:
        begun, done: are called by the thread that compiles, when a compilation begins and when it ends.

    >>> with watch_compilation(lambda compilation: print("compiling", compilation.what)):
    ...     with compiling("cell 'merge' (forward)"):
    ...         pass
    compiling cell 'merge' (forward)
    """
    watcher = _Watcher(begun, done)
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)
