"""Tell internal errors of autobatch from errors of its users, and add a note that says how to report them."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

from autobatch.errors import AutobatchError
from autobatch.trace.record import WHILE

CHECKERS = "_check", ".checking"
"""Suffixes of the names of the modules that check graphs, schedules, plans and kernels."""


def note_defect(error: Exception, built_in: bool, training: bool, has_aux: bool) -> None:
    """Add a note to an internal error that says how to write the mini-batch to a file.

    An error is not internal if a program of the user raised it while an instance was recorded, if memory ran out, or
    if it is an `AutobatchError`, which tells the user what to do. Checkers raise `AutobatchError` too; theirs are
    internal if policy and planner are built in.

    Args:
        error: an error raised while a mini-batch was planned or run.
        built_in: whether policy and planner are built in.
        training, has_aux: the arguments of `autobatch.testing.dump`.
    """
    if isinstance(error, MemoryError) or any(note.startswith(WHILE) for note in getattr(error, "__notes__", ())):
        return
    if isinstance(error, AutobatchError) and not (built_in and _is_of_checker(error)):
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
    """Yield the names of the modules that an error passed through; the last one raised it."""
    while traceback is not None:
        yield traceback.tb_frame.f_globals.get("__name__", "")
        traceback = traceback.tb_next
