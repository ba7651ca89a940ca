"""Hooks for the time of a trace: they report attributes that are read, and functions that are called."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import currentframe
from types import CodeType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from _lsprof import Profiler as Profile

HEAP_TYPE, IMMUTABLE = 1 << 9, 1 << 8  # flags in `type.__flags__`: made while Python runs; of fixed attributes
LOOKUPS: dict[CodeType, tuple[str, ...]] = {}
"""By the code of the `__getattr__` of a library's class: the attributes in which it looks, of all in `__dict__`."""
REPLACED = set[str]()
"""Attributes of library objects that recordings set, and that do not affect what a body computes."""


class Unheard(Exception):
    """The body called a function that its earlier traces had not called, or its calls cannot be counted."""


class _Listening(threading.local):
    """What gets the reports of this thread: a `ReadTracker`, or None."""

    current: Any = None


LISTENING = _Listening()


@contextmanager
def listening(tracker: Any, calls: bool = True) -> Iterator[None]:
    """Within the context, report what this thread reads and calls to `tracker`; None: report nothing.

    A profiler is paused meanwhile.

    Args:
        calls: whether to report calls too.
    """
    before, profiler = LISTENING.current, cast(Any, sys.getprofile())
    LISTENING.current = tracker
    sys.setprofile(tracker.hear if tracker is not None and calls else None)
    try:
        yield
    finally:
        sys.setprofile(None)
        LISTENING.current = before
        if hasattr(profiler, "enable"):  # cProfile's profiler cannot be set again by sys.setprofile
            profiler.enable()
        else:
            sys.setprofile(profiler)


@contextmanager
def counted() -> Iterator[Profile]:
    """Context manager that counts calls of Python functions, in C code, which is cheaper than reporting them."""
    from _lsprof import Profiler as Profile

    counter = Profile(subcalls=False, builtins=False)
    try:
        counter.enable()
    except ValueError:  # another profiler is active, which Python 3.12 and later refuse
        raise Unheard from None
    try:
        yield counter
    finally:
        counter.disable()


unheard = partial(listening, None)
"""Within the context, no body is running, but what stands for a library's ops."""


@contextmanager
def hooked(kind: type) -> Iterator[None]:
    """Within the context, report reads of attributes of this class's instances."""
    own = vars(kind).get("__getattribute__")
    type.__setattr__(kind, "__getattribute__", _reporting(type.__getattribute__(kind, "__getattribute__")))
    try:
        yield
    finally:
        if own is None:
            type.__delattr__(kind, "__getattribute__")
        else:
            type.__setattr__(kind, "__getattribute__", own)


def _reporting(original: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """`__getattribute__` that reports to the `ReadTracker` of its thread."""

    def __getattribute__(self: Any, name: str) -> Any:
        tracker = LISTENING.current
        if tracker is None or tracker.busy or (name[:2] == "__" and name != "__dict__"):
            return original(self, name)
        try:
            value = original(self, name)
        except AttributeError:
            if not hasattr(type(self), "__getattr__"):
                tracker.lacks(self, name)
            raise
        if name != "__dict__":
            place = id(self), name
            if place in tracker.given and (given := tracker.given[place])[1] is value:
                return given[2]
            return tracker.read(self, name, value)
        frame: Any = currentframe()
        tracker.read_own(self, value, LOOKUPS.get(frame.f_back.f_code, value))
        return value

    return __getattribute__
