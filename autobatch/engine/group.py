"""The group of processes that this thread has entered: `autobatch.distributed` has them, `value_and_grad` asks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from autobatch.params.gradients import Gradients

if TYPE_CHECKING:
    from autobatch.api import Batched
    from autobatch.engine.counts import Clock
    from autobatch.engine.losses import LateLosses


class Exchange(Protocol):
    """Adds up what all processes have computed in one call."""

    def add(self, value: np.generic, grads: Gradients, clock: Clock) -> np.generic:
        """Give the sum of the values, after the gradients of all were added to these."""

    def add_late(self, losses: LateLosses, grads: Gradients, clock: Clock) -> Callable[[], np.generic]:
        """The same for losses on a device; what is given waits for them.

        It raises a NumericError where a loss of another process is not finite.
        """


class Group(Protocol):
    """Processes that train together.

    Attributes:
        rank: the number of this process; size: how many there are.
    """

    rank: int
    size: int

    def value_and_grad(self, loss: Batched, instances: Iterable[Any], *options: Any) -> Any:
        """Call `loss.value_and_grad` with the share that this process has of a mini-batch; `options` are its others."""


class _Entered(threading.local):
    group: Group | None = None


_ENTERED = _Entered()


def entered_group() -> Group | None:
    """The group that this thread has entered; None outside of any."""
    return _ENTERED.group


@contextmanager
def entering(group: Group) -> Iterator[None]:
    """Within the context, this thread is in a group."""
    before, _ENTERED.group = _ENTERED.group, group
    try:
        yield
    finally:
        _ENTERED.group = before
