"""Sparse gradients of tables, such as word embeddings.

A mini-batch reads a few hundred rows of an embedding table; all other rows have gradient zero. `Rows` holds the rows
that were read, and NumPy can read it as the dense array. Added rows are sorted by id, and rows with equal ids are
summed in their given order: after a radix sort on the host, with a kernel on a GPU. Clearing `Rows` keeps their memory
for the next step.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from autobatch._native import merge_rows, sum_rows
from autobatch.arguments import RAW, refusal, show
from autobatch.devices.device import Device, Launch
from autobatch.devices.store import HOST, Store
from autobatch.errors import DataError, ShapeError
from autobatch.keywords import refuse_arguments
from autobatch.params.parameter import FLOAT32, FLOAT64, FloatArray, Shape
from autobatch.system.background import compiling

IntArray: TypeAlias = npt.NDArray[np.integer[Any]]
LongArray: TypeAlias = npt.NDArray[np.int64]
Found: TypeAlias = tuple[IntArray, FloatArray]
"""Increasing ids, and their rows."""


class RowSums(Protocol):
    """Sums rows by id."""

    def add(self, held: Found, ids: IntArray, values: FloatArray, first: int, step: int | None) -> Found:
        """Add rows to `held` and return the sums by id; see `Rows.add`."""


def make_row_sums(shape: Shape, dtype: npt.DTypeLike, store: Store) -> RowSums:
    """Make the `RowSums` for arrays of this shape and dtype in a device's memory."""
    if store is HOST:
        return HostRowSums(shape, dtype)
    return KernelRowSums(shape, cast(Device, store)) if store.kind == "cuda" else ArrayRowSums(shape, store)


class RowGroups(NamedTuple):
    """Rows grouped by id.

    Attributes:
        ids: the distinct ids, increasing.
        order: the numbers of the rows, by id and then in the given order.
        starts: the rows of group k are order[starts[k]:starts[k + 1]].
    """

    ids: LongArray
    order: LongArray
    starts: LongArray

    def task(self, step: int, width: int, itemsize: int) -> LongArray:
        """Return the input of the kernel of `sum_on_device`, for rows of `width` elements that are `step` apart."""
        about = step, width, self.ids.size, itemsize == FLOAT64.itemsize
        return np.concatenate((about, self.starts, (self.order.size,), self.order)).astype(np.int64, copy=False)


