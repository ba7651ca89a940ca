"""Sparse gradients of tables, such as word embeddings.

A mini-batch reads a few hundred rows of an embedding table; all other rows have gradient zero. `Rows` holds the rows
that were read, and NumPy can read it as the dense array. Added rows are sorted by id, and rows with equal ids are
summed in their given order (`autobatch.params.row_sums`). Clearing `Rows` keeps their memory for the next step.
"""

from __future__ import annotations

from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from autobatch.arguments import RAW, refusal, show
from autobatch.devices.store import HOST, Store
from autobatch.errors import DataError, ShapeError
from autobatch.keywords import refuse_arguments
from autobatch.params.parameter import FLOAT32, FLOAT64, FloatArray, Shape
from autobatch.params.row_sums import IntArray, RowSums, make_row_sums


class Rows:
    """An array that is zero except in some rows.

    NumPy's functions convert it to the dense array (`np.asarray(rows)`, `array + rows`) and allocate all of it; its own
    methods allocate only the rows. Adding a dense array gives a dense array.

    Args:
        ids: row ids, int (n,), strictly increasing; see `summed` for other ids. They stay on the host.
        values: the rows, float32 or float64 (n, *shape[1:]); not copied, and changed by `*=`.
        shape: shape of the dense array.
        store: device memory that holds the values.

    Raises:
        ShapeError: the shapes of `ids` and `values` do not fit `shape`.
        DataError: ids are not ints, not increasing, or out of range; or values are neither float32 nor float64.

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

    __slots__ = ("_sums", "ids", "shape", "store", "values")

    ids: IntArray
    values: FloatArray
    shape: Shape

    def __init__(self, ids: npt.ArrayLike, values: npt.ArrayLike, shape: Shape, store: Store = HOST) -> None:
        self.ids, self.values, self.shape = _check(ids, values, shape, store)
        self.store = store
        self._sums: RowSums | None = None
        descents = np.flatnonzero(self.ids[1:] <= self.ids[:-1])
        if descents.size:
            place = int(descents[0])
            raise DataError(
                f"ids of Rows must be strictly increasing, got {self.ids[place]} before {self.ids[place + 1]}; sort "
                "them, or use Rows.summed."
            )

    @classmethod
    def summed(cls, ids: npt.ArrayLike, values: npt.ArrayLike, shape: Shape, store: Store = HOST) -> Self:
        """Make Rows from ids in any order, with duplicates; values of equal ids are summed in the given order.

        Args:
            ids: int (n,).
            values: float32 or float64 (n, *shape[1:]); only read.
            shape: shape of the dense array.
            store: as for the class.

        Raises:
            ShapeError, DataError: as for the class, except for the order of ids.

        Cost: some passes over the ids and one over the values.

        >>> import numpy as np
        >>> import autobatch as ab
        >>> rows = ab.Rows.summed([2, 0, 2], np.array([1.0, 2.0, 4.0]), shape=(3,))
        >>> rows.ids, rows.values
        (array([0, 2]), array([2., 5.]))
        """
        checked_ids, checked_values, _ = _check(ids, values, shape, store)
        rows = cls.zeros(shape, checked_values.dtype, store)
        rows.add(checked_ids, store.xp.ascontiguousarray(checked_values).reshape(-1))
        return rows

    @classmethod
    def zeros(cls, shape: Shape, dtype: npt.DTypeLike = FLOAT32, store: Store = HOST) -> Self:
        """Make Rows without any row, for a dense array of `shape`, with values of `dtype` on `store`."""
        refuse_arguments(Rows.__init__, (cls.__new__(cls), (), (), shape, store), {})
        try:
            values = store.xp.zeros((0, *shape[1:]), dtype)
        except RAW as error:
            raise DataError(f"cannot make Rows of shape {show(shape)} and dtype {show(dtype)}: {error}.") from error
        return cls((), values, shape, store)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of the values."""
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """Return the size of ids and values in bytes."""
        return int(self.ids.nbytes + self.values.nbytes)

    def copy(self) -> Rows:
        """Return a deep copy."""
        return Rows(self.ids.copy(), self.values.copy(), self.shape, self.store)

    def add_to(self, dense: FloatArray) -> None:
        """Add to `dense`, an array of the same shape, in place.

        Raises:
            ShapeError: it has another shape.
        """
        if not hasattr(dense, "shape"):
            raise refusal("dense of add_to", f"an array of shape {self.shape}", dense)
        if dense.shape != self.shape:
            raise ShapeError(f"cannot add Rows of shape {self.shape} to an array of shape {dense.shape}.")
        dense[self.store.put(self.ids)] += self.values

    def clear(self) -> None:
        """Drop all rows, keeping the memory for rows added later."""
        self.ids, self.values = self.ids[:0], self.values[:0]

    def add(self, ids: IntArray, values: FloatArray, first: int = 0, step: int | None = None) -> None:
        """Add rows with ids in any order, with duplicates; rows with equal ids are first summed in the given order.

        Args:
            ids: int (n,).
            values: flat, of the dtype of these rows; only read.
            first: index in `values` of the first row's first number.
            step: distance between the starts of rows, in numbers; by default rows are contiguous.

        Raises:
            DataError: an id is not a row of the array.

        Cost: some passes over the ids and one over the rows; allocates only when there are more rows than ever before.
        """
        if self._sums is None:
            self._sums = make_row_sums(self.shape, self.dtype, self.store)
        self.ids, self.values = self._sums.add((self.ids, self.values), ids, values, first, step)

    def __iadd__(self, other: Rows) -> Self:
        if not isinstance(other, Rows):
            return NotImplemented
        if other.shape != self.shape:
            raise ShapeError(f"cannot add Rows of shape {other.shape} to Rows of shape {self.shape}.")
        values = self.store.put(other.store.get(other.values)) if self.store is not other.store else other.values
        self.add(other.ids, self.store.xp.ascontiguousarray(values, self.dtype).reshape(-1))
        return self

    def __imul__(self, factor: float) -> Self:
        self.values *= factor
        return self

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("Rows can only be converted to an array by a copy; leave copy=False out.")
        dense = np.zeros(self.shape, self.dtype if dtype is None else dtype)
        dense[self.ids] = self.store.get(self.values)
        return dense

    def __reduce__(self) -> tuple[Any, ...]:
        """Make copies and pickles on the host."""
        return type(self), (self.ids.copy(), self.store.get(self.values).copy(), self.shape)

    def __repr__(self) -> str:
        return f"Rows({self.ids.size} of shape {self.shape}, dtype={self.dtype})"


