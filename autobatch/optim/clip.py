"""Gradient clipping: scales all gradients by one factor if their norm is too large."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from autobatch.errors import DataError, NumericError
from autobatch.params.parameter import FloatArray
from autobatch.params.sparse_rows import Gradient, Rows


def clip_by_norm(grads: Mapping[str, Gradient], max_norm: float) -> float:
    """Scale all gradients in place by one factor, so that their common norm is at most `max_norm`.

    Args:
        grads: parameter name to gradient, an array of any shape or `Rows`.
        max_norm: above 0, in the units of the gradients; infinity only measures.

    Returns:
        The Euclidean norm over all numbers of all gradients, before scaling.

    Raises:
        NumericError: a gradient holds NaN or infinity; the message names it and nothing has changed.
        DataError: `max_norm` is not above 0, or a gradient is not a writeable array of floats.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> grads = {"weight": np.array([3.0, 0.0]), "bias": np.array([4.0])}
    >>> ab.optim.clip_by_norm(grads, 1.0)
    5.0
    >>> print(grads["weight"], grads["bias"])
    [0.6 0. ] [0.8]
    """
    if not max_norm > 0.0:
        raise DataError(f"cannot clip gradients to a norm of {max_norm}; give a number above 0.")
    for name, grad in grads.items():
        numbers = _numbers(grad)
        if not isinstance(numbers, np.ndarray) or numbers.dtype.kind != "f" or not numbers.flags.writeable:
            raise DataError(
                f"cannot clip gradients: that of {name!r} is no array of floats that can be changed; give gradients "
                "as value_and_grad returns them, or copies."
            )
    norms = {name: _norm(grad) for name, grad in grads.items()}
    for name, norm in norms.items():
        if not math.isfinite(norm):
            raise NumericError(
                f"cannot clip gradients: the norm of the gradient of {name!r} is {norm}, no finite number; "
                "skip this step, or lower the learning rate."
            )
    total = math.hypot(*norms.values())
    if total > max_norm:
        for grad in grads.values():
            numbers = _numbers(grad)
            numbers *= max_norm / total
    return total


def _norm(grad: Gradient) -> float:
    numbers = _numbers(grad)
    lines = 1 if numbers.flags.c_contiguous else len(numbers)  # columns of a larger array are no line without a copy
    numbers = numbers.reshape(lines, -1)
    with np.errstate(all="ignore"):
        square = float(np.dot(numbers[0], numbers[0]) if lines == 1 else np.einsum("ij,ij->", numbers, numbers))
        if not math.isfinite(square):  # in float32 the square of 1e20 is infinite
            square = float(np.einsum("ij,ij->", numbers, numbers, dtype=np.float64))
    return math.sqrt(square)


def _numbers(grad: Gradient) -> FloatArray:
    return grad.values if isinstance(grad, Rows) else grad
