"""Pack the arrays that a run reads into one piece of memory, so that one copy moves them to the device."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 16  # bytes


class Packing:
    """Arrays that are laid out one after the other in a piece of memory.

    Attributes:
        n_bytes: the bytes of the piece.
    """

    def __init__(self) -> None:
        self._arrays: list[tuple[int, NDArray[Any]]] = []
        self.n_bytes = 0

    def reserve(self, n_bytes: int) -> int:
        """Reserve bytes that are filled in later; return the offset of the first."""
        first = self.n_bytes
        self.n_bytes += -(-n_bytes // ALIGNMENT) * ALIGNMENT
        return first

    def add(self, array: NDArray[Any]) -> int:
        """Add an array; return the offset of its first byte."""
        first = self.reserve(array.nbytes)
        self._arrays.append((first, array))
        return first

    def fill(self, memory: NDArray[np.uint8]) -> None:
        """Copy the arrays into memory."""
        for first, array in self._arrays:
            memory[first : first + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
