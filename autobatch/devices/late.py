"""Defer reading numbers that a device computes until they are needed.

A training step returns its loss and norm long before the GPU has computed them. Waiting for them would stop the host
from preparing the next step, so the step returns a `Late`; printing or comparing it waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import DTypeLike, NDArray


class Late(NDArrayOperatorsMixin):
    """A number that waits for the device when it is first read, and behaves like a NumPy scalar.

    Arithmetic and comparisons read it and return plain numbers. Copies and pickles are the scalar itself.

    Args:
        read: waits for the scalar and returns it. Called at the first use and, after an error, again at the next.

    >>> import numpy as np
    >>> loss = Late(lambda: np.float32(0.5))
    >>> loss
    np.float32(0.5)
    >>> print(f"{loss:.3f}", loss + 1.0, loss < 0.25, float(loss))
    0.500 1.5 False 0.5
    """

    __slots__ = ("_number", "_read")

    def __init__(self, read: Callable[[], np.generic]) -> None:
        self._read: Callable[[], np.generic] | None = read
        self._number: Any = None

    def get(self) -> Any:
        """Return the scalar, after waiting for it at the first call; errors of `read` propagate."""
        read = self._read
        if read is not None:
            self._number = read()
            self._read = None  # set last: a thread that sees None here returns `_number` without waiting
        return self._number

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.get().dtype
        return dtype

    @property
    def shape(self) -> tuple[()]:
        return ()

    @property
    def ndim(self) -> int:
        return 0

    @property
    def size(self) -> int:
        return 1

    def item(self) -> Any:
        """Return the scalar as a Python number."""
        return self.get().item()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.get(), dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        return getattr(ufunc, method)(*(x.get() if isinstance(x, Late) else x for x in inputs), **options)

    def __bool__(self) -> bool:
        return bool(self.get())

    def __float__(self) -> float:
        return float(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __round__(self, n_digits: int | None = None) -> Any:
        return round(self.get(), n_digits)

    def __format__(self, spec: str) -> str:
        return format(self.get(), spec)

    def __str__(self) -> str:
        return str(self.get())

    def __repr__(self) -> str:
        return repr(self.get())

    def __hash__(self) -> int:
        return hash(self.get())

    def __reduce__(self) -> tuple[Any, ...]:
        found: tuple[Any, ...] = self.get().__reduce__()
        return found
