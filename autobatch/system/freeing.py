"""Return freed memory to the system, and keep the garbage collector out of work that makes many objects."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def give_back_freed() -> None:
    """Ask the C library to return freed memory to the system; otherwise it keeps much of it.

    Only glibc needs this. Cost: milliseconds, so call it only after freeing much.
    """
    if sys.platform != "linux":
        return
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextmanager
def without_collection() -> Iterator[None]:
    """Switch off Python's garbage collector, whose passes over the objects of a trace take a tenth of the time.

    Garbage from inside the block is collected after it.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
