"""Progress of long work: a line on a terminal, or one changing output in a notebook.

Outside notebooks, `rich` writes to standard error. A notebook output is replaced a few times per second, and shows the
last line at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from html import escape
from time import monotonic
from typing import Any, TypeVar

T = TypeVar("T")
SECONDS_APART = 0.2  # between changes of an output


def in_notebook() -> bool:
    """Return whether this code runs in a notebook kernel."""
    interactive: Any = sys.modules.get("IPython")
    shell = None if interactive is None else interactive.get_ipython()
    return getattr(shell, "kernel", None) is not None


@contextmanager
def show_status(what: str) -> Iterator[Callable[[str], None]]:
    """Show a status line while the block runs; yield a function that replaces its text."""
    if in_notebook():
        with _show_output() as show:
            yield lambda line: show(line, None)
        return
    from rich.console import Console

    with Console(stderr=True).status(what) as status:
        yield status.update


def track(items: Iterable[T], what: str, n_items: int) -> Iterator[T]:
    """Yield the items, and show how many of `n_items` have been taken."""
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
    """Make a notebook output; yield a function that replaces it by a line and, given a fraction done, a bar."""
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
        # The last line may have come too early after the one before to be shown.
        if handle is not None:
            handle.update(shown, raw=True)
