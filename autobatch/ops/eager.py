"""Eager arrays: the reader of users' arrays, and the class of eager results.

A value of a recorded or traced program never changes: `t += 1.0` makes a new value, and other names of the old one are
unaffected. Eager mode must give the same results, so its arrays have a class of their own with the same behavior. A
read-only NumPy array would behave differently: it rejects `t += 1.0`, which a batched program accepts, and results of
operators such as `h * 2.0` could still be changed in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.arguments import refusal
from autobatch.errors import DataError, GraphError

Plain: Any = np.ndarray
NUMBERS = "?bBhHiIlLqQefd"  # the dtypes that ops accept, as NumPy's letters


class EagerArray(Plain):  # type: ignore[misc]
    """An array whose operators `+=`, `*=`, ... make a new array, as those of recorded and traced values do.

    Results of ops and cells are also read-only. `np.array(x)` and `x.copy()` are plain, writable arrays.

    >>> import autobatch as ab
    >>> h = ab.relu(np.ones(2))
    >>> t = h
    >>> t += 1.0
    >>> h, t
    (array([1., 1.]), array([2., 2.]))
    """

    __slots__ = ()
    __iadd__, __isub__, __imul__, __itruediv__ = Plain.__add__, Plain.__sub__, Plain.__mul__, Plain.__truediv__
    __ifloordiv__, __imod__, __ipow__, __imatmul__ = Plain.__floordiv__, Plain.__mod__, Plain.__pow__, Plain.__matmul__
    __iand__, __ior__, __ixor__ = Plain.__and__, Plain.__or__, Plain.__xor__
    __ilshift__, __irshift__ = Plain.__lshift__, Plain.__rshift__

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """Return the results of NumPy's functions in this class too, except scalars."""
        if context is not None and array.dtype.char in "be":  # int8 and float16
            array = _widened(array, *context)
        return array[()] if return_scalar else array.view(EagerArray)

    def __setitem__(self, index: Any, value: Any) -> None:
        if not self.flags.writeable:
            raise GraphError(
                "an eager result, or an input of a cell, cannot be changed in place; make a new one, for example with "
                "t = t + 1.0, ab.concat or ab.where, or change a copy, np.array(t)."
            )
        super().__setitem__(index, value)

    def copy(self, order: Any = "C") -> Any:
        """Copy into a plain array."""
        return np.array(self, order=order)

    def __copy__(self) -> Any:
        return self.copy()

    def __deepcopy__(self, memo: object) -> Any:
        return self.copy()

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()

    def __repr__(self) -> str:
        return repr(np.asarray(self))


def _widened(result: Any, ufunc: Any, given: Sequence[Any], which: int) -> Any:
    """Return a result of a function of conditions as float64, because they are floats in a batch; other results as is.

    Args:
        result: as NumPy computes it, in int8 or float16 if all arguments are bools.
        given: the arguments, and then arrays for the results.
        which: the number of the result.
    """
    args = given[: ufunc.nin]
    if any(x.dtype != bool for x in args if isinstance(x, (np.ndarray, np.generic))):
        return result
    floats = [np.asarray(x, np.float64) if isinstance(x, (np.ndarray, np.generic)) else x for x in args]
    found = ufunc(*floats)
    return np.asarray(found[which] if ufunc.nout > 1 else found)


def freeze(x: Any) -> Any:
    """Return an array as a read-only `EagerArray`, and NumPy's scalars, which are immutable, unchanged."""
    if isinstance(x, np.ndarray) and not (type(x) is EagerArray and not x.flags.writeable):
        x = (x if type(x) is np.ndarray else unwrap(x)).view(EagerArray)
        x.setflags(write=False)
    return x


def plain_array(x: Any) -> NDArray[Any]:
    """Read `x` as a plain array of floats, ints or bools; floats wider than float64 become float64.

    Raises:
        DataError: `x` holds values of another kind, or has a mask.
    """
    return to_numbers(x if type(x) is np.ndarray else unwrap(to_number(x)))


def unwrap(x: Any) -> NDArray[Any]:
    """Return `x`, such as an np.memmap or np.matrix, as a view of NumPy's own array class."""
    if isinstance(x, np.ndarray) and not isinstance(x, EagerArray) and isinstance(x, np.ma.MaskedArray):
        raise DataError(
            f"an array must not have a mask, got a masked array of shape {x.shape}; give x.filled(number), and the "
            f"mask as an argument of its own."
        )
    try:
        return np.asarray(x)
    except ValueError as error:  # lists of different lengths
        raise refusal("a value", "a number or an array", x) from error


def to_number(x: Any) -> Any:
    """Convert a Python int that no NumPy int can hold to a float; return other values unchanged.

    Raises:
        DataError: the int is too large for a float64 too.
    """
    if not isinstance(x, int) or -(2**63) <= x < 2**64:
        return x
    try:
        return float(x)
    except OverflowError:
        raise DataError(f"an int must fit a float64, got one of {x.bit_length()} bits.") from None


def to_numbers(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array, on the host or a device, as one of floats, ints or bools; see `plain_array`."""
    if array.dtype.char in NUMBERS:
        return array
    if array.dtype.kind == "f":
        return array.astype(np.float64)
    raise DataError(
        f"an array must hold floats, ints or bools, got dtype {array.dtype} (shape {array.shape}); convert it first."
    )
