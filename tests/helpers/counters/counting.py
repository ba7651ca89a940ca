"""Count the calls and lines of a function, so that tests of costs do not depend on the clock."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from cProfile import Profile
from pathlib import Path
from pstats import Stats
from types import FrameType
from typing import Any

import autobatch


def count_calls(function: Callable[..., Any], *args: Any) -> int:
    """Count the calls of Python and C functions during a call, itself included."""
    profile = Profile()
    profile.runcall(function, *args)
    return int(Stats(profile).total_calls)  # type: ignore[attr-defined]


def count_lines(function: Callable[..., Any], *args: Any) -> int:
    """Count the lines of autobatch that a call executes."""
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if not frame.f_globals.get("__name__", "").startswith("autobatch."):
            return None
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*args)
    finally:
        sys.settrace(before)
    return lines


def files_entered(function: Callable[..., Any], *args: Any) -> Counter[str]:
    """Count the calls of Python functions of autobatch by file."""
    return Counter(files_in_order(function, *args))


def files_in_order(function: Callable[..., Any], *args: Any) -> list[str]:
    """Return the file of each call of a Python function of autobatch, in order."""
    entered, root = list[str](), str(Path(autobatch.__file__).parent)

    def hear(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(root):
            entered.append(frame.f_code.co_filename.removeprefix(root))

    before = sys.getprofile()
    sys.setprofile(hear)
    try:
        function(*args)
    finally:
        sys.setprofile(before)
    return entered


def count_python_calls(function: Callable[..., Any], *args: Any) -> int:
    """Count the calls of Python functions, also of other modules, during a call."""
    calls = 0

    def hear(_: FrameType, event: str, __: Any) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(hear)
    try:
        function(*args)
    finally:
        sys.setprofile(before)
    return calls
