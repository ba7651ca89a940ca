"""Shares: the instances of a mini-batch that one of several processes computes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Share(list[Any]):
    """A list of instances of a mini-batch, which knows where in it they are.

    Args:
        instances: of this share.
        positions: of each in the mini-batch; the random numbers of an instance that is recorded with the share depend
            on its position.
        size: instances in the whole mini-batch.
        digest: of the whole mini-batch: equal where it is the same one.
    """

    def __init__(self, instances: Iterable[Any], positions: Iterable[int], size: int, digest: bytes = b"") -> None:
        super().__init__(instances)
        self.positions: NDArray[np.int64] = np.fromiter(positions, np.int64)
        self.size, self.digest = size, digest
