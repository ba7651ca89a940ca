"""Manage the memory of a run on a device, and pack the arrays that it reads, so that one copy moves them there."""

from __future__ import annotations

from collections.abc import Sequence
from operator import ge
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.backends.values import Memory
from autobatch.devices.device import Device
from autobatch.devices.staging import Staging


class DeviceMemory(Memory):
    """The memory of one run.

    Attributes:
        scratch: the values of a batch.
        kept: persistent scratch memory, for all rows of each type.
        rows: the rows that kernels keep in global memory, because they do not fit in shared memory.
        staging: the ints of the plan, and parameters that are on the host.
        addresses: the addresses of the buffer, scratch, kept and rows.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.scratch = self.kept = self.rows = self.buffer
        self.staging = Staging(device)
        self.addresses: tuple[int, ...] = (0, 0, 0, 0)
        self._other_bytes = 0
        self._reserved_for: tuple[Any, ...] | None = None  # the arguments of the last call; None while it runs

    def reserve_all(
        self, sizes: tuple[int, int, int, int], n_packed: int, dtype: np.dtype[Any], max_bytes: int | None
    ) -> None:
        """Make room for `sizes` elements of buffer, scratch, kept and rows, and for `n_packed` bytes of staging."""
        known = self._reserved_for
        is_same = known is not None and known[1:] == (dtype, None) and max_bytes is None
        # With a limit, memory is always reserved again, because what an earlier run left may exceed it.
        if known is None or not (is_same and all(map(ge, known[0], sizes))):
            self._reserve(sizes, dtype, max_bytes)
        if self.staging.turn(n_packed):
            self.allocations += 1
            self.scratch_bytes = self.staging.n_bytes + self._other_bytes

    def _reserve(self, sizes: tuple[int, int, int, int], dtype: np.dtype[Any], max_bytes: int | None) -> None:
        self._reserved_for = None
        limit = None if max_bytes is None else max(max_bytes - sum(sizes[1:]) * dtype.itemsize, 0)
        self.reserve(sizes[0], dtype, limit)
        for name, size in zip(("scratch", "kept", "rows"), sizes[1:], strict=True):
            setattr(self, name, self._reserved(getattr(self, name), size, dtype))
        arrays = self.buffer, self.scratch, self.kept, self.rows
        self._other_bytes = sum(int(array.nbytes) for array in arrays[1:])
        self.scratch_bytes = self.staging.n_bytes + self._other_bytes
        self.addresses = tuple(map(self.store.address, arrays))
        self._reserved_for = tuple(int(array.size) for array in arrays), dtype, max_bytes

    def poison(self) -> None:
        """Fill all memory with NaN."""
        for array in (self.buffer, self.scratch, self.kept, self.rows):
            array.fill(np.nan)


ALIGNMENT = 16  # bytes


class Packing:
    """Arrays that are laid out one after the other in a piece of memory.

    Args:
        n_first: the bytes before the first array.
        arrays: contiguous arrays.

    Attributes:
        offsets: the first byte of each array.
        n_bytes: the bytes of the piece.
    """

    def __init__(self, n_first: int, arrays: Sequence[NDArray[Any]]) -> None:
        self._arrays, self.offsets, self.n_bytes = arrays, list[int](), -(-n_first // ALIGNMENT) * ALIGNMENT
        for array in arrays:
            self.offsets.append(self.n_bytes)
            self.n_bytes += -(-array.nbytes // ALIGNMENT) * ALIGNMENT

    def reserve(self, n_bytes: int) -> int:
        """Reserve bytes that are filled in later; return the offset of the first."""
        first = self.n_bytes
        self.n_bytes += -(-n_bytes // ALIGNMENT) * ALIGNMENT
        return first

    def fill(self, memory: NDArray[np.uint8]) -> None:
        """Copy the arrays into memory."""
        for first, array in zip(self.offsets, self._arrays, strict=True):
            memory[first : first + array.nbytes] = array.reshape(-1).view(np.uint8)
