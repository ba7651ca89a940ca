"""Give memory that was freed back to the system."""

from __future__ import annotations

import sys


def give_back_freed() -> None:
    """Ask the C library to return freed memory to the system; it keeps much of it otherwise.

    Only glibc is asked, as others return it by themselves. Cost: milliseconds, so call it after much has been freed.
    """
    if sys.platform != "linux":
        return
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