Gradient: TypeAlias = FloatArray | Rows
"""The gradient of a parameter: an array of its shape, or `Rows` of that shape."""


def _check(ids: npt.ArrayLike, values: npt.ArrayLike, shape: Shape, store: Store) -> tuple[IntArray, FloatArray, Shape]:
    """Return ids, values and shape that fit together; raise the errors of `Rows`."""
    try:
        return _checked(ids, values, shape, store)
    except RAW as error:
        refuse_arguments(Rows.__init__, (Rows.__new__(Rows), ids, values, shape, store), {})
        why = "" if "inhomogeneous" in str(error) else f": {error}"
        raise DataError(f"cannot make Rows of ids {show(ids)} and values {show(values)}{why}.") from error


def _checked(
    ids: npt.ArrayLike, values: npt.ArrayLike, shape: Shape, store: Store
) -> tuple[IntArray, FloatArray, Shape]:
    held = store.adopt(values)
    rows, numbers = np.asarray(ids), store.put(np.asarray(values)) if held is None else held
    rows = rows if rows.size else rows.astype(np.int64)  # an empty list makes an array of floats
    if rows.dtype.kind not in "iu" or numbers.dtype not in (FLOAT32, FLOAT64):
        raise DataError(
            f"Rows must have int ids and float32 or float64 values, got ids of {rows.dtype} and values of "
            f"{numbers.dtype}."
        )
    shape = tuple(shape)
    if rows.ndim != 1 or not shape or numbers.shape != (rows.size, *shape[1:]):
        raise ShapeError(
            f"cannot make Rows of an array of shape {show(shape)} from ids of shape {rows.shape} and values of shape "
            f"{numbers.shape}; give n ids and n rows."
        )
    if rows.size and not 0 <= rows.min() <= rows.max() < shape[0]:
        wrong = rows.min() if rows.min() < 0 else rows.max()
        raise DataError(f"row id of Rows must be between 0 and {shape[0] - 1}, got {wrong}.")
    return rows, numbers, shape
