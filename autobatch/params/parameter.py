"""Parameters: arrays that are learned or frozen, and that can be used in arithmetic like any value."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import cached_property
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from autobatch.arguments import refusal, show
from autobatch.devices.store import HOST, Store
from autobatch.errors import AutobatchError, DataError, GraphError, ShapeError
from autobatch.keywords import checked
from autobatch.ops.operators import Operators

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]


Shape: TypeAlias = tuple[int, ...]


FLOAT32 = np.dtype(np.float32)


FLOAT64 = np.dtype(np.float64)


_lending = threading.Lock()  # so that all threads get the same `data` array of a parameter


class Parameter(Operators):
    """An array that is learned or frozen, and that can be used in arithmetic like any value.

    Compare parameters with `is`: hashes go by identity, and `==` is an op. Optimizers change `data` in place. Planning
    a cell, `astype` and `to` move the numbers to another array: read `data` again after any of them.

    Results derived from the numbers, such as a transpose, may be cached while `version` is unchanged. A holder of
    `data`, or of a view of it, may write to it at any time. `data` is therefore an array object distinct from `array`,
    and while it or a view of it is alive, every read of `version` returns a new number.

    Args:
        data: numbers of any shape, or a torch tensor; copied, and stored as float32 until `Module.astype` changes it.
        trainable: whether gradients are computed for it and optimizers change it.

    Attributes:
        array: the numbers, for readers and for writers that call `note_change`; the same array until they are moved.
        is_gone: whether it was removed from its model for good and will not be used again.
        n_bound: number of times it was rebound to another tensor.
        stays: whether others share the memory of its numbers, which stay there, so that stacks hold a copy.
        stays_contiguous: whether its numbers must be contiguous, and so are in no row of parameters side by side.

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

    @checked()
    def __init__(self, data: npt.ArrayLike, trainable: bool = True) -> None:
        self.array = to_floats(data, FLOAT32, "make a Parameter", DataError).copy()
        self.trainable = trainable

    array: FloatArray
    _store: Store = HOST
    _lent: Callable[[], FloatArray | None] | None = None  # returns the last `data`; None once that was freed
    _version = 0
    is_gone = False
    n_bound = 0
    stays = False
    stays_contiguous = False
    buffer: Any = None  # the `SharedBuffer` of `autobatch.params.stacks` that holds it, if any

    @cached_property
    def stacks(self) -> dict[tuple[tuple[int, ...], ...], Any]:
        """Return the stacks whose first part is this parameter, by the `id`s of all parts, row by row."""
        return {}

    @property
    def data(self) -> FloatArray:
        """Return the array itself, on its device; assigning copies numbers into it, from any device.

        Raises:
            ShapeError: the assigned array has another shape; nothing is broadcast.
            DataError: the assigned array holds something other than real numbers.
        """
        lent = None if self._lent is None else self._lent()
        return self._lend() if lent is None else lent

    @data.setter
    def data(self, values: npt.ArrayLike) -> None:
        floats = self.store.adopt(values)
        if floats is None:
            floats = to_floats(values, self.dtype, "assign to Parameter.data", DataError)
        if floats.shape != self.shape:
            raise ShapeError(
                f"cannot assign an array of shape {floats.shape} to a Parameter of shape {self.shape}; "
                "assign an array of the same shape, or make a new Parameter."
            )
        self.array[...] = self.store.put(floats)
        self.note_change()

    def _lend(self) -> FloatArray:
        """Make the array that `data` returns, and track its lifetime and that of its views."""
        with _lending:
            lent = None if self._lent is None else self._lent()
            if lent is not None:  # another thread was faster
                return lent
            self._version += 1
            if self._store is not HOST:
                array = self.array
                self._lent = lambda: array  # the lifetime of views on a device cannot be tracked
                return array
            # NumPy collapses chains of array bases, so a view of a view of `array` would refer to `array`. The base of
            # this array is a memoryview, which stops the collapse: views of `lent` refer to `lent` and keep it alive.
            lent = np.asarray(self.array.data)
            self._lent = weakref.ref(lent)
            return lent

    def note_change(self) -> None:
        """Record that numbers of `array` have changed, which changes `version`."""
        self._version += 1

    @property
    def version(self) -> int:
        """Return a number that changes whenever the numbers or their place may have changed since the last read."""
        lent = self._lent
        if lent is not None:
            self._version += 1
            if lent() is None and self._lent is lent:  # unless another thread has called `data` since
                self._lent = None
        return self._version

    checked_version = version
    """The version that also covers changes missed by `version`; subclasses that miss some compare the numbers."""

    @property
    def store(self) -> Store:
        """Return the device memory that holds the numbers."""
        return self._store

    @property
    def shape(self) -> Shape:
        """Return the length of each axis; () for a single number."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of the numbers, float32 or float64."""
        return self.array.dtype

    def astype(self, dtype: npt.DTypeLike) -> Self:
        """Change the dtype in place, to float32 or float64, and return the parameter.

        Raises:
            DataError: `dtype` is neither.
        """
        self._keep(self.array.astype(float_dtype(dtype), copy=False))
        return self

    def to(self, store: Store) -> Self:
        """Move the numbers to `store`, the memory of a device, and return the parameter."""
        if not hasattr(store, "put"):
            advice = 'for a device by its name call to("cpu") on the module'
            raise refusal("store of a parameter", "the memory of a device", store, advice=advice)
        if store is not self._store:
            moved, self._store = store.put(self._store.get(self.array)), store
            self._keep(moved)
        return self

    def move_to(self, array: FloatArray) -> None:
        """Copy the numbers into an array of the same shape and device, and make it the parameter's `array`."""
        array[...] = self.array
        self._keep(array)

    def _keep(self, array: FloatArray) -> None:
        """Make this the parameter's array; arrays returned by `data` before are no longer connected to it."""
        if array is not self.array:
            self.array, self._lent = array, None
            self.note_change()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles: this parameter's numbers, on the host, without the shared buffer."""
        own = ("buffer", "stacks", "_store", "_lent")
        return {**{name: x for name, x in vars(self).items() if name not in own}, "array": self.store.get(self.array)}

    def __copy__(self) -> Self:
        """Return a deep copy, because `version` tracks writes through one parameter only."""
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        vars(twin).update(deepcopy(self.__getstate__(), memo))
        return twin.to(self.store)  # the copied state is on the host

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise GraphError(
            f"cannot convert a Parameter of shape {self.shape} to a NumPy array, because its gradient would be lost; "
            "use an op of autobatch, or parameter.data if no gradient is needed."
        )

    def __repr__(self) -> str:
        frozen = "" if self.trainable else ", trainable=False"
        return f"Parameter(shape={self.shape}, dtype={self.dtype}{frozen})"


