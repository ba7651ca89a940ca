"""Define functions of a float64 that call the system's, which are accurate but compute one element at a time."""

from __future__ import annotations

from autobatch.compiler.llvm.scalars import Scalar, select
from autobatch.ops.error_function import GELU_CUBE, GELU_SCALE

TWICE_SCALE = 2.0 * GELU_SCALE
GELU_LEAST = -1e100  # gelu is 0 already well above this


def exp(x: Scalar) -> Scalar:
    """Compute exp(x)."""
    return x.code.call("llvm.exp", x)


def log(x: Scalar) -> Scalar:
    """Compute log(x); -infinity at 0, NaN below."""
    return x.code.call("llvm.log", x)


def sin(x: Scalar) -> Scalar:
    """Compute sin(x)."""
    return x.code.call("llvm.sin", x)


def cos(x: Scalar) -> Scalar:
    """Compute cos(x)."""
    return x.code.call("llvm.cos", x)


def tanh(x: Scalar) -> Scalar:
    """Compute tanh(x)."""
    return x.code.call("tanh", x)


def sigmoid(x: Scalar) -> Scalar:
    """Compute 1 / (1 + exp(-x)) without overflow."""
    e = exp(-abs(x))
    return select(x < 0.0, e, 1.0) / (1.0 + e)


def softplus(x: Scalar) -> Scalar:
    """Compute log(1 + exp(x)) without overflow."""
    return x.code.call("log1p", exp(-abs(x))) + select(x > 0.0, x, 0.0)


def gelu_tanh(x: Scalar) -> Scalar:
    """Compute x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x**3)."""
    bounded = select(x < GELU_LEAST, x.like(GELU_LEAST), x)
    return bounded * sigmoid(TWICE_SCALE * (bounded + GELU_CUBE * bounded * bounded * bounded))
