"""Interrupt functions at each place where Ctrl-C may do so."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import FrameType, FunctionType
from typing import Any


def interrupts(function: Any, run: Callable[[], Any]) -> Iterator[BaseException | None]:
    """Yield the errors of runs that are interrupted once, after each call of a function's body in turn.

    Python handles signals after calls. Backward jumps, where it also does, are left out; for the starts of functions,
    see `interrupts_at_starts`.
    """
    assert isinstance(function, FunctionType)
    code, found = function.__code__, list(dis.get_instructions(function))
    for before, after in pairwise(found):
        if before.opname.startswith("CALL"):
            yield _interrupted(code, after.offset, run)


def interrupts_at_starts(folder: str, run: Callable[[], Any]) -> Iterator[BaseException]:
    """Yield the errors of runs that are interrupted once, at the start of each call of a function in turn.

    Args:
        folder: the folder of the functions.
    """
    n_before = 0
    while (error := _interrupted_at_start(folder, n_before, run)) is not None:
        yield error
        n_before += 1


def _interrupted_at_start(folder: str, n_before: int, run: Callable[[], Any]) -> BaseException | None:
    """Run with an interrupt at the start of one call; return the error, or None if fewer calls are made.

    Args:
        n_before: number of calls before that one.
    """
    left = n_before + 1

    def trace(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt

    return _error_of(run, trace)


def _interrupted(code: Any, offset: int, run: Callable[[], Any]) -> BaseException | None:
    """Run with an interrupt before an instruction; return the error, None if the instruction is not reached."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is not code:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti == offset:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    return _error_of(run, trace)


def _error_of(run: Callable[[], Any], trace: Callable[..., Any]) -> BaseException | None:
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    except BaseException as error:
        return error
    finally:
        sys.settrace(before)
    return None
