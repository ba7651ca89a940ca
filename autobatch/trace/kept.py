"""Tables of kept values, which one round of async programs computes and a later one reads; each has rows of a shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from autobatch.devices.store import Store
from autobatch.ops.define import MOST_INTS, Shape
from autobatch.params.parameter import Parameter


class Kept(Parameter):
    """A table of kept values: a parameter whose rows are looked up, and whose gradients are those of the values.

    Its `shape`, which programs read, has the maximum number of rows; its array has as many as were needed so far. Its
    version changes only with its place, because kernels look up rows in place and nothing is computed from it ahead.

    Args:
        row: the shape of a row.
    """

    def __init__(self, row: Shape) -> None:
        super().__init__(np.zeros((0, *row)))
        self.row = row

    @property
    def shape(self) -> Shape:
        """Return the shape of the whole table."""
        return (MOST_INTS, *self.row)

    def reserve(self, n: int, dtype: np.dtype[Any], store: Store) -> None:
        """Make room for n rows on a device; existing rows are kept if they are on it and have this float type."""
        array = self.array
        is_right = self.store is store and array.dtype == dtype
        if is_right and n <= len(array):
            return
        n = max(n, 2 * len(array), 64)
        grown = store.empty(n * max(int(np.prod(self.row)), 1), dtype)[: n * int(np.prod(self.row))]
        grown = grown.reshape(n, *self.row)
        if is_right:
            grown[: len(array)] = array
        self._store = store
        self._keep(grown)
