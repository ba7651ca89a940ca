"""The start times of requests that await values: requests start in groups, so that their first steps are batched.

For example, a translator first reads its sentence word by word. If it starts alone, it runs batches of one row for
these words. A group that starts together runs no more batches than a single request does.
"""

from __future__ import annotations

import numpy as np

SHARE = 1 / 16
"""The rounds between two groups, as a share of the mean number of rounds of a request."""
SMOOTHING = 0.2  # the weight of the last request in the mean number of rounds


class AdmissionWindow:
    """The rule that decides when a group of requests may start, from the mean number of rounds of a request.

    Args:
        n_places: the maximum number of running requests.
    """

    def __init__(self, n_places: int) -> None:
        self._n_rounds, self._last, self._mean = 0, 0, 0.0
        self._born = np.zeros(n_places, np.int64)  # the rounds counted when the request at each place began

    @property
    def is_open(self) -> bool:
        """Return whether requests may begin while others run."""
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
