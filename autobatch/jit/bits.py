"""Count the ones of a word: one instruction in compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np

from autobatch.jit.loops import emitted_by


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


@emitted_by(make_count_ones)
def count_ones(word: np.uint64) -> int:
    """Count the ones of a word of 64 bits."""
    return int(word).bit_count()
