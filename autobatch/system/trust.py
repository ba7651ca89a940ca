"""Which policies and planners are trusted: the package's own. Results of all others are checked in every run.

Schedules and plans say where compiled code reads and writes. Those that the package's own policies and planners make
are checked in its tests, and in every run where the environment has `AUTOBATCH_CHECK=1`.
"""

from __future__ import annotations

from typing import TypeVar

from autobatch._native import is_set

Marked = TypeVar("Marked", bound=type)
_TRUSTED = set[type]()


def trusted(kind: Marked) -> Marked:
    """Mark a class whose results need no check in runs; classes derived from it are not marked."""
    _TRUSTED.add(kind)
    return kind


def is_trusted(maker: object) -> bool:
    """Whether what this policy or planner returns is believed."""
    return type(maker) in _TRUSTED


def checking() -> bool:
    """Say whether runs check every structure they build: the environment has `AUTOBATCH_CHECK=1`."""
    return is_set("AUTOBATCH_CHECK")
