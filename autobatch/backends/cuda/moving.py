"""Lay out row moves in memory, for the step of a launch that copies the rows: `move_rows` in `sweep.cuh`."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from autobatch.backends.base import RowMoves
from autobatch.backends.cuda.device_cell import THREADS, WARP
from autobatch.backends.cuda.memory import Packing
from autobatch.devices.device import Device

FIELDS = 6  # int64 of a pair


class PackedMoves:
    """Row moves, laid out in a piece of memory.

    Attributes:
        n_pairs: the number of pairs of arrays.
        n_bytes: the bytes of the piece.
        blocks: the number of blocks that have work.
    """

    def __init__(self, moves: RowMoves) -> None:
        self._moves, self.n_pairs = moves, len(moves.pairs)
        arrays = [np.ascontiguousarray(array) for array in (moves.found, moves.rows)]
        self._packing = Packing(8 * FIELDS * self.n_pairs, arrays)
        self.n_bytes = self._packing.n_bytes
        self.blocks = -(-moves.rows.size * WARP // THREADS)

    def write(self, memory: NDArray[np.uint8], address: int, device: Device) -> None:
        """Write the piece; `address` is the one that it will have on the device."""
        self._packing.fill(memory)
        step, (found, rows) = self._moves.rows.itemsize, (address + first for first in self._packing.offsets)
        memory[: 8 * FIELDS * self.n_pairs].view(np.int64).reshape(-1, FIELDS)[...] = [
            (
                device.address(column), device.address(table), found + step * first, rows + step * first, end - first,
                math.prod(table.shape[1:]),
            )
            for column, table, first, end in self._moves.pairs
        ]  # fmt: skip
