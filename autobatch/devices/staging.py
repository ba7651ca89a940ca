"""Upload ahead: memory of the host to fill, and the memory of a device to which it is copied, twice.

The two take turns: one is filled and copied while the device still reads the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.devices.device import Device


class Staging:
    """What is uploaded for one launch after another."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._current, self._other = _StagingBuffer(device), _StagingBuffer(device)

    @property
    def pinned(self) -> NDArray[np.uint8]:
        """The memory of the host whose turn it is, to fill."""
        return self._current.pinned

    @property
    def held(self) -> Any:
        """Its copy on the device, as bytes; perhaps larger."""
        return self._current.held

    @property
    def n_bytes(self) -> int:
        """Bytes held on the device."""
        return int(self._current.held.nbytes + self._other.held.nbytes)

    def turn(self, n_bytes: int) -> bool:
        """Give the other memory its turn, with so much room, when its last copy is done; return whether it grew."""
        device = self._device
        self._current.used = device.mark()
        self._current, self._other = buffer, _ = self._other, self._current
        buffer.wait()
        grows: bool = buffer.held.size < n_bytes
        if grows:
            buffer.whole = device.pinned(n_bytes * 5 // 4)
            buffer.held = device.empty(n_bytes * 5 // 4, np.dtype(np.uint8))
            buffer.used = device.mark()
        buffer.pinned = buffer.whole[:n_bytes]
        return grows

    def send(self, first: int, end: int) -> None:
        """Begin to copy some bytes to the same place on the device; work that is asked for later finds them there."""
        buffer = self._current
        if first < end:
            buffer.wait = self._device.copy_in(buffer.pinned[first:end], buffer.held[first:end], buffer.used)


class _StagingBuffer:
    """Memory of the host, and its copy.

    Attributes:
        whole, pinned: of the host; and as much of it as is used.
        held: of the device.
        wait: waits until the last copy is done.
        used: the work on the device after which `held` may change.
    """

    def __init__(self, device: Device) -> None:
        self.whole = self.pinned = device.pinned(0)
        self.held: Any = device.empty(0, np.dtype(np.uint8))
        self.wait: Callable[[], None] = lambda: None
        self.used: Any = None
