"""Device memory, which holds parameters, values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autobatch.arrays import address_of, aligned


class Store(Protocol):
    """The memory of one device, and its array functions.

    Attributes:
        kind: "cpu" or "cuda".
        xp: NumPy, or the equivalent module for the device's arrays.
    """

    kind: str
    xp: Any

    def empty(self, size: int, dtype: np.dtype[Any]) -> Any:
        """Allocate an uninitialised device array of shape (size,), aligned to a cache line."""

    def put(self, array: Any) -> Any:
        """Return the array on the device: `array` itself if it is there, else a copy of the NumPy array."""

    def get(self, array: Any) -> NDArray[Any]:
        """Return a device array as a NumPy array: itself if it is one, else a copy."""

    def copy_out(self, array: Any) -> Callable[[], NDArray[Any]]:
        """Start to copy a contiguous device array to the host, after all work submitted so far.

        Returns:
            A function that waits for the copy and returns it; later work on the device does not change the copy.
        """

    def adopt(self, values: Any) -> Any | None:
        """Return values that are on this device as a device array, without a copy, from any library with DLPack.

        Return None for all others, including arrays in host memory.
        """

    def address(self, array: Any) -> int:
        """Return the address of the first element of a device array."""


class HostStore:
    """Host memory as a `Store`; its arrays are NumPy arrays."""

    kind = "cpu"
    xp: Any = np

    def __reduce__(self) -> str:
        """Make copies and pickles `HOST` itself."""
        return "HOST"

    def empty(self, size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        return aligned(size, dtype)

    def put(self, array: Any) -> Any:
        return array

    def get(self, array: Any) -> NDArray[Any]:
        return array  # type: ignore[no-any-return]

    def copy_out(self, array: Any) -> Callable[[], NDArray[Any]]:
        found = np.array(array)
        return lambda: found

    def adopt(self, values: Any) -> Any | None:
        return None

    def address(self, array: Any) -> int:
        return address_of(array)

    def __deepcopy__(self, memo: object) -> HostStore:
        return self


HOST = HostStore()
