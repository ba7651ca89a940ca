"""Sparse gradients of tables of which a mini-batch reads few rows.

A table of word embeddings has a row for every word, a mini-batch reads some hundred of them, and all other rows have
gradient zero. `Rows` holds the rows that were read; NumPy can read it as the whole array. Rows in any order are sorted
by id with a radix sort, and rows of one id are added in the order in which they come. `Rows` that are cleared and added
to in every step keep their memory.
"""

from __future__ import annotations

import math
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from autobatch.errors import DataError, ShapeError
from autobatch.jit.loops import compiled
from autobatch.params.parameter import FLOAT32, FLOAT64, FloatArray, Shape

IntArray = npt.NDArray[np.integer[Any]]
LongArray = npt.NDArray[np.int64]
unsigned = np.uint64


class Rows:
    """An array that is zero except in some rows.

    NumPy's functions convert it to the dense array (`np.asarray(rows)`, `array + rows`), which takes memory for the
    whole; its own methods take memory for the rows alone. Adding an array to it gives an array.

    Args:
        ids: of the n rows, int (n,), strictly increasing; see `summed` for other ids.
        values: those rows, float32 or float64 (n, *shape[1:]); the array itself is kept, and changed by `*=`.
        shape: of the whole array.

    Raises:
        ShapeError: the shapes of ids, values and the whole do not fit together.
        DataError: ids are not ints, not increasing, or not rows of the array; or values are neither float32 nor
            float64.

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

    __slots__ = ("_more", "_room", "ids", "shape", "values")

    ids: IntArray
    values: FloatArray
    shape: Shape

    def __init__(self, ids: npt.ArrayLike, values: npt.ArrayLike, shape: Shape) -> None:
        self.ids, self.values, self.shape = _check(ids, values, shape)
        self._room: Room | None = None
        self._more: Room | None = None
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
            ShapeError, DataError: as for the class, except for the order of ids.

        Cost: some passes over the ids and one over the values.

        >>> import numpy as np
        >>> import autobatch as ab
        >>> rows = ab.Rows.summed([2, 0, 2], np.array([1.0, 2.0, 4.0]), shape=(3,))
        >>> rows.ids, rows.values
        (array([0, 2]), array([2., 5.]))
        """
        checked_ids, checked_values, _ = _check(ids, values, shape)
        rows = cls.zeros(shape, checked_values.dtype)
        rows.add(checked_ids, np.ascontiguousarray(checked_values).reshape(-1))
        return rows

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
        """Bytes of ids and values."""
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

    def clear(self) -> None:
        """Drop all rows, and keep the memory for rows that are added later."""
        self.ids, self.values = self.ids[:0], self.values[:0]

    def add(self, ids: IntArray, values: FloatArray, first: int = 0, step: int | None = None) -> None:
        """Add rows of ids in any order and any number of times; rows of one id are first added up in this order.

        Args:
            ids: int (n,).
            values: flat, of the dtype of these rows; only read.
            first: index of the first row's first number in `values`.
            step: numbers from one row's beginning to the next; by default rows are contiguous.

        Raises:
            DataError: an id is not a row of the array.

        Cost: some passes over the ids and one over the rows; allocates only for more rows than ever before.
        """
        held, room = self.ids.size, self._own_room()
        if held:
            self._more = self._more or Room(self.shape, self.dtype)
        added = self._more if held and self._more is not None else room
        n = added.sum_up(ids, values, first, added.width if step is None else step)
        if added is not room:
            n = room.merge(held, added, n)
        self.ids, self.values = room.ids[:n], room.values[:n]

    def _own_room(self) -> Room:
        """The memory that holds these rows."""
        if self._room is None:
            self._room = Room(self.shape, self.dtype)
        room, n = self._room, self.ids.size
        if n and self.values.base is not room.values:
            room.reserve(n, 0)
            room.ids[:n], room.values[:n] = self.ids, self.values
        return room

    def __iadd__(self, other: Rows) -> Self:
        if not isinstance(other, Rows):
            return NotImplemented
        if other.shape != self.shape:
            raise ShapeError(f"cannot add Rows of shape {other.shape} to Rows of shape {self.shape}.")
        self.add(other.ids, np.ascontiguousarray(other.values, self.dtype).reshape(-1))
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
"""The gradient of a parameter: an array of its shape, or `Rows` of one."""


def zeros_like(array: FloatArray, buffer: Gradient | None) -> FloatArray:
    """`buffer`, filled with zeros, if it is an array of the shape and dtype of `array`; else a new array."""
    if not isinstance(buffer, np.ndarray) or (buffer.shape, buffer.dtype) != (array.shape, array.dtype):
        return np.zeros_like(array)
    buffer.fill(0)
    return buffer


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


