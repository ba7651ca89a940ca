"""Hooks that report attribute reads and function calls during a trace."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from inspect import currentframe
from types import CodeType
from typing import Any, cast

from autobatch._native import CallListener

IMMUTABLE = 1 << 8  # flag in `type.__flags__`: with fixed attributes
LOOKUPS: dict[CodeType, tuple[str, ...]] = {}
"""By the code of the `__getattr__` of a library's class, the dicts in `__dict__` in which it looks."""
REPLACED = set[str]()
"""Attributes of library objects that recordings set, and that do not affect the results of a body."""


class _Listening(threading.local):
    """The receiver of the reports of this thread: a `ReadTracker`, or None."""

    current: Any = None


LISTENING = _Listening()


@contextmanager
def listening(tracker: Any) -> Iterator[None]:
    """Report the reads and calls of this thread to `tracker` within the context; None: report nothing.

    An active profiler is paused meanwhile.
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
"""Report nothing within the context, where the implementation of a library's op runs instead of a body."""


@contextmanager
def hooked(kind: type, silent: Collection[str] = (), announces: bool = False) -> Iterator[None]:
    """Report attribute reads of a class's instances within the context, except the `silent` attributes.

    Args:
        announces: whether to report new instances too, such as slices of a `ModuleList`.
    """
    # `type.__setattr__` avoids a metaclass's own, which might refuse. Attributes that the class inherits (None here)
    # are deleted again at the end.
    before = {name: vars(kind).get(name) for name in ("__getattribute__", "__init__")}
    type.__setattr__(kind, "__getattribute__", _reporting(type.__getattribute__(kind, "__getattribute__"), silent))
    if announces:
        type.__setattr__(kind, "__init__", _announcing(type.__getattribute__(kind, "__init__")))
    try:
        yield
    finally:
        for name, own in before.items():
            if own is not None:
                type.__setattr__(kind, name, own)
            elif name in vars(kind):
                type.__delattr__(kind, name)


def _looked_up_in(kind: type) -> tuple[str, ...] | None:
    """Return the dicts in which the `__getattr__` of a class looks: () without a `__getattr__`, None if unknown."""
    function = getattr(kind, "__getattr__", None)
    return () if function is None else LOOKUPS.get(getattr(function, "__code__", None))  # type: ignore[arg-type]


def _announcing(original: Callable[..., None]) -> Callable[..., None]:
    """Make an `__init__` that reports the object to the `ReadTracker` of its thread."""

    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if LISTENING.current is not None:
            LISTENING.current.made(self)
        original(self, *args, **kwargs)

    return __init__


def _reporting(original: Callable[[Any, str], Any], silent: Collection[str]) -> Callable[[Any, str], Any]:
    """Make a `__getattribute__` that reports to the `ReadTracker` of its thread."""

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
        # A known `__getattr__` looks only in some of the dicts; any other reader of `__dict__` may take all of its
        # names.
        reader = cast(Any, currentframe()).f_back
        tracker.read_own(self, value, LOOKUPS.get(reader.f_code, value), reader.f_globals.get("__name__"))
        return value

    return __getattribute__
