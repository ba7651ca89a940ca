"""Types of arrays of numbers, their addresses, and arrays that begin at cache lines."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int32]
LongArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]
Array: TypeAlias = NDArray[Any]
LINE = 64  # bytes of a cache line, and of the longest vectors


def address_of(array: Array) -> int:
    """The address of the first element of an array."""
    address: int = array.__array_interface__["data"][0]
    return address


def aligned(shape: int | tuple[int, int], dtype: np.dtype[Any]) -> Array:
    """Make an array whose rows begin at cache lines, so that a vector instruction reads from one line only."""
    n_rows, size = (1, shape) if isinstance(shape, int) else shape
    width = -(-size * dtype.itemsize // LINE) * LINE // dtype.itemsize
    data = np.empty(n_rows * width * dtype.itemsize + LINE, np.uint8)
    rows = data[-address_of(data) % LINE :][: n_rows * width * dtype.itemsize].view(dtype).reshape(n_rows, width)
    return rows[0, :size] if isinstance(shape, int) else rows[:, :size]
