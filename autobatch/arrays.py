"""Array types, addresses, arrays aligned to cache lines, rounding to bf16, and settings that silence overflow."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int32]
LongArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]
Array: TypeAlias = NDArray[Any]
QUIET = np.uint32(0x40)  # a bit that keeps a NaN a NaN when its lower half is cut off
SILENT: Final[dict[str, Any]] = {"over": "ignore", "divide": "ignore", "invalid": "ignore"}
"""Arguments of `np.errstate` where numbers may overflow; callers that need finite results check them."""
LINE = 64  # bytes of a cache line, and of the widest vector registers


def address_of(array: Array) -> int:
    """Return the address of the first element of an array."""
    address: int = array.__array_interface__["data"][0]
    return address


def aligned(shape: int | tuple[int, int], dtype: np.dtype[Any]) -> Array:
    """Make an uninitialized array whose rows begin at cache lines, so that a vector load touches only one line."""
    n_rows, size = (1, shape) if isinstance(shape, int) else shape
    width = -(-size * dtype.itemsize // LINE) * LINE // dtype.itemsize
    data = np.empty(n_rows * width * dtype.itemsize + LINE, np.uint8)
    # From the first line that begins in `data`, which has LINE spare bytes for this.
    rows = data[-address_of(data) % LINE :][: n_rows * width * dtype.itemsize].view(dtype).reshape(n_rows, width)
    return rows[0, :size] if isinstance(shape, int) else rows[:, :size]


def rounded(x: Any, xp: Any = np) -> Any:
    """Round numbers to bf16, stored as float32 whose lower half is zero.

    Args:
        x: an array of NumPy, or of the library `xp`.
        xp: NumPy or CuPy.

    >>> rounded(np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32)).tolist()  # ties go to the even neighbor
    [1.0, 1.015625]
    """
    bits = xp.asarray(x, np.float32).view(np.uint32)
    high = bits >> np.uint32(16)
    # Adding half of the last kept bit rounds to nearest, and slightly less if that bit is 0, so that ties go to even.
    # The carry could turn a NaN into another number, so NaNs are handled apart.
    nearest = (bits + (np.uint32(0x7FFF) + (high & np.uint32(1)))) >> np.uint32(16)
    kept = xp.where(xp.isnan(x), high | QUIET, nearest) << np.uint32(16)
    return kept.view(np.float32)
