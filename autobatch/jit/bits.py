"""Bits of numbers: the ones of a word, one instruction in compiled code; and floats rounded to bf16."""

from __future__ import annotations

from typing import Any

import numpy as np

from autobatch.jit.loops import replaced_by

QUIET = np.uint32(0x40)  # keeps a NaN one when its second half is cut off


def make_count_ones() -> Any:
    """Make (word) -> the number of its ones, for compiled code. Loads Numba."""
    import numba

    types: Any = numba.types
    intrinsic: Any = numba.extending.intrinsic

    @intrinsic  # type: ignore[untyped-decorator]
    def count(typing: Any, word: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.ctpop(args[0])

        return types.int64(types.uint64), emit

    return count


@replaced_by(make_count_ones)
def count_ones(word: np.uint64) -> int:
    """Count the ones of a word of 64 bits."""
    return int(word).bit_count()


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
