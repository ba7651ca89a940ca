"""The shares of programs in the time of batches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autobatch.arrays import IntArray


class TimeShares:
    """The seconds in batches, divided among the programs at all places by the work of their nodes.

    Args:
        n_places: the maximum number of running programs.
    """

    def __init__(self, n_places: int) -> None:
        self._total, self._before, self._own = 0.0, np.zeros(n_places), np.zeros(n_places)

    def begin(self, place: int) -> None:
        """Start counting for a new program at a place."""
        self._before[place], self._own[place] = self._total, 0.0

    def add(self, owner: IntArray, shares: NDArray[np.float64], seconds: float) -> None:
        """Add the seconds of a run.

        Args:
            owner: the place of the program of each node.
            shares: the seconds for each node.
            seconds: the sum of these seconds.
        """
        self._own += np.bincount(owner, shares, self._own.size)
        self._total += seconds

    def of(self, place: int) -> tuple[float, float]:
        """Return the seconds for nodes of the program at a place, and for nodes of others since it began."""
        own = float(self._own[place])
        return own, self._total - float(self._before[place]) - own
