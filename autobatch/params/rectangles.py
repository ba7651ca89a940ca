"""Rectangles of a matrix that hold other arrays without a copy.

An array of any shape is treated as a matrix whose rows are indexed by its first axis. A view of a rectangle has the
row stride of the whole matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from autobatch.devices.store import HOST, Store

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
Shape: TypeAlias = tuple[int, ...]


class Rectangle(NamedTuple):
    """Some rows and columns of a matrix."""

    row: int
    column: int
    height: int
    width: int

    def of(self, matrix: FloatArray, shape: Shape) -> FloatArray:
        """Return a view of this part of a matrix, in a shape with the same number of rows and elements."""
        part = matrix[self.row : self.row + self.height, self.column : self.column + self.width]
        return part.reshape(shape)

    def of_each(self, arrays: FloatArray) -> FloatArray:
        """Return this part of each of some arrays (n, *shape), as matrices."""
        matrices = arrays.reshape(*arrays.shape[:2], math.prod(arrays.shape[2:]))
        return matrices[:, self.row : self.row + self.height, self.column : self.column + self.width]

    def moved(self, rows: int, columns: int) -> Rectangle:
        """Return the rectangle shifted by `rows` and `columns`."""
        return self._replace(row=self.row + rows, column=self.column + columns)


def tile(rows: Sequence[Sequence[Shape]]) -> tuple[Rectangle, ...]:
    """Place arrays side by side in rows, one row below the other.

    Args:
        rows: shapes of the arrays; first axes are equal within a row, and all rows have the same width.

    Returns:
        The rectangles of the arrays, in order.

    >>> tile([[(2, 3), (2, 1)], [(1, 4)]])[2]
    Rectangle(row=2, column=0, height=1, width=4)
    """
    found: list[Rectangle] = []
    top = 0
    for row in rows:
        left = 0
        for height, *others in row:
            found.append(Rectangle(top, left, height, math.prod(others)))
            left += found[-1].width
        top += found[-1].height
    return tuple(found)


def bounds(rectangles: Sequence[Rectangle]) -> tuple[int, int]:
    """Return the height and width of the smallest matrix that holds the rectangles."""
    return max(r.row + r.height for r in rectangles), max(r.column + r.width for r in rectangles)


def find_whole(arrays: Sequence[FloatArray], rectangles: Sequence[Rectangle], store: Store = HOST) -> FloatArray | None:
    """Find the matrix in memory whose rectangles at these positions are exactly the arrays.

    Args:
        store: device memory that holds the arrays.

    Returns:
        A view of the bounding box of the rectangles, or None if the arrays do not lie in one matrix like this.

    >>> matrix = np.zeros((3, 4))
    >>> left, right = Rectangle(0, 0, 2, 1), Rectangle(0, 1, 2, 2)
    >>> find_whole([matrix[1:, 1:2], matrix[1:, 2:]], [left, right]).shape
    (2, 3)
    >>> find_whole([matrix[1:, 2:3], matrix[1:, 1:3]], [left, right]) is None
    True
    """
    base: Any = arrays[0].base
    if getattr(base, "ndim", 0) != 2 or not base.flags.c_contiguous or not base.size:
        return None
    # The first array is at (row, column) of its base, and the whole is above and left of it by the place of its
    # rectangle.
    row, column = divmod((store.address(arrays[0]) - store.address(base)) // base.itemsize, base.shape[1])
    row, column = row - rectangles[0].row, column - rectangles[0].column
    height, width = bounds(rectangles)
    if row < 0 or column < 0 or row + height > base.shape[0] or column + width > base.shape[1]:
        return None
    for array, rectangle in zip(arrays, rectangles, strict=True):
        if id(array.base) != id(base) or array.dtype != base.dtype or array.size != rectangle.height * rectangle.width:
            return None
        there = rectangle.moved(row, column).of(base, array.shape)
        # Elsewhere in the base, or with its elements in another order.
        if store.address(array) != store.address(there) or array.strides != there.strides:
            return None
    return Rectangle(row, column, height, width).of(base, (height, width))