def group_rows(ids: IntArray, shape: Shape) -> RowGroups:
    """Group rows of an array of this shape by their ids, int (n,).

    Raises:
        DataError: an id is outside the rows.
    """
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    if ids.size and (ordered[0] < 0 or ordered[-1] >= shape[0]):
        check_ids(ids, shape)
    is_first = np.ones(ids.size, bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    starts = np.flatnonzero(is_first)
    return RowGroups(ordered[starts].astype(np.int64), order, starts)


class HostRowSums:
    """`RowSums` on the host, in memory that is reused."""

    def __init__(self, shape: Shape, dtype: npt.DTypeLike) -> None:
        self._held, self._added = Room(shape, dtype), Room(shape, dtype)

    def add(self, held: Found, ids: IntArray, values: FloatArray, first: int, step: int | None) -> Found:
        room, n_held = self._held, held[0].size
        # The held rows are a view of this memory, unless they came from elsewhere, such as the constructor.
        if n_held and held[1].base is not room.values:
            room.hold(*held)
        added = self._added if n_held else room
        n = added.sum_up(ids, values, first, added.width if step is None else step)
        if n_held:
            n = room.merge(n_held, added, n)
        return room.ids[:n], room.values[:n]


class ArrayRowSums:
    """`RowSums` on a device through its array functions. The host sorts the ids and never waits."""

    def __init__(self, shape: Shape, store: Store) -> None:
        self._shape, self._width, self._store = shape, math.prod(shape[1:]), store

    def add(self, held: Found, ids: IntArray, values: FloatArray, first: int, step: int | None) -> Found:
        if not ids.size:
            return held
        xp, rows = self._store.xp, self._rows(values[first:], ids.size, self._width if step is None else step)
        if held[0].size:
            # Held rows come last, so that the new rows of an id are summed first, as on the host.
            rows = xp.concatenate((rows, held[1].reshape(held[0].size, self._width)))
            ids = np.concatenate((ids, held[0]))
        groups = group_rows(ids, self._shape)
        return groups.ids, self._sum(rows, groups).reshape(groups.ids.size, *self._shape[1:])

    def _rows(self, values: FloatArray, n: int, step: int) -> FloatArray:
        """Return a view of n rows that start `step` numbers apart."""
        strides = step * values.itemsize, values.itemsize
        rows: FloatArray = self._store.xp.lib.stride_tricks.as_strided(values, (n, self._width), strides)
        return rows

    def _sum(self, rows: FloatArray, groups: RowGroups) -> FloatArray:
        put = self._store.put
        sums: FloatArray = self._store.xp.add.reduceat(rows[put(groups.order)], put(groups.starts), axis=0)
        return sums


class KernelRowSums(ArrayRowSums):
    """`RowSums` on a GPU in one launch."""

    def __init__(self, shape: Shape, device: Device) -> None:
        super().__init__(shape, device)
        self._device = device

    def _sum(self, rows: FloatArray, groups: RowGroups) -> FloatArray:
        device = self._device
        task = device.put(groups.task(rows.strides[0] // rows.itemsize, self._width, rows.itemsize))
        size = groups.ids.size * self._width
        return sum_on_device(device, device.address(task), device.address(rows), size, rows.dtype)


def sum_on_device(device: Device, task: int, rows: int, size: int, dtype: np.dtype[Any]) -> FloatArray:
    """Sum rows by id on a GPU.

    Args:
        task: the address of a copy of `RowGroups.task` on the device.
        rows: the address of the first row.
        size: the number of elements of the sums.

    Returns:
        The sums, flat.
    """
    sums: FloatArray = device.empty(size, dtype)
    blocks = min(-(-size // THREADS), device.n_processors * BLOCKS)
    if blocks:
        device.launch(
            _kernels.get(device) or _kernel(device), Launch(blocks, THREADS, 0, (task, rows, device.address(sums)))
        )
    return sums


THREADS, BLOCKS = 256, 4  # threads per block, and blocks per multiprocessor
ABOUT = "the kernel for row sums of tables"
_kernels: dict[Device, Any] = {}


def _kernel(device: Device) -> Any:
    """Return the kernel, compiled once per device."""
    if device not in _kernels:
        with compiling(ABOUT):
            text = (Path(__file__).parent / "row_sums.cuh").read_text(encoding="utf-8")
            _kernels[device] = device.load(text, ["sum_rows"], ABOUT)["sum_rows"]
    return _kernels[device]


def check_ids(ids: IntArray, shape: Shape) -> None:
    """Raise a DataError if an id is outside the rows of an array of this shape."""
    if ids.size and not 0 <= (smallest := int(ids.min())) <= (largest := int(ids.max())) < shape[0]:
        wrong = smallest if smallest < 0 else largest
        raise DataError(f"row id of Rows must be at least 0 and less than {shape[0]}, got {wrong}.")


class Room:
    """Memory for rows of an array of some shape; grows by at least 25%.

    Attributes:
        ids, values: with capacity for more rows than are in use.
        width: numbers per row.
    """

    def __init__(self, shape: Shape, dtype: npt.DTypeLike) -> None:
        self.shape, self.width = shape, math.prod(shape[1:])
        self.ids = np.empty(0, np.int64)
        self.values: FloatArray = np.empty((0, *shape[1:]), dtype)
        self._work = np.empty((4, 0), np.int64)

    def reserve(self, n: int, held: int) -> None:
        """Make room for n rows, keeping the first `held` rows."""
        if n <= self.ids.size:
            return
        ids, values, n = self.ids, self.values, max(n, self.ids.size * 5 // 4)
        self.ids, self.values = np.empty(n, np.int64), np.empty((n, *self.shape[1:]), values.dtype)
        self.ids[:held], self.values[:held] = ids[:held], values[:held]

    def hold(self, ids: IntArray, values: FloatArray) -> None:
        """Copy rows to the start of this memory."""
        self.reserve(ids.size, 0)
        self.ids[: ids.size], self.values[: ids.size] = ids, values

    def sum_up(self, ids: IntArray, values: FloatArray, first: int, step: int) -> int:
        """Store the sums of rows by id, as in `Rows.add`; return the number of distinct ids."""
        n = ids.size
        self.reserve(n, 0)
        if self._work.shape[1] < n:
            self._work = np.empty((4, self.ids.size), np.int64)
        # The first of the four rows of work memory is the input of `sum_rows`; it overwrites all of them.
        keys = self._work[0, :n]
        keys[...] = ids
        check_ids(keys, self.shape)
        return sum_rows(n, self._work, values, first, step, self.width, self.ids, self.values.reshape(-1))

    def merge(self, held: int, other: Room, n: int) -> int:
        """Add the first n rows of `other` to the first `held` rows here; return the number of distinct ids."""
        self.reserve(held + n, held)
        values, more = self.values.reshape(-1), other.values.reshape(-1)
        return merge_rows(held, self.ids, values, n, other.ids, more, self.width)


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
        self.ids, self.values, self.shape, self.store = ids, values, shape, store  # type: ignore[assignment]
        self._sums: RowSums | None = None
        check_rows(self)

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


def check_rows(rows: Rows) -> None:
    """Check attributes of `Rows`, which users may assign, and convert them to arrays; raise the errors of `Rows`."""
    rows.ids, rows.values, rows.shape = _check(rows.ids, rows.values, rows.shape, rows.store)
    descents = np.flatnonzero(rows.ids[1:] <= rows.ids[:-1])
    if descents.size:
        place = int(descents[0])
        raise DataError(
            f"ids of Rows must be strictly increasing, got {rows.ids[place]} before {rows.ids[place + 1]}; sort them, "
            "or use Rows.summed."
        )


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
    check_ids(rows, shape)
    return rows, numbers, shape
