"""Results of comparisons while a cell is traced, and the ops that raise an error because NumPy's bools differ.

In a traced cell a comparison of values gives 0 or 1 in the model's float type; eagerly it gives an array of bools.
Nearly all ops give the same results for both. The exceptions raise a GraphError: NumPy's `+` and `@` of two arrays of
bools are a logical `or`, and NumPy has no `-` of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autobatch.errors import GraphError
from autobatch.ops.operators import OPS, UFUNCS, Symbol, is_zero

COMPARISONS = frozenset({"less", "less_equal", "greater", "greater_equal", "equal", "not_equal"})
DIFFERENT = {"add": "+", "sub": "-", "neg": "-", "matmul": "@"}


def is_condition(x: object) -> bool:
    """Return whether `x` is a bool in eager mode: a comparison, Python's or NumPy's bool, or an array of bools."""
    return isinstance(x, (Condition, bool, np.bool_)) or (isinstance(x, np.ndarray) and x.dtype.kind == "b")


def gives_condition(op: Any, args: tuple[Any, ...]) -> bool:
    """Return whether `op` of `args` is a bool in eager mode."""
    keeps = op.view or op.name in ("mul", "maximum", "minimum")
    return op.name in COMPARISONS or (keeps and all(map(is_condition, args)))


def _apply(name: str, *args: Any) -> Any:
    """Apply the op of this name; GraphError if all arguments are conditions, for which NumPy's op differs."""
    if all(map(is_condition, args)):
        op = DIFFERENT[name]
        raise GraphError(
            f"{op} was applied to conditions, which are bools in eager mode, where NumPy's {op} does not give numbers; "
            f"convert them to numbers with ab.where(condition, 1.0, 0.0), or write a * b for 'and', "
            f"ab.where(a, 1.0, b) for 'or'."
        )
    return OPS[name](*args)


class Logic(Symbol):
    """Mixin with `~`, `&`, `|` and `^` for values that are 0 or 1."""

    __slots__ = ()

    def __invert__(self) -> Any:
        return OPS["equal"](self, 0.0)

    def __and__(self, other: Any) -> Any:
        return self._combine("&", "mul", other)

    def __or__(self, other: Any) -> Any:
        return self._combine("|", "maximum", other)

    def __xor__(self, other: Any) -> Any:
        return self._combine("^", "not_equal", other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def _combine(self, symbol: str, name: str, other: Any) -> Any:
        if not (isinstance(other, Logic) or is_condition(other)):
            raise GraphError(f"operands of {symbol} must be conditions, such as x > 0.0, got {other!r}.")
        return OPS[name](self, other)


class Condition(Logic):
    """Mixin for a value that is 0 or 1, the result of a comparison."""

    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        # NumPy turns bools into numbers by adding 0, so the result must not be a condition; `again` would return one.
        return OPS["add"](self, 0.0) if is_zero(other) else _apply("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return OPS["add"](0.0, self) if is_zero(other) else _apply("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return _apply("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _apply("sub", other, self)

    def __neg__(self) -> Any:
        return _apply("neg", self)

    def __matmul__(self, other: Any) -> Any:
        return _apply("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return _apply("matmul", other, self)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        name = UFUNCS.get(ufunc)
        if method == "__call__" and not kwargs and name in DIFFERENT:
            return _apply(name, *inputs)
        return super().__array_ufunc__(ufunc, method, *inputs, **kwargs)