def versions_of(followed: Iterable[Parameter], others: Iterable[Parameter]) -> list[int]:
    """Return the versions of many parameters in one call.

    Args:
        followed: parameters to read `checked_version` of.
        others: parameters to read `version` of.
    """
    seen = list[int]()
    for p in followed:
        seen.append(p._version if type(p) is Parameter and p._lent is None else p.checked_version)
    for p in others:
        seen.append(p._version if type(p) is Parameter and p._lent is None else p.version)
    return seen


def to_floats(values: npt.ArrayLike, dtype: np.dtype[Any], doing: str, error: type[AutobatchError]) -> FloatArray:
    """Convert to a NumPy array of `dtype`, without a copy if `values` is one already.

    Args:
        values: anything that NumPy converts, a torch tensor on any device, or a CuPy array.
        doing: operation named in the error message, such as "make a Parameter".
        error: class of the error raised if the values are not real numbers.
    """
    try:
        array = np.asarray(_to_host(values))
    except (TypeError, ValueError, RuntimeError) as cause:
        raise error(f"cannot {doing}: the value is not an array ({cause}); give an array of real numbers.") from cause
    if array.dtype.kind not in "fiub":
        raise error(f"cannot {doing}: the value holds {array.dtype}, not real numbers; give an array of real numbers.")
    return array.astype(dtype, order="C", copy=False)


def _to_host(values: Any) -> Any:
    """Convert a torch tensor or a CuPy array, recognised by its methods, to host values that NumPy reads.

    Tensors are detached. Floats of at most 16 bits become float32, which is exact; NumPy lacks bf16. Return other
    values unchanged.
    """
    if hasattr(values, "__cuda_array_interface__") and hasattr(values, "get"):
        return values.get()
    if not (hasattr(values, "detach") and hasattr(values, "is_floating_point")):
        return values
    tensor = values.detach().cpu()
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() <= 2 else tensor


def float_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Parse any name of float32 or float64; raise a DataError for another dtype."""
    try:
        parsed = np.dtype(dtype)
    except TypeError:
        parsed = np.dtype(object)
    if dtype is None or parsed not in (FLOAT32, FLOAT64):  # np.dtype(None) is float64
        raise DataError(f"dtype of parameters must be 'float32' or 'float64', got {show(dtype)}.")
    return parsed
