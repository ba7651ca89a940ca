"""Report compilations to functions that watch them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import NamedTuple


class Compilation(NamedTuple):
    """A compilation, in progress or done.

    Attributes:
        what: subject of the compilation, such as `cell 'merge' (forward)`.
        seconds: duration; 0 while in progress.
    """

    what: str
    seconds: float = 0.0


class _Watcher(NamedTuple):
    begun: Callable[[Compilation], object]
    done: Callable[[Compilation], object]


_watchers: list[_Watcher] = []


@contextmanager
def compiling(what: str) -> Iterator[None]:
    """Report a compilation of `what` in the block to all watchers."""
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
    """Call functions for each compilation of any thread while the block runs.

    Args:
        begun, done: called by the compiling thread at the start and at the end of a compilation.

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
