"""Progress of long work that Python code asks for: a line on a terminal, one output that changes in a notebook.

On a terminal, and where standard error goes elsewhere, `rich` decides what is shown. A notebook gets one output, which
is replaced a few times per second and holds the last line in the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from html import escape
from time import monotonic
from typing import Any, TypeVar

T = TypeVar("T")
SECONDS_APART = 0.2  # between two changes of an output


def in_notebook() -> bool:
    """Say whether this code runs in the kernel of a notebook."""
    interactive: Any = sys.modules.get("IPython")
    shell = None if interactive is None else interactive.get_ipython()
    return getattr(shell, "kernel", None) is not None


@contextmanager
def show_status(what: str) -> Iterator[Callable[[str], None]]:
    """Show what is being done; gives the function that replaces the line."""
    if in_notebook():
        with _show_output() as show:
            yield lambda line: show(line, None)
        return
    from rich.console import Console

    with Console(stderr=True).status(what) as status:
        yield status.update


def track(items: Iterable[T], what: str, n_items: int) -> Iterator[T]:
    """Give the items, and show how many were taken."""
    if not in_notebook():
        from rich.console import Console
        from rich.progress import track as track_by_rich

        yield from track_by_rich(items, what, total=n_items, console=Console(stderr=True))
        return
    with _show_output() as show:
        for n_taken, item in enumerate(items):
            show(f"{what}: {n_taken} of {n_items}", n_taken / n_items)
            yield item
        show(f"{what}: {n_items} of {n_items}", 1.0)


@contextmanager
def _show_output() -> Iterator[Callable[[str, float | None], None]]:
    """Make an output of a notebook; gives the function that replaces it by a line, and by a bar for a share of 1."""
    from IPython.display import display

    shown: dict[str, str] = {}
    handle: Any = None
    next_change = 0.0

    def show(line: str, share: float | None) -> None:
        nonlocal shown, handle, next_change
        bar = "" if share is None else f'<progress value="{share:.3f}"></progress> '
        shown = {"text/plain": line, "text/html": f"<div>{bar}{escape(line)}</div>"}
        if handle is None:
            handle = display(shown, raw=True, display_id=True)
        elif monotonic() >= next_change:
            handle.update(shown, raw=True)
            next_change = monotonic() + SECONDS_APART

    try:
        yield show
    finally:
        if handle is not None:
            handle.update(shown, raw=True)
