"""Manage the memory of a run on the CPU: the buffer, and scratch memory of tiles and of whole types."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.arrays import address_of, aligned
from autobatch.backends.values import Memory
from autobatch.devices.store import HOST

Array = NDArray[Any]


class Needed(NamedTuple):
    """The memory that a plan needs.

    Attributes:
        size: elements of the buffer.
        scratch, kept: elements of scratch memory per thread, and of persistent scratch.
        max_bytes: an upper bound on the whole, as in `Options`.
    """

    size: int
    scratch: int
    kept: int
    dtype: np.dtype[Any]
    n_threads: int
    max_bytes: int | None


class CpuMemory(Memory):
    """The memory of one run.

    Attributes:
        scratch: [threads, size] scratch memory that the tiles of a thread use in turn.
        kept: [1, size] persistent scratch: values that steps over all rows leave for steps of batches.
        reserved_for: the plan for which memory was last reserved; None while memory is being reserved.
        addresses: the addresses of the buffer and of scratch memory, the bytes from one row of scratch memory to the
            next, and the address of persistent scratch.
    """

    def __init__(self) -> None:
        super().__init__(HOST)
        self.scratch = self.kept = np.empty((1, 0), np.float32)
        self.addresses = (0, 0, 0, 0)
        self.reserved_for: Needed | None = None

    def has_room(self, needed: Needed) -> bool:
        """Return whether the memory reserved for another plan suffices; False with a limit, which it may exceed."""
        last = self.reserved_for
        if last is None or needed.max_bytes is not None:
            return False
        is_same = last.dtype == needed.dtype and last.n_threads == needed.n_threads and last.max_bytes is None
        has_scratch = needed.scratch <= self.scratch.shape[1] and needed.kept <= self.kept.shape[1]
        return is_same and has_scratch and needed.size <= self.buffer.size

    def reserve_all(self, needed: Needed) -> None:
        """Make room for the elements of a plan and for its scratch memory, all within the limit."""
        self.reserved_for = None  # until all is allocated, because memory may run out
        dtype, n_threads, max_bytes = needed.dtype, needed.n_threads, needed.max_bytes
        limit = None if max_bytes is None else max_bytes // dtype.itemsize
        turns = n_threads * needed.scratch
        if limit is not None and needed.size + max(self.scratch.size, turns) + max(self.kept.size, needed.kept) > limit:
            self.scratch = self.kept = np.empty((1, 0), dtype)  # free the memory of a larger mini-batch first
        others = max(self.scratch.size, turns) + max(self.kept.size, needed.kept)
        self.reserve(needed.size, dtype, None if limit is None else (limit - others) * dtype.itemsize)
        self.scratch = self._rows(self.scratch, n_threads, needed.scratch, dtype)
        self.kept = self._rows(self.kept, 1, needed.kept, dtype)
        scratch = address_of(self.scratch), self.scratch.strides[0]
        self.addresses = (address_of(self.buffer), *scratch, address_of(self.kept))
        self.scratch_bytes, self.reserved_for = self.scratch.nbytes + self.kept.nbytes, needed

    def poison(self) -> None:
        """Fill all memory with NaN."""
        for array in (self.buffer, self.scratch, self.kept):
            array.fill(np.nan)

    def _rows(self, array: Array, n_rows: int, size: int, dtype: np.dtype[Any]) -> Array:
        """Return the array if it is large enough, else a new one."""
        if array.dtype == dtype and len(array) == n_rows and array.shape[1] >= size:
            return array
        self.allocations += 1
        return aligned((n_rows, size), dtype)
