"""When requests that await values begin: some together, so that what they have in common at first is batched.

A translator reads its sentence first, word by word. One that begins alone runs a batch of one row for each word, in
every round in which another begins; a group of them runs no more batches than one.
"""

from __future__ import annotations

import numpy as np

SHARE = 1 / 16
"""Of the rounds of a request: as many lie between two groups."""
SMOOTHING = 0.2  # of the mean number of rounds: the weight of the last request


class Gathering:
    """Counts rounds, and those of requests.

    Args:
        n_places: how many requests run at a time.
    """

    def __init__(self, n_places: int) -> None:
        self._n_rounds, self._last, self._mean = 0, 0, 0.0
        self._born = np.zeros(n_places, np.int64)  # the rounds before the request at each place

    @property
    def is_open(self) -> bool:
        """Whether requests may begin while others run."""
        return self._n_rounds - self._last >= SHARE * self._mean

    def count_round(self) -> None:
        """Count a round."""
        self._n_rounds += 1

    def begin(self, place: int) -> None:
        """Note that a request begins."""
        self._born[place] = self._last = self._n_rounds

    def end(self, place: int) -> None:
        """Note that a request has ended."""
        self._mean += SMOOTHING * (self._n_rounds - int(self._born[place]) - self._mean)
