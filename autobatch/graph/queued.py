"""Define mini-batches that know which ones follow, so that these can be planned while one runs."""

from __future__ import annotations

from collections import deque
from typing import Any


class QueuedBatch(list[Any]):
    """A mini-batch of an iterator that has already fetched the next ones. Copies and pickles are plain lists.

    Attributes:
        following: the next mini-batches, in order; changes as the iterator advances.
        plans: the plans begun ahead of the run (see `autobatch.engine.ahead`), by the planning object and the purpose;
            and, by recorder, graphs from other processes with their conversions to this process.
    """

    __slots__ = ("following", "plans")

    def __init__(self, instances: Any, following: deque[QueuedBatch]) -> None:
        super().__init__(instances)
        self.following, self.plans = following, dict[Any, Any]()

    def shared(self) -> QueuedBatch:
        """Return a copy with the same plans."""
        twin = QueuedBatch(self, self.following)
        twin.plans = self.plans
        return twin

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return list, ([*self],)
