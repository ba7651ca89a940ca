"""A fake device, which proves that backends are independent of NumPy: its arrays cannot be mixed with NumPy's.

A `DeviceArray` is host memory that NumPy cannot see: no function of NumPy accepts one, and neither arithmetic nor
indexing mixes it with arrays of NumPy. Kernels use the functions in `CountingStore.xp`, which are those that CuPy has,
and which take only device arrays and Python numbers. Transfers go through `put` and `get`, which count bytes. The class
is not derived from ndarray, because NumPy silently converts subclasses to plain arrays.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from autobatch.arrays import address_of
from autobatch.backends.base import Executable
from autobatch.backends.options import Options
from autobatch.backends.reference import Reference
from autobatch.plan.plan import Plan, PlannedTypes
from helpers.fakes.cupy_surface import CUPY

NUMBERS = (bool, int, float, np.generic, type(None), slice, type(Ellipsis), str, type, np.dtype)


class BorderError(TypeError):
    """Raised when an object of the device meets an array of the host."""


class DeviceArray:
    """An array of the device. `_host` is its memory, private to this module."""

    __array_ufunc__ = None  # makes NumPy's arrays refuse it as the other operand
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, host: np.ndarray) -> None:
        self._host = host

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise BorderError("NumPy asks for the numbers of a device array: use the store's `get`.")

    def __bool__(self) -> NoReturn:
        raise BorderError("the truth of a device array is on the device: use the store's `get`.")

    def __len__(self) -> int:
        return len(self._host)

    def __getitem__(self, index: Any) -> Any:
        return DeviceArray(np.asarray(self._host[enter(index)]))

    def __setitem__(self, index: Any, value: Any) -> None:
        self._host[enter(index)] = enter(value)

    def __int__(self) -> int:  # waits for the device, as CuPy's does
        return int(self._host)

    @property
    def T(self) -> DeviceArray:
        return DeviceArray(self._host.T)

    shape = property(lambda self: self._host.shape)
    dtype = property(lambda self: self._host.dtype)
    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    itemsize = property(lambda self: self._host.itemsize)
    nbytes = property(lambda self: self._host.nbytes)
    strides = property(lambda self: self._host.strides)


def enter(value: Any) -> Any:
    """Return the memory of a device array, or a Python number unchanged; raise a BorderError for NumPy arrays."""
    if isinstance(value, DeviceArray):
        return value._host
    if isinstance(value, (tuple, list)):
        return type(value)(map(enter, value))
    if not isinstance(value, NUMBERS):
        raise BorderError(f"a {type(value).__name__} of the host meets an array of the device: use the store's `put`.")
    return value


def leave(value: Any) -> Any:
    """Wrap arrays as device arrays."""
    return DeviceArray(value) if isinstance(value, np.ndarray) else value


def on_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn a function of arrays into one of device arrays; a given `out` is returned as it is."""

    def call(*args: Any, **kwargs: Any) -> Any:
        found = function(*map(enter, args), **{name: enter(value) for name, value in kwargs.items()})
        return kwargs["out"] if isinstance(kwargs.get("out"), DeviceArray) else leave(found)

    for method in ("at", "reduceat"):
        if hasattr(function, method):
            setattr(call, method, on_device(getattr(function, method)))
    return call


def _give_operators() -> None:
    """Add arithmetic, comparisons and methods that need no module of functions."""
    for name in ("add", "sub", "mul", "truediv", "floordiv", "pow", "and_", "or_", "xor", "rshift", "lshift"):
        plain = getattr(operator, name)
        own = name.rstrip("_")
        setattr(DeviceArray, f"__{own}__", on_device(plain))
        setattr(DeviceArray, f"__r{own}__", on_device(lambda x, y, plain=plain: plain(y, x)))
        setattr(DeviceArray, f"__i{own}__", _in_place(getattr(operator, f"i{own}")))
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(DeviceArray, f"__{name}__", on_device(getattr(operator, name)))
    for name in ("neg", "invert", "abs"):
        setattr(DeviceArray, f"__{name}__", on_device(getattr(operator, name)))
    for name in ("reshape", "astype", "view", "copy", "fill", "sum", "mean", "max", "min", "transpose"):
        setattr(DeviceArray, name, on_device(getattr(np.ndarray, name)))


def _in_place(plain: Callable[..., Any]) -> Callable[..., Any]:
    def change(x: DeviceArray, y: Any) -> DeviceArray:
        plain(x._host, enter(y))
        return x

    return change


_give_operators()


class CountingStore:
    """The memory of the device.

    Attributes:
        xp: the functions that CuPy has.
        put_bytes, got_bytes: bytes transferred to and from the device.
    """

    kind = "counting"

    def __init__(self) -> None:
        self.put_bytes = self.got_bytes = 0
        functions = {
            name: on_device(f) if callable(f) and not isinstance(f, type) else f for name, f in vars(CUPY).items()
        }
        self.xp: Any = SimpleNamespace(**functions)
        strided = on_device(np.lib.stride_tricks.as_strided)
        self.xp.lib = SimpleNamespace(stride_tricks=SimpleNamespace(as_strided=strided))

    def empty(self, size: int, dtype: np.dtype[Any]) -> DeviceArray:
        return DeviceArray(np.empty(size, dtype))

    def put(self, array: Any) -> DeviceArray:
        if isinstance(array, DeviceArray):
            return array
        self.put_bytes += array.nbytes
        return DeviceArray(np.array(array))

    def get(self, array: Any) -> np.ndarray:
        assert isinstance(array, DeviceArray), "what is on the host needs no `get`"
        self.got_bytes += array.nbytes
        return np.array(array._host)

    def copy_out(self, array: DeviceArray) -> Callable[[], np.ndarray]:
        found = self.get(array)
        return lambda: found

    def adopt(self, values: Any) -> DeviceArray | None:
        return values if isinstance(values, DeviceArray) else None

    def address(self, array: DeviceArray) -> int:
        return address_of(array._host)


class Counting:
    """Runs plans on the device with the interpreter."""

    name = "counting"

    def __init__(self) -> None:
        self.store = CountingStore()
        self._device = Reference(poison=True, store=self.store)

    def table_sizes(self, cells: PlannedTypes, options: Options) -> None:
        return None

    def prepare(self, plan: Plan, cells: PlannedTypes, options: Options, tables: Any = None) -> Executable:
        return self._device.prepare(plan, cells, options)
