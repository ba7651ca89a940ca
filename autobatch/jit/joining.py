"""Join arrays in compiled code: each array that it returns to Python takes half a microsecond."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autobatch.jit.loops import compiled


@compiled
def join_longs(parts: tuple[NDArray[np.int64], ...], n_numbers: int) -> NDArray[np.int64]:
    """Join arrays: `n_numbers` numbers, of which the last say where each of them ends; then the arrays.

    The numbers before these are the caller's to write.
    """
    end = n_numbers
    for part in parts:
        end += part.size
    joined = np.empty(end, np.int64)
    first, end = n_numbers - len(parts), n_numbers
    for part in parts:
        for number in part:
            joined[end] = number
            end += 1
        joined[first] = end
        first += 1
    return joined
