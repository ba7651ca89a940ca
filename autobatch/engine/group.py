"""Track the group of processes that each thread has entered: `autobatch.distributed` sets it for `value_and_grad`."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Group(Protocol):
    """Processes that train together.

    Attributes:
        rank: the number of this process.
        size: the number of processes.
    """

    rank: int
    size: int

    def value_and_grad(self, loss: Any, instances: Iterable[Any], options: Any) -> Any:
        """Call `value_and_grad` of a `Batched` with a share of the mini-batch and a `GradientRequest`."""


class Entered(threading.local):
    """The group of each thread.

    Attributes:
        group: the group that this thread has entered, or None.
    """

    group: Group | None = None


ENTERED = Entered()


@contextmanager
def entering(group: Group) -> Iterator[None]:
    """Enter a group for this thread, for the duration of the context."""
    before, ENTERED.group = ENTERED.group, group
    try:
        yield
    finally:
        ENTERED.group = before
