"""Parameters: arrays that are learned or held fixed, and that can be used in arithmetic like any value."""

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


_lending = threading.Lock()  # all threads that have `data` of a parameter have the same array


class Parameter(Operators):
    """An array that is learned or held fixed, and that can be used in arithmetic like any value.

    Compare parameters with `is`: hashes go by identity, and `==` is an op. Optimizers change `data` in place. Planning
    a cell, `astype` and `to` move the numbers to another array: read `data` again after any of them.

    What is computed from the numbers, such as a transpose, may be kept as long as `version` is the same. A holder
    of `data`, or of a view of it, may write there at any time. So `data` gives an array object of its own, which is
    not that of `array`, and as long as that object or a view of it is alive, each look at `version` finds another one.

    Args:
        data: numbers of any shape, or a tensor of torch; copied, and stored as float32 until `Module.astype` says
            otherwise.
        trainable: whether gradients are computed for it and optimizers change it.

    Attributes:
        array: the numbers, for readers and for writers that call `note_change`; the same array until they are moved.
        is_gone: whether it was removed from its model for good and will not be used again.
        n_bound: how often it was rebound to another tensor.

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
    _lent: Callable[[], FloatArray | None] | None = None  # gives what `data` gave, until it is known to be gone
    _version = 0
    is_gone = False
    n_bound = 0
    buffer: Any = None  # the buffer that it shares with other parameters, see `autobatch.params.stacks`

    @cached_property
    def stacks(self) -> dict[tuple[tuple[int, ...], ...], Any]:
        """The stacks that begin with this parameter, by the `id`s of their parts, row by row."""
        return {}

    @property
    def data(self) -> FloatArray:
        """The array itself, on its device; assigning copies the numbers into it, from any device.

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
                "assign one of the same shape, or make a new Parameter."
            )
        self.array[...] = self.store.put(floats)
        self.note_change()

    def _lend(self) -> FloatArray:
        """An array of the numbers that is known for as long as it, or a view of it, is referred to."""
        with _lending:
            lent = None if self._lent is None else self._lent()
            if lent is not None:  # another thread was faster
                return lent
            self._version += 1
            if self._store is not HOST:
                array = self.array
                self._lent = lambda: array  # what refers to an array of a device is not known
                return array
            lent = np.asarray(self.array.data)  # views of it refer to it, because what it refers to is no array
            self._lent = weakref.ref(lent)
            return lent

    def note_change(self) -> None:
        """Take note that numbers of `array` were changed."""
        self._version += 1

    @property
    def version(self) -> int:
        """Another number whenever the numbers or their place may have changed since the last look."""
        lent = self._lent
        if lent is not None:
            self._version += 1
            if lent() is None and self._lent is lent:  # else another thread has `data` since
                self._lent = None
        return self._version

    checked_version = version
    """The same; subclasses that miss some changes compare the numbers."""

    @property
    def store(self) -> Store:
        """The memory of the device on which the numbers are."""
        return self._store

    @property
    def shape(self) -> Shape:
        """Length of each axis; () for a single number."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64."""
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
        """Copy the numbers into an array of the same shape and device, and keep them there from now on."""
        array[...] = self.array
        self._keep(array)

    def _keep(self, array: FloatArray) -> None:
        """Keep the numbers in this array from now on; arrays that `data` gave are no longer the parameter's."""
        if array is not self.array:
            self.array, self._lent = array, None
            self.note_change()

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle only the numbers of this parameter, on the host, not the buffer that it shares."""
        own = ("buffer", "stacks", "_store", "_lent")
        return {**{name: x for name, x in vars(self).items() if name not in own}, "array": self.store.get(self.array)}

    def __copy__(self) -> Self:
        """A parameter with numbers of its own: those of this one are known to change by its own `data`."""
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        vars(twin).update(deepcopy(self.__getstate__(), memo))
        return twin.to(self.store)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise GraphError(
            f"cannot make a NumPy array of a Parameter of shape {self.shape}, for its gradient would be lost unseen; "
            "use an op of autobatch, or the array parameter.data where no gradient is meant."
        )

    def __repr__(self) -> str:
        frozen = "" if self.trainable else ", trainable=False"
        return f"Parameter(shape={self.shape}, dtype={self.dtype}{frozen})"


def versions_of(followed: Iterable[Parameter], others: Iterable[Parameter]) -> list[int]:
    """The versions of parameters, of all in one call.

    Args:
        followed: whose numbers are compared where changes may be missed; see `Parameter.checked_version`.
        others: whose `version` is enough.
    """
    seen = list[int]()
    for p in followed:
        seen.append(p._version if type(p) is Parameter and p._lent is None else p.checked_version)
    for p in others:
        seen.append(p._version if type(p) is Parameter and p._lent is None else p.version)
    return seen


def to_floats(values: npt.ArrayLike, dtype: np.dtype[Any], doing: str, error: type[AutobatchError]) -> FloatArray:
    """Convert to an array of `dtype`, without a copy if `values` is one already; raise `error` if that fails.

    Args:
        values: anything that NumPy takes, a tensor of torch on any device, or an array of CuPy.
    """
    try:
        array = np.asarray(_to_host(values))
    except (TypeError, ValueError, RuntimeError) as cause:
        raise error(f"cannot {doing}: no array can be made of it ({cause}); give an array of real numbers.") from cause
    if array.dtype.kind not in "fiub":
        raise error(f"cannot {doing}: it holds {array.dtype}, not real numbers; give an array of real numbers.")
    return array.astype(dtype, order="C", copy=False)


def _to_host(values: Any) -> Any:
    """A tensor of torch or an array of CuPy, known by its methods, as one that NumPy reads; anything else as it is.

    A tensor loses its history. Floats of at most 16 bits become float32, which holds them exactly; NumPy lacks bf16.
    """
    if hasattr(values, "__cuda_array_interface__") and hasattr(values, "get"):
        return values.get()
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
        raise DataError(f"cannot convert parameters to {show(dtype)}; give 'float32' or 'float64'.")
    return parsed
