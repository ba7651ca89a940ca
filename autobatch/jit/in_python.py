"""Run loops in Python, while their machine code is not there: the same statements on the same arrays.

Compiled code and Python compute the same numbers. Ints wrap around without a warning, as in compiled code; but those of
32 bits do so at 32 bits, and compiled code computes with 64. So nothing may reach 2**31 that is computed from elements
of int32 arrays alone. Compiled code returns Python's own numbers, and so does this.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")


class _Mode(threading.local):
    """Of this thread: whether a loop runs in Python, and with it those that it calls."""

    in_python = False


MODE = _Mode()


def run_in_python(python: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a loop, and the loops that it calls, in Python, except those that Python cannot run."""
    before, MODE.in_python = MODE.in_python, True
    try:
        with np.errstate(all="ignore"):
            result: R = _own_numbers(python(*args, **kwargs))
            return result
    finally:
        MODE.in_python = before


def _own_numbers(value: Any) -> Any:
    """The value with Python's own numbers in place of NumPy's."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        values = map(_own_numbers, value)
        return type(value)(*values) if hasattr(value, "_fields") else tuple(values)
    return value
