"""Int and bool data of a cell in eager mode, whose arithmetic gives floats as in a batch.

NumPy computes small ints in their own dtype, where 200 + 100 can be 44, and `+` of bools is a logical `or`. In a batch,
ints and bools are ordinary numbers, so eager mode routes the same operators through the same ops.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from autobatch.ops.conditions import COMPARISONS
from autobatch.ops.define import float_dtype
from autobatch.ops.eager import EagerArray, freeze
from autobatch.ops.operators import FUNCTIONS, OPS, REDUCTIONS, UFUNCS, Operators

PRODUCTS = frozenset((
    np.dot, np.inner, np.vdot, np.outer, np.tensordot, np.einsum, np.kron, np.cross, np.convolve, np.correlate,
))  # fmt: skip
"""NumPy's functions that compute products without its ufuncs, in the dtype of their arguments."""


class EagerData(EagerArray):
    """An array of ints or bools whose arithmetic gives floats, and whose elements are arrays without axes.

    Comparisons give conditions, and `&`, `|`, `^` and `~` are NumPy's.
    """

    __slots__ = ()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        name = UFUNCS.get(ufunc)
        plain = [np.asarray(x) if isinstance(x, EagerArray) else x for x in inputs]
        if name is not None and name not in COMPARISONS and method == "__call__" and not kwargs:
            numbers = [float(x) if isinstance(x, np.floating) else x for x in plain]  # must not decide the dtype
            return (FUNCTIONS if name == "matmul" else OPS)[name](*numbers)
        if any(isinstance(x, Operators) for x in inputs):  # their own operators apply the op
            return NotImplemented
        result = getattr(ufunc, method)(*plain, **kwargs)
        if method == "reduce" and ufunc in REDUCTIONS and result.dtype.kind in "iub":
            result = result.astype(np.float64)
        return freeze(result)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function not in PRODUCTS or not all(issubclass(kind, np.ndarray) for kind in types):
            return super().__array_function__(function, types, args, kwargs)
        own = [x for x in (*args, *kwargs.values()) if isinstance(x, np.ndarray)]
        dtype = float_dtype(tuple(own), own)
        given = {name: _as_floats(x, dtype) for name, x in kwargs.items()}
        return freeze(function(*(_as_floats(x, dtype) for x in args), **given))

    def dot(self, other: Any) -> Any:
        """Multiply as np.dot does."""
        return np.dot(self, other)

    def __pow__(self, other: Any) -> Any:
        return OPS["pow"](np.asarray(self), other)  # NumPy turns x ** 2 into a square

    __ipow__ = __pow__

    def __getitem__(self, index: Any) -> Any:
        return as_data(np.asarray(super().__getitem__(index)))

    def __iter__(self) -> Iterator[Any]:
        return iter([self[i] for i in range(len(self))])


def as_data(array: Any) -> Any:
    """Make an array read-only, and an `EagerData` if it holds ints or bools."""
    frozen = freeze(array)
    return frozen.view(EagerData) if frozen.dtype.kind in "iub" else frozen


def _as_floats(x: Any, dtype: np.dtype[Any]) -> Any:
    return np.asarray(x, dtype) if isinstance(x, np.ndarray) and x.dtype.kind in "iub" else x
