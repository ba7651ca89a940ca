"""Progress of long work: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

SECONDS_BETWEEN_LINES = 10.0
TEXT_WIDTH = 76  # columns of a terminal that the text beside the bar takes
NARROWEST_BAR, WIDEST_BAR = 4, 40


class Progress(ABC):
    """Shows how far the work is."""

    @abstractmethod
    def advance(self, what: str, figures: str) -> None:
        """Say that one more step is done; `what` names the part of the work, `figures` how it goes."""

    @abstractmethod
    def say(self, line: str) -> None:
        """Print a line that stays."""


@contextmanager
def show_progress(n_steps: int) -> Iterator[Progress]:
    """Show `n_steps` steps of work, in the way that standard output can."""
    if not sys.stdout.isatty():
        yield _Lines(n_steps)
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
    with rich.Progress(*columns, console=console, transient=True) as bar:
        yield _Bar(bar, n_steps)


class _Lines(Progress):
    def __init__(self, n_steps: int) -> None:
        self._n_steps = n_steps
        self._n_done = 0
        self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES

    def advance(self, what: str, figures: str) -> None:
        self._n_done += 1
        if time.monotonic() > self._next_line:
            self.say(f"  {what}, {self._n_done / self._n_steps:.0%} of all: {figures}")

    def say(self, line: str) -> None:
        click.echo(line)
        self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES


class _Bar(Progress):
    def __init__(self, bar: RichProgress, n_steps: int) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=n_steps, figures="")

    def advance(self, what: str, figures: str) -> None:
        self._bar.update(self._task, advance=1, description=what, figures=figures)

    def say(self, line: str) -> None:
        self._bar.console.print(line, markup=False, highlight=False)
