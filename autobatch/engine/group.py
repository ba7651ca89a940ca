"""The group of processes that this thread has entered: `autobatch.distributed` has them, `value_and_grad` asks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from autobatch.params.gradients import Gradients
from autobatch.params.sparse_rows import Gradient

if TYPE_CHECKING:
    from autobatch.engine.counts import Clock
    from autobatch.engine.losses import LateLosses


class Exchange(Protocol):
    """Adds up what all processes have computed in one call."""

    def add(self, value: np.generic, grads: dict[str, Gradient], clock: Clock) -> np.generic:
        """Give the sum of the values, and add to the gradients those of the others."""

    def add_late(self, losses: LateLosses, grads: dict[str, Gradient], clock: Clock) -> Callable[[], np.generic]:
        """The same for losses on a device; what is given waits for them.

        It raises a NumericError where a loss of another process is not finite.
        """

    def add_nothing(
        self, dtype: np.dtype[Any], names: Sequence[str], zeros: Callable[[Collection[str]], Gradients], clock: Clock
    ) -> tuple[np.generic, dict[str, Gradient]]:
        """The value and the gradients of the others, where this process has no instance.

        Args:
            dtype: of the value; names: of the gradients.
            zeros: makes them, given the names of those that are `Rows`.
        """


class Group(Protocol):
    """Processes that train together.

    Attributes:
        rank: the number of this process; size: how many there are.
    """

    rank: int
    size: int

    def value_and_grad(self, loss: Any, instances: Iterable[Any], options: Any) -> Any:
        """Call `value_and_grad` of a `Batched` with a share of a mini-batch, and its `GradientOptions`."""


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
