"""The memory of a run on the CPU: the buffer, and scratch memory of tiles and of whole types."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.backends.memory import Memory
from autobatch.backends.tables import PlanTables
from autobatch.devices.store import HOST
from autobatch.jit.addresses import address_of, aligned

Array = NDArray[Any]


class CpuMemory(Memory):
    """The memory of one run.

    Attributes:
        scratch: [threads, size] scratch memory that tiles use one after the other.
        kept: [1, size] persistent scratch: values that steps of all rows leave for steps of batches.
        addresses: of the buffer, of scratch memory, bytes from one row of it to the next, of persistent scratch.
    """

    def __init__(self) -> None:
        super().__init__(HOST)
        self.scratch = self.kept = np.empty((1, 0), np.float32)
        self.addresses = (0, 0, 0, 0)
        self._reserved_for: tuple[Any, ...] = ()

    @property
    def n_bytes(self) -> int:
        """Bytes held."""
        return super().n_bytes + int(self.scratch.nbytes + self.kept.nbytes)

    def reserve_all(
        self, size: int, tables: PlanTables, dtype: np.dtype[Any], n_threads: int, max_bytes: int | None
    ) -> None:
        """Make room for `size` elements and for the scratch memory of a plan, all within the limit."""
        reserved_for = size, tables.scratch_size, tables.kept_size, dtype, n_threads, max_bytes
        if reserved_for == self._reserved_for:
            return
        self._reserved_for = ()  # until all of it is there: memory may run out
        limit = None if max_bytes is None else max_bytes // dtype.itemsize
        turns, kept = n_threads * tables.scratch_size, tables.kept_size
        if limit is not None and size + max(self.scratch.size, turns) + max(self.kept.size, kept) > limit:
            self.scratch = self.kept = np.empty((1, 0), dtype)  # free the memory of a larger mini-batch first
        needed = max(self.scratch.size, turns) + max(self.kept.size, kept)
        self.reserve(size, dtype, None if limit is None else (limit - needed) * dtype.itemsize)
        self.scratch = self._rows(self.scratch, n_threads, tables.scratch_size, dtype)
        self.kept = self._rows(self.kept, 1, tables.kept_size, dtype)
        scratch = address_of(self.scratch), self.scratch.strides[0]
        self.addresses = (address_of(self.buffer), *scratch, address_of(self.kept))
        self._reserved_for = reserved_for

    def poison(self) -> None:
        """Fill all memory with NaN."""
        for array in (self.buffer, self.scratch, self.kept):
            array.fill(np.nan)

    def _rows(self, array: Array, n_rows: int, size: int, dtype: np.dtype[Any]) -> Array:
        """The array if it is large enough, else a new one."""
        if array.dtype == dtype and len(array) == n_rows and array.shape[1] >= size:
            return array
        self.allocations += 1
        return aligned((n_rows, size), dtype)
