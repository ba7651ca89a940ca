"""Hooks for the time of a trace: they report attributes that are read, and functions that are called."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import currentframe
from types import CodeType
from typing import Any, cast

from autobatch._native import CallListener

HEAP_TYPE, IMMUTABLE = 1 << 9, 1 << 8  # flags in `type.__flags__`: made while Python runs; of fixed attributes
LOOKUPS: dict[CodeType, tuple[str, ...]] = {}
"""By the code of the `__getattr__` of a library's class: the attributes in which it looks, of all in `__dict__`."""
REPLACED = set[str]()
"""Attributes of library objects that recordings set, and that do not affect what a body computes."""


class _Listening(threading.local):
    """What gets the reports of this thread: a `ReadTracker`, or None."""

    current: Any = None


LISTENING = _Listening()


@contextmanager
def listening(tracker: Any) -> Iterator[None]:
    """Within the context, report what this thread reads and calls to `tracker`; None: report nothing.

    A profiler is paused meanwhile.
    """
    before, profiler = LISTENING.current, cast(Any, sys.getprofile())
    LISTENING.current = tracker
    sys.setprofile(None)
    if tracker is not None:
        CallListener(tracker.hear, tracker.hear_builtin).enable()
    try:
        yield
    finally:
        sys.setprofile(None)
        LISTENING.current = before
        if hasattr(profiler, "enable"):  # a profiler written in C cannot be set again by sys.setprofile
            profiler.enable()
        else:
            sys.setprofile(profiler)


unheard = partial(listening, None)
"""Within the context, no body is running, but what stands for a library's ops."""


@contextmanager
def hooked(kind: type, silent: Collection[str] = ()) -> Iterator[None]:
    """Within the context, report reads of attributes of this class's instances, except the `silent` ones."""
    own = vars(kind).get("__getattribute__")
    type.__setattr__(kind, "__getattribute__", _reporting(type.__getattribute__(kind, "__getattribute__"), silent))
    try:
        yield
    finally:
        if own is None:
            type.__delattr__(kind, "__getattribute__")
        else:
            type.__setattr__(kind, "__getattribute__", own)


def _looked_up_in(kind: type) -> tuple[str, ...] | None:
    """Name the dicts in which the `__getattr__` of a class looks: none without a `__getattr__`, None if unknown."""
    function = getattr(kind, "__getattr__", None)
    return () if function is None else LOOKUPS.get(getattr(function, "__code__", None))  # type: ignore[arg-type]


def _reporting(original: Callable[[Any, str], Any], silent: Collection[str]) -> Callable[[Any, str], Any]:
    """`__getattribute__` that reports to the `ReadTracker` of its thread."""

    def __getattribute__(self: Any, name: str) -> Any:
        tracker = LISTENING.current
        if tracker is None or tracker.busy or name in silent or (name[:2] == "__" and name != "__dict__"):
            return original(self, name)
        try:
            value = original(self, name)
        except AttributeError:
            tracker.lacks(self, name, _looked_up_in(type(self)))
            raise
        if name != "__dict__":
            given = tracker.given.get((id(self), name))
            return given[2] if given is not None and given[1] is value else tracker.read(self, name, value)
        reader = cast(Any, currentframe()).f_back
        tracker.read_own(self, value, LOOKUPS.get(reader.f_code, value), reader.f_globals.get("__name__"))
        return value

    return __getattribute__
