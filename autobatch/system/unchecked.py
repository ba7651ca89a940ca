"""Policies and planners whose results are used unchecked.

Schedules and plans determine the addresses that compiled code reads and writes, so results of users' policies and
planners are checked in every run. Those of the package's own are checked in its tests, and in runs with
`AUTOBATCH_CHECK=1` in the environment.
"""

from __future__ import annotations

from typing import TypeVar

from autobatch._native import is_set

Marked = TypeVar("Marked", bound=type)
_UNCHECKED = set[type]()


def unchecked(kind: Marked) -> Marked:
    """Mark a class, but not its subclasses, as one whose results need no check in runs."""
    _UNCHECKED.add(kind)
    return kind


def is_unchecked(maker: object) -> bool:
    """Return whether results of a policy or planner are used unchecked."""
    return type(maker) in _UNCHECKED


def checking() -> bool:
    """Return whether runs check every structure that they build (`AUTOBATCH_CHECK=1` in the environment)."""
    return is_set("AUTOBATCH_CHECK")
