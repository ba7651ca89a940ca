"""Interrupt a function at each place where Ctrl-C may do so."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import FrameType, FunctionType
from typing import Any


def interrupts(function: Any, run: Callable[[], Any]) -> Iterator[BaseException | None]:
    """Yield the errors of runs that are interrupted once, after each call of a function's body in turn.

    Python handles signals after calls. Backward jumps and the starts of functions, where it also does, are left out.
    """
    assert isinstance(function, FunctionType)
    code, found = function.__code__, list(dis.get_instructions(function))
    for before, after in pairwise(found):
        if before.opname.startswith("CALL"):
            yield _interrupted(code, after.offset, run)


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

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    except BaseException as error:
        return error
    finally:
        sys.settrace(before)
    return None
