"""Kept values that are read as whole columns, for the results of many requests at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.arrays import IntArray
from autobatch.engine.kept_values import KeptValues


class KeptResults(KeptValues):
    """The kept values of requests."""

    @property
    def n_bytes(self) -> int:
        """Return the bytes of the rows that programs may still read, except those of the last run."""
        sizes = [n * math.prod(self._table_of(slot).row) for slot, n in enumerate(self.rows.in_use.tolist()) if n]
        return self._dtype.itemsize * int(sum(sizes))

    def columns(self, values: IntArray, slots: Sequence[int], shapes: Sequence[tuple[int, ...]]) -> list[NDArray[Any]]:
        """Return the result values of programs as one column per slot.

        Args:
            values: the values, in the order of the programs.
            slots: the slot of each value.
            shapes: the shape of each slot.
        """
        of_each = np.asarray(slots, np.int64)
        return [self._rows_of(values[of_each == slot], shape) for slot, shape in enumerate(shapes)]

    def _rows_of(self, values: IntArray, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the rows of values of one shape and type, which are all kept in the same slot."""
        found = np.empty((values.size, *shape), self._dtype)
        for _, places, rows in self._columns(values):
            found[... if places is None else places] = rows
        return found
