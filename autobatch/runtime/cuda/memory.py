"""The memory of a run on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.devices.device import Device
from autobatch.runtime.memory import Memory


class Staging:
    """Memory of the host to fill, and the memory of the device to which it is copied.

    Attributes:
        pinned: of the host.
        packed: of the device, as bytes.
        wait: waits until the last copy is done.
        used: the work on the device after which `packed` may change.
    """

    def __init__(self, device: Device) -> None:
        self.pinned: NDArray[np.uint8] = device.pinned(0)
        self.packed: Any = device.empty(0, np.dtype(np.uint8))
        self.wait: Callable[[], None] = lambda: None
        self.used: Any = None


class DeviceMemory(Memory):
    """The memory of one run.

    Two stagings take turns: the next mini-batch is planned and uploaded to one while kernels still read the other.

    Attributes:
        scratch: values of a batch.
        kept: values of all rows of types.
        rows: rows of kernels that do not fit in shared memory.
        gradients: of parameters.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._device = device
        self.scratch = self.kept = self.rows = self.gradients = self.buffer
        self._staging, self._other = Staging(device), Staging(device)

    @property
    def packed(self) -> Any:
        """Ints of the plan and parameters on the device, as bytes."""
        return self._staging.packed

    @property
    def n_bytes(self) -> int:
        """Bytes held on the device."""
        packed = self._staging.packed, self._other.packed
        return super().n_bytes + sum(
            int(a.nbytes) for a in (self.scratch, self.kept, self.rows, self.gradients, *packed)
        )

    def reserve_all(
        self, sizes: tuple[int, int, int, int], n_packed: int, dtype: np.dtype[Any], max_bytes: int | None
    ) -> None:
        """Make room for elements of buffer, scratch, kept and rows, and for packed ints in the other staging."""
        limit = None if max_bytes is None else max(max_bytes - sum(sizes[1:]) * dtype.itemsize, 0)
        self.reserve(sizes[0], dtype, limit)
        for name, size in zip(("scratch", "kept", "rows"), sizes[1:], strict=True):
            setattr(self, name, self._reserved(getattr(self, name), size, dtype))
        self._staging.used = self._device.mark()
        self._staging, self._other = self._other, self._staging
        packed = self._reserved(self._staging.packed, n_packed, np.dtype(np.uint8))
        if packed is not self._staging.packed:
            self._staging.packed, self._staging.used = packed, self._device.mark()

    def zero_gradients(self, size: int, dtype: np.dtype[Any]) -> Any:
        """A flat array of zeros."""
        self.gradients = self._reserved(self.gradients, size, dtype)
        found = self.gradients[:size]
        found[...] = 0
        return found

    def borrow_pinned(self, n_bytes: int) -> NDArray[np.uint8]:
        """Memory of the host to fill and upload; waits until its last upload is done."""
        staging = self._staging
        staging.wait()
        if staging.pinned.size < n_bytes:
            staging.pinned = self._device.pinned(n_bytes * 5 // 4)
        return staging.pinned[:n_bytes]

    def upload(self, pinned: NDArray[np.uint8], first: int, end: int) -> None:
        """Begin to copy some bytes of borrowed memory to the same place of `packed`."""
        if first < end:
            staging = self._staging
            staging.wait = self._device.copy_in(pinned[first:end], staging.packed[first:end], staging.used)

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