class Room:
    """Memory for rows of an array of some shape, which grows by at least a quarter.

    Attributes:
        ids, values: with capacity for more rows than are in use.
        width: numbers per row.
    """

    def __init__(self, shape: Shape, dtype: npt.DTypeLike) -> None:
        self.shape, self.width = shape, math.prod(shape[1:])
        self.ids = np.empty(0, np.int64)
        self.values: FloatArray = np.empty((0, *shape[1:]), dtype)
        self._work = np.empty((4, 0), np.int64)
        self._counts = np.empty(N_BUCKETS, np.int64)

    def reserve(self, n: int, held: int) -> None:
        """Make room for n rows; the first `held` rows stay."""
        if n <= self.ids.size:
            return
        ids, values, n = self.ids, self.values, max(n, self.ids.size * 5 // 4)
        self.ids, self.values = np.empty(n, np.int64), np.empty((n, *self.shape[1:]), values.dtype)
        self.ids[:held], self.values[:held] = ids[:held], values[:held]

    def sum_up(self, ids: IntArray, values: FloatArray, first: int, step: int) -> int:
        """Store the sums of rows by id, see `Rows.add`; return the number of ids."""
        n = ids.size
        self.reserve(n, 0)
        if self._work.shape[1] < n:
            self._work = np.empty((4, self.ids.size), np.int64)
        keys = self._work[0, :n]
        keys[...] = ids
        smallest, largest = (int(keys.min()), int(keys.max())) if n else (0, 0)
        if smallest < 0 or largest >= max(self.shape[0], 1):
            wrong = smallest if smallest < 0 else largest
            raise DataError(f"cannot add to row {wrong} of Rows; the array has rows 0 to {self.shape[0] - 1}.")
        place, sums = (first, step, self.width), self.values.reshape(-1)
        return sum_rows(n, largest, self._work, self._counts, values, place, self.ids, sums)

    def merge(self, held: int, other: Room, n: int) -> int:
        """Add the n rows of another room to those held here; return the number of ids."""
        self.reserve(held + n, held)
        return merge_rows(
            held, self.ids, self.values.reshape(-1), n, other.ids, other.values.reshape(-1), self.width
        )  # fmt: skip


N_BITS = 11
N_BUCKETS = 2**N_BITS


@compiled
def sum_rows(
    n: int, largest: int, work: LongArray, counts: LongArray, values: FloatArray, place: tuple[int, int, int],
    ids: LongArray, sums: FloatArray,
) -> int:  # fmt: skip
    """Sort ids, which are work[0], and add up the rows of each; return the number of distinct ids.

    Args:
        n, largest: the number of ids, and the largest id.
        work: four rows of at least n ints.
        counts: N_BUCKETS ints.
        values: see `Rows.add`; place: the first row's offset, the distance between rows, and the width of a row.
        ids, sums: take the result; sums are flat.
    """
    first, step, width = place
    keys, order, other_keys, other_order = work[0], work[1], work[2], work[3]
    for at in range(n):
        order[at] = at
    shift = 0
    while shift == 0 or largest >> shift:
        sort_by_bits(n, shift, counts, keys, order, other_keys, other_order)
        keys, order, other_keys, other_order = other_keys, other_order, keys, order
        shift += N_BITS
    n_ids = 0
    for at in range(n):
        row = first + order[at] * step
        if at and keys[at] == keys[at - 1]:
            add_numbers(sums, (n_ids - 1) * width, values, row, width)
        else:
            ids[n_ids] = keys[at]
            copy_numbers(sums, n_ids * width, values, row, width)
            n_ids += 1
    return n_ids


@compiled
def sort_by_bits(
    n: int, shift: int, counts: LongArray, keys: LongArray, order: LongArray, other_keys: LongArray,
    other_order: LongArray,
) -> None:  # fmt: skip
    """Sort keys, and `order` with them, by the N_BITS from `shift` on; the sort is stable."""
    counts[:] = 0
    for at in range(n):
        counts[(keys[at] >> shift) & (N_BUCKETS - 1)] += 1
    total = 0
    for bucket in range(N_BUCKETS):
        here = counts[bucket]
        counts[bucket] = total
        total += here
    for at in range(n):
        bucket = (keys[at] >> shift) & (N_BUCKETS - 1)
        place = counts[bucket]
        counts[bucket] = place + 1
        other_keys[place], other_order[place] = keys[at], order[at]


@compiled
def merge_rows(
    n: int, ids: LongArray, values: FloatArray, n_more: int, more: LongArray, more_values: FloatArray, width: int
) -> int:
    """Add rows to others in place, both in order of increasing ids; return the number of distinct ids."""
    common = at = other = 0
    while at < n and other < n_more:
        a, b = ids[at], more[other]
        common += a == b
        at += a <= b
        other += b <= a
    total = place = n + n_more - common
    at, other = n, n_more
    while other > 0:  # backwards, so that no row is overwritten before it is moved
        place -= 1
        if at > 0 and ids[at - 1] >= more[other - 1]:
            at -= 1
            ids[place] = ids[at]
            copy_numbers(values, place * width, values, at * width, width)
            if ids[place] == more[other - 1]:
                other -= 1
                add_numbers(values, place * width, more_values, other * width, width)
        else:
            other -= 1
            ids[place] = more[other]
            copy_numbers(values, place * width, more_values, other * width, width)
    return total


@compiled
def copy_numbers(target: FloatArray, to: int, source: FloatArray, of: int, size: int) -> None:
    """Copy numbers; unsigned indices let the loop be vectorised."""
    for i in range(size):
        target[unsigned(to + i)] = source[unsigned(of + i)]


@compiled
def add_numbers(target: FloatArray, to: int, source: FloatArray, of: int, size: int) -> None:
    """Add numbers to others."""
    for i in range(size):
        target[unsigned(to + i)] += source[unsigned(of + i)]
