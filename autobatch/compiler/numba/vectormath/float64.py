"""Functions of a float64: the system's own, exact, one element at a time."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from autobatch.compiler.numba.inlined import in_kernels
from autobatch.ops.error_function import GELU_CUBE, GELU_SCALE

Float: TypeAlias = Any  # np.float64
TWICE_SCALE = 2.0 * GELU_SCALE


@in_kernels
def exp64(x: Float) -> Float:
    """exp(x)."""
    return math.exp(x)


@in_kernels
def log64(x: Float) -> Float:
    """log(x); -infinity at 0, NaN below."""
    return np.log(x)


@in_kernels
def sin64(x: Float) -> Float:
    """sin(x)."""
    return math.sin(x)


@in_kernels
def cos64(x: Float) -> Float:
    """cos(x)."""
    return math.cos(x)


@in_kernels
def tanh64(x: Float) -> Float:
    """tanh(x)."""
    return math.tanh(x)


@in_kernels
def sigmoid64(x: Float) -> Float:
    """1 / (1 + exp(-x))."""
    e = math.exp(-abs(x))
    return (e if x < 0.0 else 1.0) / (1.0 + e)


@in_kernels
def softplus64(x: Float) -> Float:
    """log(1 + exp(x))."""
    return math.log1p(math.exp(-abs(x))) + (x if x > 0.0 else 0.0)


@in_kernels
def gelu_tanh64(x: Float) -> Float:
    """x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x**3)."""
    bounded = -1e100 if x < -1e100 else x
    return bounded * sigmoid64(TWICE_SCALE * (bounded + GELU_CUBE * bounded * bounded * bounded))
