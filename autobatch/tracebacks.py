"""Tracebacks of user errors: keep the user's own lines, and hide those of autobatch.

A deliberate error, or one raised by a user's function, is explained by the user's lines and the message. Public
functions remove the frames of autobatch and of generated code in between, and keep their own. Unexpected internal
errors keep all frames, as do all errors if `AUTOBATCH_TRACEBACK=full` is set.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType, TracebackType

from autobatch.errors import AutobatchError

VARIABLE, FULL = "AUTOBATCH_TRACEBACK", "full"
OWN = os.path.dirname(__file__) + os.sep
GENERATED = ("<generated kernel>", "<kernel ")
BETWEEN = ("contextlib.py", "functools.py", "dataclasses.py")
"""Standard library files whose frames occur between those of autobatch."""
COMMANDS = os.path.join(OWN, "cli") + os.sep
STANDARD = os.path.dirname(os.__file__) + os.sep
INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
LIBRARIES = tuple(f"{folder}{name}{os.sep}" for folder in INSTALLED for name in ("torch", "numpy"))
"""Libraries that users' functions call; other installed packages may be users' own."""
CLICK = tuple(f"{folder}click{os.sep}" for folder in INSTALLED)
"""The library that calls autobatch's commands."""
IN_CELL = "in cell "
MOST_SHOWN = 100  # characters of a source line


def hide_frames(error: BaseException) -> None:
    """Remove the frames of autobatch from the traceback of an error and of its causes."""
    if os.environ.get(VARIABLE) == FULL:
        return
    seen = set[int]()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        if isinstance(one, AutobatchError) or not _is_internal(_last(one.__traceback__)):
            one.__traceback__ = _without_own(one.__traceback__)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def _without_own(traceback: TracebackType | None) -> TracebackType | None:
    kept = [one for one in _each(traceback) if not _is_hidden(one.tb_frame.f_code)]
    made: TracebackType | None = None
    # From the last frame to the first, because each is made with the one that follows.
    for one in reversed(kept):
        made = TracebackType(made, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return made


def _each(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _last(traceback: TracebackType | None) -> CodeType | None:
    code = None
    for one in _each(traceback):
        code = one.tb_frame.f_code
    return code


def _is_own(code: CodeType) -> bool:
    return code.co_filename.startswith((OWN, *GENERATED))


def _is_internal(code: CodeType | None) -> bool:
    """Return whether an error raised by this code is internal; a missing name of `ab` is the user's error."""
    return code is not None and _is_own(code) and code.co_name != "__getattr__"


def _is_hidden(code: CodeType) -> bool:
    file = code.co_filename
    return _is_own(code) or os.path.basename(file) in BETWEEN or any(folder in file for folder in CLICK)


def _is_library(code: CodeType, installed: Sequence[str] = LIBRARIES) -> bool:
    """Return whether code is of the standard library or in one of the folders `installed`."""
    file = code.co_filename
    is_standard = file.startswith((STANDARD, "<frozen ")) and not any(folder in file for folder in INSTALLED)
    return is_standard or any(folder in file for folder in installed)


def users_line(error: BaseException) -> str:
    """Return the user's line that raised an error, as "/home/me/model.py:12, `return x + y`"; "" if unknown.

    This is the innermost user line of the traceback so far, or else that of the nearest caller which is not an
    installed package; there is none above a command of autobatch.
    """
    at = _innermost(error)
    cause = error.__cause__
    while at is None and cause is not None:
        at, cause = _innermost(cause), cause.__cause__
    frame: FrameType | None = sys._getframe(1)
    while at is None and frame is not None and not frame.f_code.co_filename.startswith(COMMANDS):
        if not _is_hidden(frame.f_code) and not _is_library(frame.f_code, INSTALLED):
            at = frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    if at is None:
        return ""
    text = linecache.getline(*at).strip()
    return f"{at[0]}:{at[1]}" + (f", `{text[:MOST_SHOWN]}`" if text else "")


def _innermost(error: BaseException) -> tuple[str, int] | None:
    """Return file and line of the innermost user frame in an error's traceback."""
    at = None
    for one in _each(error.__traceback__):
        code = one.tb_frame.f_code
        if not _is_hidden(code) and not _is_library(code):
            at = code.co_filename, one.tb_lineno
    return at


def in_cell(error: AutobatchError, cell: str, arguments: str) -> AutobatchError:
    """Make the error for a failure in the body of a cell, with the call and the user's line.

    Args:
        arguments: the arguments of the call, with their shapes.
    """
    line = users_line(error)
    at = f", at {line}" if line else ""
    if type(error).__module__.partition(".")[0] != "autobatch":  # a user's subclass may hold more than a message
        error.add_note(f"{IN_CELL}{cell!r}: the call was {cell}({arguments}){at}.")
        return error
    found = _public_class(type(error))(f"{IN_CELL}{cell!r}: {error} The call was {cell}({arguments}){at}.")
    found._line = at
    found.__notes__ = getattr(error, "__notes__", [])
    return found.with_traceback(error.__traceback__)


def note_call(error: Exception, cell: str, arguments: str) -> None:
    """Add a note with the call and the user's line to an error of an eager cell, for the innermost cell only."""
    if not any(note.startswith(IN_CELL) for note in getattr(error, "__notes__", ())):
        line = users_line(error)
        error.add_note(f"{IN_CELL}{cell!r} ({arguments}){line and ' at '}{line}")
    hide_frames(error)


def _public_class(kind: type[AutobatchError]) -> type[AutobatchError]:
    """Find the public error class: the first in `autobatch.errors` in a class's bases, itself included."""
    return next(base for base in kind.__mro__ if base.__module__ == AutobatchError.__module__)
