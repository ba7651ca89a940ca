"""Hooks for the time of a trace: they report attributes that are read, and functions that are called."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

HEAP_TYPE, IMMUTABLE = 1 << 9, 1 << 8  # flags in `type.__flags__`: made while Python runs; of fixed attributes


class Listener(Protocol):
    """Gets a report of each attribute that is read.

    Attributes:
        busy: whether the listener itself is reading; its own reads are not reported.
    """

    busy: bool

    def read(self, owner: Any, name: str, value: Any) -> Any:
        """Take the report of a read attribute; the reader gets what this returns."""

    def lacks(self, owner: Any, name: str) -> None:
        """Take the report of a missing attribute."""

    def follow(self, value: Any, text: str) -> Any:
        """Take the report of something that is read otherwise; the reader gets what this returns."""


class _Listening(threading.local):
    """The listener of this thread."""

    current: Listener | None = None


LISTENING = _Listening()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within the context, report reads of attributes of hooked classes in this thread to `listener`."""
    before, LISTENING.current = LISTENING.current, listener
    try:
        yield
    finally:
        LISTENING.current = before


@contextmanager
def hearing(hear: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    """Within the context, report all calls in this thread; a profiler is paused meanwhile."""
    before = sys.getprofile()
    sys.setprofile(hear)
    try:
        yield
    finally:
        enable = getattr(before, "enable", None)  # cProfile's profiler cannot be set again by sys.setprofile
        if enable is None:
            sys.setprofile(before)
        else:
            sys.setprofile(None)
            enable()


@contextmanager
def unheard() -> Iterator[None]:
    """Within the context, report nothing in this thread: no body is running, but what stands for a library's ops."""
    hear, listener = sys.getprofile(), LISTENING.current
    sys.setprofile(None)
    LISTENING.current = None
    try:
        yield
    finally:
        LISTENING.current = listener
        sys.setprofile(hear)


@contextmanager
def hooked(kind: type) -> Iterator[None]:
    """Within the context, report reads of attributes of this class's instances."""
    own = vars(kind).get("__getattribute__")
    type.__setattr__(kind, "__getattribute__", _telling(type.__getattribute__(kind, "__getattribute__")))
    try:
        yield
    finally:
        if own is None:
            type.__delattr__(kind, "__getattribute__")
        else:
            type.__setattr__(kind, "__getattribute__", own)


def _telling(original: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """`__getattribute__` that reports to the listener of its thread."""

    def __getattribute__(self: Any, name: str) -> Any:
        listener = LISTENING.current
        if listener is None or listener.busy or (name.startswith("__") and name != "__dict__"):
            return original(self, name)
        try:
            value = original(self, name)
        except AttributeError:
            if not hasattr(type(self), "__getattr__"):
                listener.lacks(self, name)
            raise
        return listener.read(self, name, value)

    return __getattribute__
