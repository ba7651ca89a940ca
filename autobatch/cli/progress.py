"""Progress of long work: a bar on a terminal, plain lines at intervals elsewhere.

Compilation is shown too. On a terminal it is shown next to the bar, or in a temporary line without a bar; elsewhere, a
plain line appears for each compilation that begins after compilations have taken a few seconds in total, at most one
every 10 seconds of compiling.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from autobatch.system.background import Compilation, unreported, watch_compilation
from autobatch.system.cache import cache_folder

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.status import Status

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BEFORE_REPORT = 2.0  # of compiling, before a plain line reports it
TEXT_WIDTH = 76  # terminal columns of the text next to the bar
NARROWEST_BAR, WIDEST_BAR = 4, 40


class Progress(ABC):
    """A display of the progress of work."""

    @abstractmethod
    def advance(self, what: str, figures: str) -> None:
        """Count a step; `what` names the current part of the work, `figures` are results to show."""

    @abstractmethod
    def note(self, what: str) -> None:
        """Show the activity before the next step."""

    @abstractmethod
    def say(self, line: str) -> None:
        """Print a permanent line."""


@contextmanager
def show_progress(n_steps: int) -> Iterator[Progress]:
    """Show the progress of `n_steps` steps, as a bar or as lines."""
    if not sys.stdout.isatty():
        with _in_view(_Lines(n_steps)) as lines:
            yield lines
        return
    import rich.progress as rich
    from rich.console import Console

    console = Console()
    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(bar_width=min(max(console.width - TEXT_WIDTH, NARROWEST_BAR), WIDEST_BAR)),
        rich.TextColumn("{task.fields[figures]}"),
        rich.TimeRemainingColumn(compact=True),
    )
    with rich.Progress(*columns, console=console, transient=True) as bar, _in_view(_Bar(bar, n_steps)) as shown:
        yield shown


_shown: list[Progress] = []  # active displays, innermost last


@contextmanager
def _in_view(progress: Progress) -> Iterator[Progress]:
    _shown.append(progress)
    try:
        yield progress
    finally:
        _shown.remove(progress)


@contextmanager
def show_compilation() -> Iterator[None]:
    """Show compilations while the block runs."""
    display = _Compilations()
    with unreported(), watch_compilation(display.begun, display.done):
        yield


class _Compilations:
    """A display of compilations: on a terminal all of them, elsewhere those after some seconds of compiling."""

    def __init__(self) -> None:
        self._console: Console | None = None
        self._status: Status | None = None
        self._next_report = SECONDS_BEFORE_REPORT
        self._seconds = 0.0

    def begun(self, compilation: Compilation) -> None:
        what = f"compiling {compilation.what}"
        if not sys.stdout.isatty():
            if self._seconds >= self._next_report:
                self._next_report = self._seconds + SECONDS_BETWEEN_LINES
                note = "" if cache_folder() is None else " (cached for later runs)"
                click.echo(f"  {what}{note}")
        elif _shown:
            _shown[-1].note(what)
        else:
            self._status = self._get_console().status(what)
            self._status.start()

    def done(self, compilation: Compilation) -> None:
        """Count the time of a finished compilation, and hide it."""
        self._seconds += compilation.seconds
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _get_console(self) -> Console:
        if self._console is None:
            from rich.console import Console

            self._console = Console()
        return self._console


class _Lines(Progress):
    def __init__(self, n_steps: int) -> None:
        self._n_steps = n_steps
        self._n_done = 0
        self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES

    def advance(self, what: str, figures: str) -> None:
        self._n_done += 1
        if time.monotonic() > self._next_line:
            self.say(f"  {what}, {self._n_done / self._n_steps:.0%} done: {figures}")

    def note(self, what: str) -> None:
        if time.monotonic() > self._next_line:
            self.say(f"  {what}")

    def say(self, line: str) -> None:
        click.echo(line)
        self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES


class _Bar(Progress):
    def __init__(self, bar: RichProgress, n_steps: int) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=n_steps, figures="")

    def advance(self, what: str, figures: str) -> None:
        self._bar.update(self._task, advance=1, description=what, figures=figures)

    def note(self, what: str) -> None:
        self._bar.update(self._task, description=what, figures="")
        self._bar.refresh()

    def say(self, line: str) -> None:
        self._bar.console.print(line, markup=False, highlight=False)
