"""Return freed memory to the system, and pause the garbage collector during work that creates many objects."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from autobatch._native import pause_collection, resume_collection


def give_back_freed() -> None:
    """Ask glibc, which keeps much freed memory, to return it to the system; do nothing with other C libraries.

    Cost: milliseconds, so call it only after freeing much.
    """
    if sys.platform != "linux":
        return
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextmanager
def without_collection() -> Iterator[None]:
    """Turn Python's garbage collector off in the block; during tracing, it takes 10% of the time.

    Garbage of the block is collected afterwards.
    """
    was_enabled = gc.isenabled()
    try:
        pause_collection()
        yield
    finally:
        if was_enabled:
            resume_collection()
