"""Gradients of tables of which a mini-batch read few rows.

A table of word embeddings has a row for every word, a mini-batch reads some hundred of them, and all other rows have
gradient zero. `Rows` holds the rows that were read; to NumPy it is the whole array.
"""

from __future__ import annotations

import math
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from autobatch._jit import compiled
from autobatch.errors import DataError, ShapeError
from autobatch.module import FLOAT32, FLOAT64, FloatArray, Shape

IntArray = npt.NDArray[np.integer[Any]]


class Rows:
    """An array that is zero except in some rows.

    It reads as the dense array where NumPy wants one (`np.asarray(rows)`, `array + rows`), which costs memory for the
    whole; what is defined here costs the rows alone. Adding an array to it gives an array.

    Args:
        ids: the n rows that are held, int (n,), increasing and each once; see `summed` for any other ids.
        values: those rows, float32 or float64 (n, *shape[1:]); the array itself is kept, and changed by `*=`.
        shape: of the whole array.

    Raises:
        ShapeError: the shapes of ids, values and the whole do not fit together.
        DataError: ids are no ints, not increasing, or not rows of the array; or values are neither float32 nor float64.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> rows = ab.Rows([0, 2], np.array([[1.0, 2.0], [3.0, 4.0]]), shape=(4, 2))
    >>> rows
    Rows(2 of shape (4, 2), dtype=float64)
    >>> rows += ab.Rows([2], np.array([[10.0, 10.0]]), shape=(4, 2))
    >>> np.asarray(rows)
    array([[ 1.,  2.],
           [ 0.,  0.],
           [13., 14.],
           [ 0.,  0.]])
    """

    __slots__ = ("ids", "shape", "values")

    ids: IntArray
    values: FloatArray
    shape: Shape

    def __init__(self, ids: npt.ArrayLike, values: npt.ArrayLike, shape: Shape) -> None:
        self.ids, self.values, self.shape = _check(ids, values, shape)
        descents = np.flatnonzero(self.ids[1:] <= self.ids[:-1])
        if descents.size:
            place = int(descents[0])
            raise DataError(
                f"cannot make Rows: id {self.ids[place]} is followed by {self.ids[place + 1]}; give increasing ids, "
                "each once, or use Rows.summed."
            )

    @classmethod
    def summed(cls, ids: npt.ArrayLike, values: npt.ArrayLike, shape: Shape) -> Self:
        """Make Rows of ids in any order and any number of times, adding the values of equal ids in the order given.

        Args:
            ids: int (n,).
            values: float32 or float64 (n, *shape[1:]); only read.
            shape: of the whole array.

        Raises:
            ShapeError, DataError: as the class, but for the order of ids.

        Cost: a sort of the ids and a pass over the values.

        >>> import numpy as np
        >>> import autobatch as ab
        >>> rows = ab.Rows.summed([2, 0, 2], np.array([1.0, 2.0, 4.0]), shape=(3,))
        >>> rows.ids, rows.values
        (array([0, 2]), array([2., 5.]))
        """
        checked_ids, checked_values, _ = _check(ids, values, shape)
        order = np.argsort(checked_ids, kind="stable")
        ordered = checked_ids[order]
        ends = np.flatnonzero(np.diff(ordered, append=-1)) + 1
        sums = np.zeros((ends.size, *shape[1:]), checked_values.dtype)
        width = math.prod(shape[1:])
        add_runs(checked_values.reshape(order.size, width), order, ends, sums.reshape(ends.size, width))
        return cls(ordered[ends - 1], sums, shape)

    @classmethod
    def zeros(cls, shape: Shape, dtype: npt.DTypeLike = FLOAT32) -> Self:
        """Make an array of zeros, with no rows yet."""
        return cls((), np.zeros((0, *shape[1:]), dtype), shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """Bytes held, of ids and values."""
        return self.ids.nbytes + self.values.nbytes

    def copy(self) -> Rows:
        """The same rows in arrays of their own."""
        return Rows(self.ids.copy(), self.values.copy(), self.shape)

    def add_to(self, dense: FloatArray) -> None:
        """Add to an array of the same shape, in place.

        Raises:
            ShapeError: it has another shape.
        """
        if dense.shape != self.shape:
            raise ShapeError(f"cannot add Rows of shape {self.shape} to an array of shape {dense.shape}.")
        dense[self.ids] += self.values

    def __iadd__(self, other: Rows) -> Self:
        if not isinstance(other, Rows):
            return NotImplemented
        if other.shape != self.shape:
            raise ShapeError(f"cannot add Rows of shape {other.shape} to Rows of shape {self.shape}.")
        ids = np.union1d(self.ids, other.ids)
        values = np.zeros((ids.size, *self.shape[1:]), self.dtype)
        values[np.searchsorted(ids, self.ids)] = self.values
        values[np.searchsorted(ids, other.ids)] += other.values
        self.ids, self.values = ids, values
        return self

    def __imul__(self, factor: float) -> Self:
        self.values *= factor
        return self

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("Rows become an array by a copy only; leave copy=False out.")
        dense = np.zeros(self.shape, self.dtype if dtype is None else dtype)
        dense[self.ids] = self.values
        return dense

    def __repr__(self) -> str:
        return f"Rows({self.ids.size} of shape {self.shape}, dtype={self.dtype})"


Gradient: TypeAlias = FloatArray | Rows
"""The gradient of a parameter: an array of its shape, or what stands for one."""


def _check(ids: npt.ArrayLike, values: npt.ArrayLike, shape: Shape) -> tuple[IntArray, FloatArray, Shape]:
    """Return arrays that fit together, with ids in range; raise as `Rows` says."""
    rows, numbers = np.asarray(ids), np.asarray(values)
    rows = rows if rows.size else rows.astype(np.int64)  # an empty list makes an array of floats
    if rows.dtype.kind not in "iu" or numbers.dtype not in (FLOAT32, FLOAT64):
        raise DataError(
            f"cannot make Rows of ids of {rows.dtype} and values of {numbers.dtype}; give ints, and float32 or float64."
        )
    if rows.ndim != 1 or not shape or numbers.shape != (rows.size, *shape[1:]):
        raise ShapeError(
            f"cannot make Rows of an array of shape {shape} from ids of shape {rows.shape} and values of shape "
            f"{numbers.shape}; give n ids and n rows of the array."
        )
    if rows.size and not 0 <= rows.min() <= rows.max() < shape[0]:
        wrong = rows.min() if rows.min() < 0 else rows.max()
        raise DataError(f"cannot make Rows with id {wrong}; the array has rows 0 to {shape[0] - 1}.")
    return rows, numbers, shape


@compiled
def add_runs(values: FloatArray, order: IntArray, ends: IntArray, sums: FloatArray) -> None:
    """Add values[order[ends[k - 1]:ends[k]]], one by one, to sums[k]; the first run begins at 0.

    30 times as fast as np.add.reduceat(values[order], ...) along the first axis, for 1250 rows of 64 or of 300.
    """
    start = 0
    for run in range(ends.size):
        for place in range(start, ends[run]):
            row = order[place]
            for column in range(values.shape[1]):
                sums[run, column] += values[row, column]
        start = ends[run]
