"""Types of the arrays that compiled loops read, and unsigned views of ints that are used as indices."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autobatch.jit.allocating import make_empty, make_zeros
from autobatch.jit.loops import compiled, replaced_by

IntArray: TypeAlias = NDArray[np.int32]
LongArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]
IndexArray: TypeAlias = NDArray[np.uint32]
LongIndexArray: TypeAlias = NDArray[np.uint64]


@replaced_by(make_empty)
def empty(shape: int | tuple[int, ...], dtype: type) -> NDArray[Any]:
    """Make an array that is not set.

    Compiled loops call this function and those below: a call of NumPy's own takes ten times as long to compile.
    """
    return np.empty(shape, dtype)


@replaced_by(make_zeros)
def zeros(shape: int | tuple[int, ...], dtype: type) -> NDArray[Any]:
    """Make an array of zeros."""
    return np.zeros(shape, dtype)


@compiled
def blank(size: int) -> IntArray:
    """Make an array of ints that are not set."""
    return empty(size, np.int32)


@compiled
def filled(size: int, value: int) -> IntArray:
    """Make an array of equal ints."""
    made = blank(size)
    for i in range(size):
        made[i] = value
    return made


@compiled
def count_up(size: int) -> IntArray:
    """Make an array of the ints from 0 to `size` - 1."""
    made = blank(size)
    for i in range(size):
        made[i] = i
    return made


@compiled
def copied(values: IntArray, size: int) -> IntArray:
    """Copy the first `size` ints of an array."""
    made = blank(size)
    for i in range(size):
        made[i] = values[i]
    return made


@compiled
def turned(values: IntArray, size: int) -> IntArray:
    """Copy the first `size` ints of an array, the last one first."""
    made = blank(size)
    for i in range(size):
        made[i] = values[size - 1 - i]
    return made


@compiled
def indices(values: IntArray) -> IndexArray:
    """View ints that are not negative as unsigned, for loops that index by them.

    Compiled code tests every signed index, because a negative one counts from the end. Without these tests, a loop that
    mostly looks up takes a half to a third of the time. Sums of unsigned ints are unsigned; sums of unsigned and signed
    ints are not, and beyond 32 bits they are floats.
    """
    return values.view(np.uint32)


@compiled
def long_indices(values: LongArray) -> LongIndexArray:
    """View 64-bit ints that are not negative as unsigned, see `indices`."""
    return values.view(np.uint64)
