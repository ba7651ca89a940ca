"""What a step changes, and what carries it out: on the host (`on_host`), or on a device (`on_device`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from autobatch.errors import NumericError
from autobatch.params.parameter import FloatArray
from autobatch.params.sparse_rows import Gradient


class Placed(NamedTuple):
    """What changes in place: the numbers of a parameter, and its first and second state array, if it has them."""

    data: FloatArray
    state: tuple[FloatArray | None, FloatArray | None]


class Change(NamedTuple):
    """The change of a parameter in a step.

    Attributes:
        data, state: see `Placed`; state is contiguous.
        grad: an array of its shape, or `Rows` of one.
        constants: of the rule (`autobatch.optim.rules`), N_NUMBERS in the dtype of the parameter.

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


class Lines(NamedTuple):
    """An array as compiled code and kernels read it: rows of consecutive numbers that begin `step` numbers apart."""

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


def check_norm(name: str, norm: float) -> None:
    """Raise a NumericError if the norm of a gradient is not finite."""
    if not math.isfinite(norm):
        raise NumericError(
            f"cannot clip gradients: the norm of the gradient of {name!r} is {norm}, no finite number; "
            "skip this step, or lower the learning rate."
        )
