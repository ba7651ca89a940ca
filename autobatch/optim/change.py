"""The changes of an optimizer step, and the interface of their implementations `on_host` and `on_device`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from autobatch.devices.store import HOST, Store
from autobatch.params.parameter import FloatArray
from autobatch.params.sparse_rows import Gradient, Rows

N_CONSTANTS = 9
"""Length of a rule's hyperparameters, padded with zeros; see `native/run/optimizer.h`."""


class Placed(NamedTuple):
    """The arrays changed in place: the numbers of a parameter, and its first and second state array, if any."""

    data: FloatArray
    state: tuple[FloatArray | None, FloatArray | None]


class Change(NamedTuple):
    """The change of a parameter in a step. All arrays but the constants are on one device.

    Attributes:
        data, state: see `Placed`; state is contiguous.
        grad: an array of the parameter's shape, or `Rows` of that shape.
        constants: constants of the rule, (N_CONSTANTS,) in the parameter's dtype, on the host.
    """

    data: FloatArray
    state: tuple[FloatArray | None, FloatArray | None]
    grad: Gradient
    constants: FloatArray


class Updates(Protocol):
    """Carries out an optimizer's steps on one device, and caches addresses and layouts between steps."""

    def run(self, changes: Sequence[Change], lazy: bool, finite: Any) -> None:
        """Update parameters and their state.

        Args:
            changes: the changes, in the same order in every step, as long as the model stays the same.
            lazy: whether `Rows` update their rows alone.
            finite: see `autobatch.params.gradients.Gradients`.
        """


def store_of(grad: Any) -> Store:
    """Return the device memory that holds a gradient, an array of any library or `Rows`."""
    if isinstance(grad, Rows):
        return grad.store
    if type(grad) is np.ndarray:
        return HOST
    from autobatch.devices.finding import find_store_of

    return find_store_of(grad)


class Lines(NamedTuple):
    """An array in the form that native code and kernels read: rows of consecutive numbers, `step` numbers apart."""

    array: FloatArray
    """The array itself, or a copy if its memory does not have this form."""
    n_rows: int
    width: int
    step: int


def to_lines(array: FloatArray) -> Lines:
    """Convert a NumPy or device array to lines, one per index of its first axis, with a copy only if necessary."""
    n_rows = len(array) if array.ndim else 1
    width = array.size // max(n_rows, 1)
    if array.flags.c_contiguous:
        return Lines(array, n_rows, width, width)
    step, rest = divmod(array.strides[0], array.itemsize)
    # The stride need not be a multiple of the item size: a float64 field of a structured array may be 12 bytes apart.
    if step >= width and not rest and (array.ndim == 1 or array[0].flags.c_contiguous):
        return Lines(array, n_rows, width, step)
    return Lines(array.copy(), n_rows, width, width)
