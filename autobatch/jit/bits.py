"""Floats rounded to bf16."""

from __future__ import annotations

from typing import Any

import numpy as np

QUIET = np.uint32(0x40)  # keeps a NaN one when its second half is cut off


def rounded(x: Any, xp: Any = np) -> Any:
    """Round numbers to bf16, as float32 whose second half is zero.

    Args:
        x: an array of a device.
        xp: the array functions of that device.

    >>> rounded(np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32)).tolist()  # ties: the even one of two neighbours
    [1.0, 1.015625]
    """
    bits = xp.asarray(x, np.float32).view(np.uint32)
    high = bits >> np.uint32(16)
    nearest = (bits + (np.uint32(0x7FFF) + (high & np.uint32(1)))) >> np.uint32(16)
    kept = xp.where(xp.isnan(x), high | QUIET, nearest) << np.uint32(16)
    return kept.view(np.float32)
