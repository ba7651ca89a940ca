"""Live numbers: numbers and arrays of a model that change while it is used, so programs read them as inputs.

Such a number is a parameter that is not trained and is updated before each run. So a program that computes with it need
not be traced, planned or compiled again when it changes. While a body is traced, a `LiveValue` represents it. If Python
needs the number itself, for a condition, a size or an option of an op, the body is traced again with the number as a
guarded constant.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NoReturn

import numpy as np

from autobatch.ir.builder import Builder, Traced
from autobatch.params.parameter import FLOAT32, Parameter

LARGE = 2**20  # bytes; a larger array is an input of the program from the first trace on, and is not compared


def can_be_live(x: object) -> bool:
    """Return whether `x` is an int, a float, or a plain array of floats."""
    if isinstance(x, np.ndarray):
        return type(x) is np.ndarray and x.dtype.kind == "f"
    return isinstance(x, (int, float, np.integer, np.floating)) and not isinstance(x, (bool, np.timedelta64))


class Live(Parameter):
    """The number or array of an attribute, in the model's dtype.

    Args:
        holder: the object with the attribute; kept alive, because it is identified by its `id`.

    Attributes:
        n_taken: number of changes so far; arrays that change in place are not counted.
    """

    def __init__(self, value: Any, dtype: np.dtype[Any], holder: object) -> None:
        super().__init__(value, trainable=False)
        self.holder, self.n_taken, self._value = holder, 0, value
        self.astype(dtype)

    def take(self, value: Any) -> bool:
        """Take the current value of the attribute; return False if its shape differs, or it is not a number."""
        if not can_be_live(value) or np.shape(value) != self.shape:
            return False
        if isinstance(value, np.ndarray):
            self.n_taken += value is not self._value and not np.array_equal(value, self._value, equal_nan=True)
        elif value != self._value:
            self.n_taken += 1
        self._value = value
        return True

    def refresh(self, dtype: np.dtype[Any]) -> None:
        """Convert the last value taken to this float type, for the next run."""
        if dtype != self.dtype:
            self.astype(dtype)
        if not np.array_equal(self.array, np.asarray(self._value, dtype)):
            self.data = self._value


class Lives:
    """The live numbers of one recorded function.

    Attributes:
        changing: the places of numbers that have changed before.
        known: the inputs that replace numbers, by place and shape.
        dtype: the dtype of the inputs.
    """

    def __init__(self) -> None:
        self.changing = set[Hashable]()
        self.dtype = FLOAT32
        self.known: dict[Hashable, Live] = {}

    def find(self, place: Hashable, value: Any, holder: object) -> Live | None:
        """Return the input that replaces a number that has changed before, or a large array; None for anything else."""
        if not can_be_live(value) or not (place in self.changing or getattr(value, "nbytes", 0) > LARGE):
            return None
        key = place, np.shape(value)  # traces of former shapes keep their inputs, which are refreshed as well
        live = self.known.get(key)
        if live is None or not live.take(value):
            live = self.known[key] = Live(value, self.dtype, holder)
        return live

    def refresh(self, dtype: np.dtype[Any]) -> None:
        """Convert the current numbers to this float type, for the next run."""
        self.dtype = dtype
        for live in list(self.known.values()):
            live.refresh(dtype)

    @property
    def n_taken(self) -> int:
        """Return the number of changes of all numbers."""
        return sum(live.n_taken for live in self.known.values()) if self.known else 0


class LiveValue(Traced):
    """The symbol of a live number while a cell's body is traced."""

    __slots__ = ()

    @classmethod
    def of(cls, builder: Builder, live: Live) -> LiveValue:
        """Make the value of a program that reads `live`."""
        return cls(builder, builder.wrap(live).index)

    def __getattr__(self, name: str) -> Any:
        raise self._refuse(f"the attribute {name!r}")

    def _needs_number(self, *args: Any) -> NoReturn:
        raise self._refuse("Python")

    __hash__ = __repr__ = __str__ = __abs__ = __round__ = __trunc__ = __floor__ = __ceil__ = _needs_number
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __divmod__ = __rdivmod__ = __complex__ = _needs_number
