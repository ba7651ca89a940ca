"""Arrays that compiled loops allocate are those of NumPy: type, shape, strides, zeros."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.jit.arrays import empty, zeros
from autobatch.jit.loops import compiled

Arrays = tuple[NDArray[Any], ...]


@compiled
def make_all(n: int, small: Any) -> Arrays:
    """A literal, an int, an int of 32 bits; one, two and three axes; five types."""
    return (
        zeros(3, np.int32), zeros(n, np.int64), zeros(small, np.uint64), zeros((n, small), np.float64),
        zeros((2, n, 0), np.bool_), empty(n, np.float64), empty((small, n), np.int32),
    )  # fmt: skip


@compiled
def fill(n: int) -> NDArray[np.int64]:
    """Allocate again and again, from memory that was written."""
    total = zeros(n, np.int64)
    for i in range(n):
        part = zeros((i, 3), np.int32)
        for k in range(i):
            total[i] += part[k, 0] + part[k, 2]
            part[k, 0] = part[k, 2] = 7
    return total


def test_arrays_are_those_of_numpy() -> None:
    for n in (0, 1, 5):
        made, expected = make_all(n, np.int32(4)), make_all.python(n, np.int32(4))
        for array, twin in zip(made, expected, strict=True):
            assert (array.dtype, array.shape, array.flags.c_contiguous) == (twin.dtype, twin.shape, True)
        for array, twin in zip(made[:5], expected, strict=False):
            np.testing.assert_array_equal(array, twin)
        for array in made[5:]:
            array[...] = 3
            assert (array == 3).all()


def test_zeros_in_memory_that_was_written() -> None:
    assert not fill(200).any()
