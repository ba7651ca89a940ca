"""Tell whether Python's `isinstance` or torch's C++ code reads the class of a recorded value.

Python sees a recorded value as a `torch.Tensor`: `isinstance` and `match` patterns read `value.__class__`. Torch's C++
code reads `__class__` in the same way, believes it and reads the tensor's memory, so `torch.arange(value)` would crash
the process. Only the calling Python instruction tells the two apart. The tensor class is therefore reported to
`isinstance(...)`, `match` and `x.__class__`, and to nothing else.

The position of a call in the source is where the name of the function begins, so the instruction that loads the
function is the one that begins at the same position.
"""

from __future__ import annotations

import builtins
import dis
from types import CodeType, FrameType
from typing import Any, NamedTuple

from autobatch.errors import GraphError

ASKING = (isinstance, getattr, dir)
"""Builtins that read the class on Python's behalf."""
BETWEEN = ("PRECALL", "PUSH_NULL", "KW_NAMES", "EXTENDED_ARG", "CACHE")
"""Instructions that belong to a call and occur between its parts."""
ITERATING = ("FOR_ITER", "LIST_EXTEND", "SET_UPDATE", "UNPACK_SEQUENCE", "UNPACK_EX", "CALL_INTRINSIC_1")
"""Instructions that run an iterator, which may be a `map` of anything."""


class Place(NamedTuple):
    """An instruction.

    Attributes:
        code: its code object; kept alive, because its `id` identifies it.
        asks: whether it reads the class regardless of the callee; None if unknown.
        load, name: how the called function is loaded, and its name; "" unless it is called by a plain name.
    """

    code: CodeType
    asks: bool | None
    load: str = ""
    name: str = ""


PLACES: dict[tuple[int, int], Place] = {}


def asks_for_class(frame: FrameType) -> bool:
    """Whether the current instruction of a frame, which led to a read of `__class__`, reads it for Python.

    Raises:
        GraphError: undecidable, because the read comes from a builtin such as `map`.
    """
    key = id(frame.f_code), frame.f_lasti
    place = PLACES.get(key)
    if place is None:
        place = PLACES[key] = _place_of(frame.f_code, frame.f_lasti)
    asks = place.asks
    if place.name:
        called = _called(frame, place)
        asks = True if called in ASKING else None if getattr(builtins, place.name, None) is called else False
    if asks is None:
        raise GraphError(
            "a builtin such as map checks the class of a recorded value, for isinstance or for torch itself; call "
            "isinstance(value, torch.Tensor) in a loop or a comprehension."
        )
    return asks


def _called(frame: FrameType, place: Place) -> Any:
    """Return the function that an instruction calls by a plain name."""
    if place.load != "LOAD_GLOBAL" and place.name in (found := frame.f_locals):
        return found[place.name]
    if place.name in frame.f_globals:
        return frame.f_globals[place.name]
    return frame.f_builtins.get(place.name)


def _place_of(code: CodeType, at: int) -> Place:
    *before, now = (x for x in dis.get_instructions(code) if x.offset <= at)
    if not now.opname.startswith(("CALL", "PRECALL")):
        asks = now.opname == "MATCH_CLASS" or (now.opname == "LOAD_ATTR" and now.argval == "__class__")
        return Place(code, None if now.opname in ITERATING else asks)
    begin = _begin(now)
    if begin is None and isinstance.__name__ in code.co_names:
        raise GraphError(
            f"{code.co_qualname} calls isinstance, but its code has no positions, by which isinstance is told from "
            f"calls of torch; run Python without -X no_debug_ranges."
        )
    called = [x for x in before if _begin(x) == begin and x.opname not in BETWEEN]
    load, name = (called[-1].opname, called[-1].argval) if called else ("", "")
    if load in ("LOAD_ATTR", "LOAD_METHOD"):
        return Place(code, name == isinstance.__name__)
    return Place(code, False, load, name) if load.startswith("LOAD_") and isinstance(name, str) else Place(code, False)


def _begin(instruction: dis.Instruction) -> tuple[int, int] | None:
    """Return the source line and column where an instruction begins; None if unknown."""
    at = instruction.positions
    return None if at is None or at.lineno is None or at.col_offset is None else (at.lineno, at.col_offset)
