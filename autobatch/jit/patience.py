"""Run loops in Python until they have done as much work as compiling them takes.

Compiling a loop takes up to three seconds, and where graphs are small, Python does in milliseconds what the loop is
called for. So within `patiently()` a loop that was not compiled before runs in Python: the same statements, with the
same results. The elements of the arrays that it is given are counted, over all processes, in a file beside those of the
compiled code; beyond `PATIENCE` the loop is compiled. This takes at most about twice as long as the better of the two.
Elements are counted instead of seconds, so that the same calls compile the same loops on every machine. See
docs/decisions/python-until-compiling-pays.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil, inf
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")

PATIENCE = 300
"""Thousands of elements: about a second of Python."""
ALWAYS = inf
"""The effort of loops that always take longer in Python: these are compiled, also where their callers are not."""


class _Mode(threading.local):
    """Of this thread: whether loops that are not compiled may wait, and whether one is running in Python."""

    may_wait = False
    in_python = False


MODE = _Mode()


@contextmanager
def patiently() -> Iterator[None]:
    """Let loops that were not compiled before run in Python while the block runs, as long as they have little to do."""
    before, MODE.may_wait = MODE.may_wait, True
    try:
        yield
    finally:
        MODE.may_wait = before


def run_in_python(python: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a loop, and the loops that it calls, in Python, except those of effort `ALWAYS`.

    Ints wrap around without a warning, as in compiled code; but those of 32 bits do so at 32 bits, and compiled code
    computes with 64. So nothing may reach 2**31 that is computed from elements of int32 arrays alone.
    """
    MODE.in_python = True
    try:
        with np.errstate(all="ignore"):
            return python(*args, **kwargs)
    finally:
        MODE.in_python = False


class Tally:
    """Counts the work that a loop did in Python: a file holds a byte for every thousand elements, so appending adds.

    Args:
        path: of the file; None if there is no more to count.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._here = 0

    def add(self, work: int) -> int:
        """Add thousands of elements, and return the sum."""
        if self._path is None:
            return PATIENCE + 1
        self._here += work
        try:
            with self._path.open("ab") as file:
                file.write(bytes(work))
                return file.tell()
        except OSError:  # a folder that cannot be written to: this process counts its own work
            return self._here


def is_spent(tally: Tally, effort: float, args: tuple[Any, ...]) -> bool:
    """Add the work of a call to a tally; say whether it exceeds our patience."""
    return tally.add(min(ceil(effort * _count_elements(args) / 1000), PATIENCE + 1)) > PATIENCE


def _count_elements(values: tuple[Any, ...]) -> int:
    """Count the elements of all arrays among values and in tuples of them."""
    total = 0
    for value in values:
        if isinstance(value, np.ndarray):
            total += value.size
        elif isinstance(value, tuple):
            total += _count_elements(value)
    return total
