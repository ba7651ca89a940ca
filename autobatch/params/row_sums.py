"""Sum rows of a table by row id: after a radix sort on the host, with a kernel on a GPU."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from autobatch._native import merge_rows, sum_rows
from autobatch.devices.device import Device, Launch
from autobatch.devices.store import HOST, Store
from autobatch.errors import DataError
from autobatch.params.parameter import FloatArray, Shape
from autobatch.system.compiling import compiling

IntArray: TypeAlias = npt.NDArray[np.integer[Any]]
LongArray: TypeAlias = npt.NDArray[np.int64]
Found: TypeAlias = tuple[IntArray, FloatArray]
"""Increasing ids, and their rows."""


class RowSums(Protocol):
    """Sums rows by id."""

    def add(self, held: Found, ids: IntArray, values: FloatArray, first: int, step: int | None) -> Found:
        """Add rows to `held` and return the sums by id; see `autobatch.params.sparse_rows.Rows.add`."""


def make_row_sums(shape: Shape, dtype: npt.DTypeLike, store: Store) -> RowSums:
    """Make the `RowSums` for arrays of this shape and dtype in a device's memory."""
    if store is HOST:
        return HostRowSums(shape, dtype)
    return KernelRowSums(shape, cast(Device, store)) if store.kind == "cuda" else ArrayRowSums(shape, store)


class HostRowSums:
    """`RowSums` on the host, in memory that is reused."""

    def __init__(self, shape: Shape, dtype: npt.DTypeLike) -> None:
        self._held, self._added = Room(shape, dtype), Room(shape, dtype)

    def add(self, held: Found, ids: IntArray, values: FloatArray, first: int, step: int | None) -> Found:
        room, n_held = self._held, held[0].size
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
        check_ids(ids, self._shape)
        if not ids.size:
            return held
        xp, rows = self._store.xp, self._rows(values[first:], ids.size, self._width if step is None else step)
        if held[0].size:
            rows = xp.concatenate((rows, held[1].reshape(held[0].size, self._width)))
            ids = np.concatenate((ids, held[0]))
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        sums = self._sum(rows, order, starts)
        return ordered[starts].astype(np.int64), sums.reshape(starts.size, *self._shape[1:])

    def _rows(self, values: FloatArray, n: int, step: int) -> FloatArray:
        """Return a view of n rows that start `step` numbers apart."""
        strides = step * values.itemsize, values.itemsize
        rows: FloatArray = self._store.xp.lib.stride_tricks.as_strided(values, (n, self._width), strides)
        return rows

    def _sum(self, rows: FloatArray, order: LongArray, starts: LongArray) -> FloatArray:
        """Sum the rows order[starts[k]:starts[k + 1]] for each k."""
        put = self._store.put
        sums: FloatArray = self._store.xp.add.reduceat(rows[put(order)], put(starts), axis=0)
        return sums


class KernelRowSums(ArrayRowSums):
    """`RowSums` on a GPU in one launch."""

    def __init__(self, shape: Shape, device: Device) -> None:
        super().__init__(shape, device)
        self._device = device

    def _sum(self, rows: FloatArray, order: LongArray, starts: LongArray) -> FloatArray:
        device, step = self._device, rows.strides[0] // rows.itemsize
        sums: FloatArray = device.empty(starts.size * self._width, rows.dtype)
        about = device.address(rows), step, self._width, device.address(sums), starts.size, rows.itemsize == 8
        task = device.put(np.concatenate((about, starts, [order.size], order)).astype(np.int64, copy=False))
        blocks = min(-(-sums.size // THREADS), device.n_processors * BLOCKS)
        if blocks:
            device.launch(_kernel(device), Launch(blocks, THREADS, 0, (device.address(task), 0, 0)))
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
    smallest, largest = (int(ids.min()), int(ids.max())) if ids.size else (0, 0)
    if smallest < 0 or largest >= max(shape[0], 1):
        wrong = smallest if smallest < 0 else largest
        raise DataError(f"row id of Rows must be between 0 and {shape[0] - 1}, got {wrong}.")


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
        keys = self._work[0, :n]
        keys[...] = ids
        check_ids(keys, self.shape)
        return sum_rows(n, self._work, values, first, step, self.width, self.ids, self.values.reshape(-1))

    def merge(self, held: int, other: Room, n: int) -> int:
        """Add the first n rows of `other` to the first `held` rows here; return the number of distinct ids."""
        self.reserve(held + n, held)
        values, more = self.values.reshape(-1), other.values.reshape(-1)
        return merge_rows(held, self.ids, values, n, other.ids, more, self.width)
