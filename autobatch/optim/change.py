"""What a step changes, and what carries it out: on the host (`on_host`), or on a device (`on_device`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from autobatch.devices.store import HOST, Store
from autobatch.params.parameter import FloatArray
from autobatch.params.sparse_rows import Gradient, Rows

N_CONSTANTS = 9
"""The hyperparameters of a rule, and zeros behind them; see `native/run/optimizer.h`."""


class Placed(NamedTuple):
    """What changes in place: the numbers of a parameter, and its first and second state array, if it has them."""

    data: FloatArray
    state: tuple[FloatArray | None, FloatArray | None]


class Change(NamedTuple):
    """The change of a parameter in a step.

    Attributes:
        data, state: see `Placed`; state is contiguous.
        grad: an array of its shape, or `Rows` of one.
        constants: of the rule, N_CONSTANTS in the dtype of the parameter.

    All arrays but the constants are on one device.
    """

    data: FloatArray
    state: tuple[FloatArray | None, FloatArray | None]
    grad: Gradient
    constants: FloatArray


class Updates(Protocol):
    """Carries out the steps of an optimizer on one device, and keeps what it looked up for the next step."""

    def run(self, changes: Sequence[Change], lazy: bool, finite: Any) -> None:
        """Change parameters and their state.

        Args:
            changes: in the same order in every step, as long as the model stays the same.
            lazy: `Rows` change their rows alone.
            finite: see `autobatch.params.gradients.Gradients`.
        """


def store_of(grad: Any) -> Store:
    """The memory that a gradient lies in, which may be an array of any library, or none."""
    if isinstance(grad, Rows):
        return grad.store
    if type(grad) is np.ndarray:
        return HOST
    from autobatch.devices.finding import find_store_of

    return find_store_of(grad)


class Lines(NamedTuple):
    """An array as native code and kernels read it: rows of consecutive numbers that begin `step` numbers apart."""

    array: FloatArray
    """The array itself, or a copy if its memory has no such rows."""
    n_rows: int
    width: int
    step: int


def to_lines(array: FloatArray) -> Lines:
    """An array, of NumPy or of a device, as lines, one for each index of its first axis."""
    n_rows = len(array) if array.ndim else 1
    width = array.size // max(n_rows, 1)
    if array.flags.c_contiguous:
        return Lines(array, n_rows, width, width)
    step, rest = divmod(array.strides[0], array.itemsize)
    # Lines of a field of a structured array may begin 12 bytes apart, with items of 8 bytes.
    if step >= width and not rest and (array.ndim == 1 or array[0].flags.c_contiguous):
        return Lines(array, n_rows, width, step)
    return Lines(array.copy(), n_rows, width, width)
