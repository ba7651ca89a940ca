"""Symbols with concrete numbers, which let a program branch on values while it is differentiated."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.errors import GraphError
from autobatch.ops.operators import Operators, Symbol


class Concrete(Symbol):
    """A float value whose numbers are available while a function is differentiated with respect to it.

    Comparisons, bool(), int() and formatting use the numbers, and pass no gradient.

    Attributes:
        data: the numbers, as an array or a NumPy scalar.
    """

    __slots__ = ("data",)
    __hash__ = object.__hash__
    _kind: str

    def __init__(self, data: Any) -> None:
        self.data = data

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the length of each axis; () for a scalar."""
        shape: tuple[int, ...] = self.data.shape
        return shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the float type."""
        dtype: np.dtype[Any] = self.data.dtype
        return dtype

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return int(self.data.size)

    def read(self) -> Any:
        """Return the value that ops compute with."""
        return self

    def __lt__(self, other: Any) -> Any:
        return self._compare(operator.lt, other)

    def __le__(self, other: Any) -> Any:
        return self._compare(operator.le, other)

    def __gt__(self, other: Any) -> Any:
        return self._compare(operator.gt, other)

    def __ge__(self, other: Any) -> Any:
        return self._compare(operator.ge, other)

    def __eq__(self, other: object) -> Any:
        return self._compare(operator.eq, other)

    def __ne__(self, other: object) -> Any:
        return self._compare(operator.ne, other)

    def _compare(self, compare: Callable[[Any, Any], Any], other: Any) -> Any:
        return compare(self.data, getattr(other, "data", other) if isinstance(other, Operators) else other)

    def __bool__(self) -> bool:
        return bool(self.data)

    def __int__(self) -> int:
        return int(self.data)

    def __format__(self, spec: str) -> str:
        return format(self.data[()], spec)

    def _refuse(self, what: str) -> Exception:
        return GraphError(
            f"{what} of {self._kind} would lose its gradient; use the ops of autobatch instead of NumPy's "
            f"(see ab.ops). Conditions such as x > 0.5, and int(...), are allowed."
        )
