"""Stores: the memory of a device, which holds parameters, values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autobatch.arrays import address_of, aligned


class Store(Protocol):
    """The memory of one device, and the array functions that work there.

    Attributes:
        kind: "cpu" or "cuda".
        xp: the module of array functions: NumPy, or its equivalent for the device's arrays.
    """

    kind: str
    xp: Any

    def empty(self, size: int, dtype: np.dtype[Any]) -> Any:
        """A flat, uninitialised array of the device with `size` elements, aligned to a cache line."""

    def put(self, array: Any) -> Any:
        """The array on the device: itself if it is there, else a copy of a NumPy array."""

    def get(self, array: Any) -> NDArray[Any]:
        """An array of the device as a NumPy array: itself if it is one, else a copy."""

    def copy_out(self, array: Any) -> Callable[[], NDArray[Any]]:
        """Begin to copy an array of the device, contiguous, to the host, after all work that was asked for.

        Returns:
            Waits for the copy and gives it; what the device does later does not change it.
        """

    def adopt(self, values: Any) -> Any | None:
        """What lies on the device already as an array of it, without a copy: arrays of any library with DLPack.

        None for all else, arrays of the processor's memory included.
        """

    def address(self, array: Any) -> int:
        """The address of the first element of an array of the device."""


class HostStore:
    """The memory of the processor: arrays are NumPy's."""

    kind = "cpu"
    xp: Any = np

    def __reduce__(self) -> str:
        """Copies and pickles are `HOST` itself."""
        return "HOST"

    def empty(self, size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """See `Store`."""
        return aligned(size, dtype)

    def put(self, array: Any) -> Any:
        """See `Store`."""
        return array

    def get(self, array: Any) -> NDArray[Any]:
        """See `Store`."""
        return array  # type: ignore[no-any-return]

    def copy_out(self, array: Any) -> Callable[[], NDArray[Any]]:
        """See `Store`."""
        found = np.array(array)
        return lambda: found

    def adopt(self, values: Any) -> Any | None:
        """See `Store`."""
        return None

    def address(self, array: Any) -> int:
        """See `Store`."""
        return address_of(array)

    def __deepcopy__(self, memo: object) -> HostStore:
        return self


HOST = HostStore()
