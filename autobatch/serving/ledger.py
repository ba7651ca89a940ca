"""Who had how much of the time in batches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autobatch.arrays import IntArray


class Ledger:
    """Seconds in batches, which the programs at some places share by the work of their nodes.

    Args:
        n_places: how many programs run at a time.
    """

    def __init__(self, n_places: int) -> None:
        self._total, self._before, self._own = 0.0, np.zeros(n_places), np.zeros(n_places)

    def begin(self, place: int) -> None:
        """Begin to count for another program at a place."""
        self._before[place], self._own[place] = self._total, 0.0

    def add(self, owner: IntArray, shares: NDArray[np.float64], seconds: float) -> None:
        """Add seconds that nodes took.

        Args:
            owner: the place of the program of each node; shares: the seconds for each node.
        """
        self._own += np.bincount(owner, shares, self._own.size)
        self._total += seconds

    def of(self, place: int) -> tuple[float, float]:
        """The seconds for nodes of the program at a place, and for those of others since it began."""
        own = float(self._own[place])
        return own, self._total - float(self._before[place]) - own
