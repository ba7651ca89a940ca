"""Tell errors of autobatch from those of its users, and say how to report them: a note on the error, which passes."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

from autobatch.errors import AutobatchError
from autobatch.trace.record import WHILE

CHECKERS = "_check", ".checking"
"""End the names of the modules that check what autobatch makes."""


def note_defect(error: Exception, trusted: bool, training: bool, has_aux: bool) -> None:
    """Note on an error how to write the mini-batch to a file, if it is one of autobatch.

    It is none if a program of the user raised it while an instance was recorded, if memory ran out, or if it says what
    the user is to do: all that do are `AutobatchError`, as are those of checkers.

    Args:
        error: raised while a mini-batch was planned or run.
        trusted: whether policy and planner are of autobatch, so that what checkers find is wrong with it.
        training, has_aux: as `autobatch.testing.dump` takes them.
    """
    if isinstance(error, MemoryError) or any(note.startswith(WHILE) for note in getattr(error, "__notes__", ())):
        return
    if isinstance(error, AutobatchError) and not (trusted and _is_of_checker(error)):
        return
    options = ", training=True" * training + ", has_aux=True" * has_aux
    error.add_note(
        f"This looks like an error inside autobatch. To report it, attach the file that ab.testing.dump(function, "
        f'instances, "case.zip"{options}) writes, which holds none of your code.'
    )


def _is_of_checker(error: Exception) -> bool:
    *_, last = _modules(error.__traceback__)
    return last.endswith(CHECKERS)


def _modules(traceback: TracebackType | None) -> Iterator[str]:
    """The modules that an error passed through, that which raised it last."""
    while traceback is not None:
        yield traceback.tb_frame.f_globals.get("__name__", "")
        traceback = traceback.tb_next
