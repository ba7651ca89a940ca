"""The group of processes that this thread has entered: `autobatch.distributed` has them, `value_and_grad` asks."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Group(Protocol):
    """Processes that train together.

    Attributes:
        rank: the number of this process; size: how many there are.
    """

    rank: int
    size: int

    def value_and_grad(self, loss: Any, instances: Iterable[Any], options: Any) -> Any:
        """Call `value_and_grad` of a `Batched` with a share of a mini-batch, and its `GradientRequest`."""


class Entered(threading.local):
    """What this thread has entered.

    Attributes:
        group: None outside of any.
    """

    group: Group | None = None


ENTERED = Entered()


@contextmanager
def entering(group: Group) -> Iterator[None]:
    """Within the context, this thread is in a group."""
    before, ENTERED.group = ENTERED.group, group
    try:
        yield
    finally:
        ENTERED.group = before
