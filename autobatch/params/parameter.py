"""Parameters: arrays that are learned or held fixed, and that can be used in arithmetic like any value."""

from __future__ import annotations

import weakref
from functools import cached_property
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from autobatch.errors import AutobatchError, DataError, GraphError, ShapeError
from autobatch.ops.operators import Operators

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]


Shape: TypeAlias = tuple[int, ...]


FLOAT32 = np.dtype(np.float32)


FLOAT64 = np.dtype(np.float64)


class Parameter(Operators):
    """An array that is learned or held fixed, and that can be used in arithmetic like any value.

    Compare parameters with `is`: hashes go by identity, and `==` is an op. Optimizers change `data` in place. Planning
    a cell, and `astype`, move the numbers to another array: read `data` again after either.

    What is computed from the numbers, such as a transpose, may be kept as long as `version` is the same. Whoever has
    `data`, or a view of it, may write there at any time. So `data` gives an array object of its own, which is not that
    of `array`, and as long as that object or a view of it is alive, each look at `version` finds another one.

    Args:
        data: numbers of any shape, or a tensor of torch; copied, and stored as float32 until `Module.astype` says
            otherwise.
        trainable: whether gradients are computed for it and optimizers change it.

    Raises:
        DataError: `data` holds something other than real numbers, or is ragged.

    >>> import autobatch as ab
    >>> bias = ab.Parameter([1, 2, 3])
    >>> bias
    Parameter(shape=(3,), dtype=float32)
    >>> bias.data = [4, 5, 6]
    >>> bias.data
    array([4., 5., 6.], dtype=float32)
    """

    def __init__(self, data: npt.ArrayLike, trainable: bool = True) -> None:
        self._data = to_floats(data, FLOAT32, "make a Parameter", DataError).copy()
        self.trainable = trainable

    _lent: weakref.ref[FloatArray] | None = None  # to what `data` gave, until it is known to be gone
    _version = 0
    home: Any = None  # the buffer that it shares with other parameters, see `autobatch.params.stacks`

    @cached_property
    def stacks(self) -> dict[tuple[tuple[int, ...], ...], Any]:
        """The stacks that begin with this parameter, by the `id`s of their parts, row by row."""
        return {}

    @property
    def data(self) -> FloatArray:
        """The array itself; assigning copies the numbers into it.

        Raises:
            ShapeError: the assigned array has another shape; nothing is broadcast.
            DataError: the assigned array holds something other than real numbers.
        """
        lent = None if self._lent is None else self._lent()
        if lent is None:
            self._version += 1
            lent = np.asarray(self._data.data)  # views of it refer to it, because what it refers to is no array
            self._lent = weakref.ref(lent)
        return lent

    @data.setter
    def data(self, values: npt.ArrayLike) -> None:
        floats = to_floats(values, self.dtype, "assign to Parameter.data", DataError)
        if floats.shape != self.shape:
            raise ShapeError(
                f"cannot assign an array of shape {floats.shape} to a Parameter of shape {self.shape}; "
                "assign one of the same shape, or make a new Parameter."
            )
        np.copyto(self._data, floats)
        self.note_change()

    @property
    def array(self) -> FloatArray:
        """The array, for readers and for whoever calls `note_change`; the same until the numbers are moved."""
        return self._data

    def note_change(self) -> None:
        """Take note that numbers of `array` were changed."""
        self._version += 1

    @property
    def version(self) -> int:
        """Another number whenever the numbers or their place may have changed since the last look."""
        if self._lent is not None:
            self._version += 1
            if self._lent() is None:
                self._lent = None
        return self._version

    @property
    def shape(self) -> Shape:
        """Length of each axis; () for a single number."""
        return self._data.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64."""
        return self._data.dtype

    def astype(self, dtype: npt.DTypeLike) -> Self:
        """Change the dtype in place, to float32 or float64, and return the parameter.

        Raises:
            DataError: `dtype` is neither.
        """
        self._keep(self._data.astype(float_dtype(dtype), copy=False))
        return self

    def move_to(self, array: FloatArray) -> None:
        """Copy the numbers into an array of the same shape, and keep them there from now on."""
        np.copyto(array, self._data)
        self._keep(array)

    def _keep(self, array: FloatArray) -> None:
        """Keep the numbers in this array from now on; who has `data` has an array of no parameter."""
        if array is not self._data:
            self._data, self._lent = array, None
            self.note_change()

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle only the numbers of this parameter, not the buffer that it shares with others."""
        return {name: value for name, value in vars(self).items() if name not in ("home", "stacks", "_lent")}

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise GraphError(
            f"cannot make a NumPy array of a Parameter of shape {self.shape}, for its gradient would be lost unseen; "
            "use an op of autobatch, or the array parameter.data where no gradient is meant."
        )

    def __repr__(self) -> str:
        frozen = "" if self.trainable else ", trainable=False"
        return f"Parameter(shape={self.shape}, dtype={self.dtype}{frozen})"


def to_floats(values: npt.ArrayLike, dtype: np.dtype[Any], doing: str, error: type[AutobatchError]) -> FloatArray:
    """Convert to an array of `dtype`, without a copy if `values` is one already; raise `error` if that fails.

    Args:
        values: anything that NumPy takes, or a tensor of torch on any device.
    """
    try:
        array = np.asarray(_from_torch(values))
    except (TypeError, ValueError, RuntimeError) as cause:
        raise error(f"cannot {doing}: no array can be made of it ({cause}); give an array of real numbers.") from cause
    if array.dtype.kind not in "fiub":
        raise error(f"cannot {doing}: it holds {array.dtype}, not real numbers; give an array of real numbers.")
    return array.astype(dtype, order="C", copy=False)


def _from_torch(values: Any) -> Any:
    """A tensor of torch, known by its methods, as one that NumPy reads: on the host, without its history; else as is.

    Floats of at most 16 bits become float32, which holds them exactly; NumPy lacks bf16.
    """
    if not (hasattr(values, "detach") and hasattr(values, "is_floating_point")):
        return values
    tensor = values.detach().cpu()
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() <= 2 else tensor


def float_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """float32 or float64 by any of its names; DataError for another dtype."""
    try:
        parsed = np.dtype(dtype)
    except TypeError:
        parsed = np.dtype(object)
    if dtype is None or parsed not in (FLOAT32, FLOAT64):  # np.dtype(None) is float64
        raise DataError(f"cannot convert parameters to {dtype!r}; give 'float32' or 'float64'.")
    return parsed
