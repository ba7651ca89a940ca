"""What compiled weight stages know of a gradient: three numbers, in the slots of the memory of their stage."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from autobatch.blas.product import find_step
from autobatch.params.sparse_rows import Gradient, Rows


class GradientSlots:
    """Reserves three slots of a stage for each gradient that its steps write.

    Args:
        slots: the numbers of the stage's slots, by name, which are added to.

    Attributes:
        first: the first slot of each gradient, by the number of the parameter among the values of the cell.
    """

    def __init__(self, slots: dict[str, int]) -> None:
        self._slots, self.first = slots, dict[int, int]()

    def of(self, parameter: int) -> int:
        """The first slot of the gradient of a parameter."""
        if parameter not in self.first:
            self.first[parameter] = len(self._slots)
            self._slots |= {f"gradient_{parameter}_{part}": len(self._slots) + part for part in range(3)}
        return self.first[parameter]


def dense(gradient: Gradient) -> Any:
    """A gradient that must be an array, because its parameter is not read by lookup alone."""
    assert not isinstance(gradient, Rows), "only the parameters in row_parameters have Rows"
    return gradient


def as_matrix(gradient: Any) -> Any:
    """A gradient as a matrix whose rows are its first axis."""
    return gradient.reshape(1, -1) if gradient.ndim < 2 else gradient.reshape(len(gradient), prod(gradient.shape[1:]))


def slots_of(gradient: Gradient, address_of: Callable[[Any], int]) -> tuple[int, int, int]:
    """The address of a gradient, and the elements from row to row and from column to column; one of these is 1.

    Raises:
        ShapeError: neither its rows nor its columns are contiguous.
    """
    matrix = as_matrix(dense(gradient))
    is_flipped, step = find_step("the gradient of a matrix", matrix)
    return (address_of(matrix), 1, step) if is_flipped else (address_of(matrix), step, 1)
