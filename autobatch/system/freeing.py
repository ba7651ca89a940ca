"""Return freed memory to the system."""

from __future__ import annotations

import sys


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
