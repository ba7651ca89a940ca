"""Upload to a device with double buffering.

Each of two buffers is a piece of pinned host memory and its copy on the device. The host fills and uploads one while
the device still reads the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.devices.device import Device


class Staging:
    """Two upload buffers, used in turn by one launch after another.

    Attributes:
        pinned: the host memory of the current buffer, to be filled.
        held: the device memory of the current buffer, as bytes; at least as large as `pinned`.
        address: the address of `held`.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._current, self._other = _StagingBuffer(device), _StagingBuffer(device)
        self.pinned, self.held, self.address = self._current.whole, self._current.held, 0

    @property
    def n_bytes(self) -> int:
        """Return the device memory of both buffers, in bytes."""
        return int(self._current.held.nbytes + self._other.held.nbytes)

    def turn(self, n_bytes: int) -> bool:
        """Make the other buffer current, with room for `n_bytes`, once its last upload is done.

        Returns:
            Whether the buffer was enlarged, and so has new addresses.
        """
        device = self._device
        # Everything submitted so far may still read this buffer, so its next upload waits for that.
        self._current.used = device.mark()
        self._current, self._other = self._other, self._current
        buffer = self._current
        buffer.wait()
        grows: bool = buffer.held.size < n_bytes
        if grows:
            buffer.whole = device.pinned(n_bytes * 5 // 4)
            buffer.held = device.empty(n_bytes * 5 // 4, np.dtype(np.uint8))
            # New device memory may be memory that was freed while submitted work still uses it, so the upload, which
            # runs concurrently, waits for that work.
            buffer.used, buffer.address = device.mark(), device.address(buffer.held)
        self.pinned, self.held, self.address = buffer.whole[:n_bytes], buffer.held, buffer.address
        return grows

    def send(self, first: int, end: int, to: int | None = None) -> None:
        """Start to upload bytes `first` to `end` of the current buffer; work submitted later sees them.

        Args:
            to: where they begin on the device; by default at `first`.
        """
        buffer, at = self._current, first if to is None else to
        if first < end:
            held = self.held[at : at + end - first]
            buffer.wait = self._device.copy_in(self.pinned[first:end], held, buffer.used)


class _StagingBuffer:
    """Host memory and its copy on the device.

    Attributes:
        whole: the host memory.
        held, address: the device memory, and its address.
        wait: waits for the last upload.
        used: marker of the last work that reads `held`.
    """

    def __init__(self, device: Device) -> None:
        self.whole = device.pinned(0)
        self.held: Any = device.empty(0, np.dtype(np.uint8))
        self.address = 0
        self.wait: Callable[[], None] = lambda: None
        self.used: Any = None
