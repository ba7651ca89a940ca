"""NumPy restricted to CuPy's functions, so that kernels which use more fail here, without a GPU.

Source: CuPy's reference (docs.cupy.dev, "Comparison Table") and its `_kernel.pyx`, version 13.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

UFUNCS = (
    "abs", "add", "cos", "equal", "exp", "greater", "greater_equal", "less", "less_equal", "log", "logaddexp",
    "maximum", "minimum", "multiply", "negative", "not_equal", "power", "sin", "sqrt", "square", "subtract", "tanh",
    "true_divide",
)  # fmt: skip
FUNCTIONS = (
    "amax", "argmax", "argsort", "arange", "asarray", "ascontiguousarray", "atleast_1d", "bincount", "broadcast_to",
    "concatenate", "cumsum", "empty", "flatnonzero", "isnan", "outer", "ones", "partition", "sum", "take_along_axis",
    "tensordot", "where", "zeros",
)  # fmt: skip
CONSTANTS = ("inf", "int64", "uint64")


class Ufunc:
    """A ufunc with CuPy's methods, `at` and (for `add`) `reduceat`, and only `out` and `dtype` as keywords."""

    def __init__(self, ufunc: np.ufunc) -> None:
        self.ufunc, self.at = ufunc, ufunc.at

    def __call__(self, *args: Any, out: Any = None, dtype: Any = None) -> Any:
        return self.ufunc(*args, out=out, dtype=dtype)

    def reduceat(self, array: Any, indices: Any, axis: int = 0) -> Any:
        if self.ufunc is not np.add:
            raise NotImplementedError(f"`{self.ufunc.__name__}.reduceat` is not supported yet")
        return np.add.reduceat(array, indices, axis)


def take(array: Any, indices: Any, axis: int, out: Any) -> Any:
    """Take without a `mode` argument."""
    return np.take(array, indices, axis, out, mode="clip")


def matmul(x: Any, y: Any, out: Any = None) -> Any:
    """Multiply without other keywords."""
    return np.matmul(x, y, out=out)


def repeat(*args: Any) -> NoReturn:
    raise ValueError("repeats must be an int or a list: counts on the device are not supported")


CUPY = SimpleNamespace(
    __name__="cupy",
    take=take,
    matmul=matmul,
    repeat=repeat,
    **{name: Ufunc(getattr(np, name)) for name in UFUNCS},
    **{name: getattr(np, name) for name in (*FUNCTIONS, *CONSTANTS)},
)
