"""Clipping on a device: one launch measures all gradients, another scales them, and the host does not wait.

The kernels are in `kernels.cuh`. Squares are summed in float64 in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autobatch.devices.device import Device
from autobatch.devices.staging import Staging
from autobatch.optim.change import to_lines
from autobatch.optim.entries import ENTRY, N_WORDS, borrow, count_pieces, describe_gradient, launch
from autobatch.params.parameter import FloatArray

Squares: TypeAlias = Callable[[], NDArray[Any]]
N_CLIPPING = 7  # words of `Clipping` in `kernels.cuh`


class DeviceClipping:
    """Clips gradients on a device, in memory that is reused."""

    def __init__(self, device: Device) -> None:
        self._device, self._staging = device, Staging(device)
        self._sums = device.empty(0, np.dtype(np.float64))
        self._n_done = device.put(np.zeros(1, np.int64))

    def clip(self, numbers: Mapping[str, FloatArray], max_norm: float, finite: Any) -> Squares:
        """Scale device arrays to a common norm of at most `max_norm`; see `autobatch.optim.clip`.

        Args:
            finite: an array of one bool to set to False if the norm is not finite, or None.

        Returns:
            A function that waits for the sums of squares, one per array, and returns them.
        """
        device, n = self._device, len(numbers)
        entries, lines = np.zeros(n, ENTRY), {name: to_lines(array) for name, array in numbers.items()}
        for entry, one in zip(entries, lines.values(), strict=True):
            describe_gradient(entry, one, device)
        n_pieces = count_pieces(entries)
        if n_pieces == 0:
            return lambda: np.zeros(n)
        if self._sums.size < n + n_pieces:
            self._sums = device.empty((n + n_pieces) * 5 // 4, np.dtype(np.float64))
        words, address = borrow(self._staging, n * N_WORDS + N_CLIPPING, device)
        squares, clipping = device.address(self._sums), n * N_WORDS
        words[:clipping] = entries.view(np.int64)
        flag = 0 if finite is None else device.address(finite)
        words[clipping:] = address, n, 0, squares + 8 * n, squares, device.address(self._n_done), flag
        words[clipping + 2 : clipping + 3].view(np.float64)[0] = max_norm
        self._staging.send(0, words.nbytes)
        launch(device, "measure", n_pieces, address + 8 * clipping)
        if max_norm < math.inf:
            launch(device, "scale", n_pieces, address + 8 * clipping)
        for name, one in lines.items():
            if one.array is not numbers[name]:
                numbers[name][...] = one.array
        return device.copy_out(self._sums[:n])
