"""The memory of a run on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.devices.device import Device
from autobatch.runtime.memory import Memory


class DeviceMemory(Memory):
    """The memory of one run.

    Attributes:
        scratch: values of a batch.
        kept: values of all rows of types.
        rows: rows of kernels that do not fit in shared memory.
        packed: ints of the plan and parameters, as bytes.
        gradients: of parameters.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._device = device
        self.scratch = self.kept = self.rows = self.gradients = self.buffer
        self.packed: Any = device.empty(0, np.dtype(np.uint8))
        self._pinned: NDArray[np.uint8] = device.pinned(0)
        self._wait: Callable[[], None] = lambda: None

    @property
    def n_bytes(self) -> int:
        """Bytes held on the device."""
        return super().n_bytes + sum(
            int(a.nbytes) for a in (self.scratch, self.kept, self.rows, self.gradients, self.packed)
        )

    def reserve_all(
        self, sizes: tuple[int, int, int, int], n_packed: int, dtype: np.dtype[Any], max_bytes: int | None
    ) -> None:
        """Make room for `sizes` elements of buffer, scratch, kept and rows, and for packed ints."""
        limit = None if max_bytes is None else max(max_bytes - sum(sizes[1:]) * dtype.itemsize, 0)
        self.reserve(sizes[0], dtype, limit)
        for name, size in zip(("scratch", "kept", "rows"), sizes[1:], strict=True):
            setattr(self, name, self._reserved(getattr(self, name), size, dtype))
        self.packed = self._reserved(self.packed, n_packed, np.dtype(np.uint8))

    def zero_gradients(self, size: int, dtype: np.dtype[Any]) -> Any:
        """A flat array of zeros."""
        self.gradients = self._reserved(self.gradients, size, dtype)
        found = self.gradients[:size]
        found[...] = 0
        return found

    def borrow_pinned(self, n_bytes: int) -> NDArray[np.uint8]:
        """Memory of the host to fill and upload; waits until the last upload is done."""
        self._wait()
        if self._pinned.size < n_bytes:
            self._pinned = self._device.pinned(n_bytes * 5 // 4)
        return self._pinned[:n_bytes]

    def upload(self, pinned: NDArray[np.uint8], first: int, end: int) -> None:
        """Begin to copy some bytes of borrowed memory to the same place of `packed`."""
        if first < end:
            self._wait = self._device.copy_in(pinned[first:end], self.packed[first:end])

    def poison(self) -> None:
        """Fill all memory with NaN."""
        for array in (self.buffer, self.scratch, self.kept, self.rows):
            array.fill(np.nan)

    def _reserved(self, array: Any, size: int, dtype: np.dtype[Any]) -> Any:
        """The array if it is large enough, else a new one."""
        if array.dtype == dtype and array.size >= size:
            return array
        self.allocations += 1
        return self._device.empty(size * 5 // 4, dtype)
