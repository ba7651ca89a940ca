"""Element-wise ops of ATen."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from autobatch import ops
from autobatch.ops.define import shape_of
from autobatch.ops.elementwise import instead
from autobatch.ops.operators import Operators
from autobatch.ops.shaping import expand as broadcast_to
from autobatch.torch.aten.table import chosen, compared, conditions, moved, op, seen, stand_for, tested

stand_for(
    neg=ops.neg, exp=ops.exp, log=ops.log, sqrt=ops.sqrt, sin=ops.sin, cos=ops.cos, erf=ops.erf,
    tanh=ops.tanh, sigmoid=ops.sigmoid, mul=ops.mul,
    maximum=ops.maximum, minimum=ops.minimum,
)  # fmt: skip
stand_for(chosen, where=ops.where)
stand_for(
    compared, gt=ops.greater, ge=ops.greater_equal, lt=ops.less, le=ops.less_equal, eq=ops.equal, ne=ops.not_equal
)


@op("relu")
def relu(x: Any) -> Any:
    """Return x where it is positive, else 0."""
    # By this condition NaN stays NaN, and the gradient at 0 is 0, as in torch.
    return ops.where(ops.less_equal(x, 0.0), 0.0, x)


@op("abs")
def abs_(x: Any) -> Any:
    """Compute the absolute value of x; its gradient at zero is zero."""
    sign = ops.sub(ops.greater(x, 0.0), ops.less(x, 0.0))
    return instead(ops.mul(x, ops.stop_gradient(sign)), ops.stop_gradient(ops.abs(x)))


@op("gelu")
def gelu(x: Any, *, approximate: str = "none") -> Any:
    """Compute x times the normal distribution function of x."""
    if approximate == "none":
        return ops.mul(x, ops.mul(0.5, ops.add(1.0, ops.erf(ops.mul(x, math.sqrt(0.5))))))
    inner = ops.mul(math.sqrt(2.0 / math.pi), ops.add(x, ops.mul(0.044715, ops.mul(ops.mul(x, x), x))))
    return ops.mul(ops.mul(0.5, x), ops.add(1.0, ops.tanh(inner)))


@op("pow")
def pow_(x: Any, exponent: Any) -> Any:
    """Raise x to a power; a power of 1/2 as a square root."""
    if not isinstance(exponent, float) or exponent not in (0.5, -0.5):
        return ops.pow(x, exponent)
    return ops.sqrt(x) if exponent > 0 else instead(ops.pow(x, exponent), ops.stop_gradient(rsqrt(x)))


@op("add")
def add(x: Any, y: Any, *, alpha: float = 1) -> Any:
    """Compute x + alpha y."""
    return ops.add(x, times(y, alpha))


@op("sub")
def sub(x: Any, y: Any, *, alpha: float = 1) -> Any:
    """Compute x - alpha y."""
    return ops.sub(x, times(y, alpha))


@op("rsub")
def rsub(x: Any, y: Any, alpha: float = 1) -> Any:
    """Compute y - alpha x."""
    return ops.sub(y, times(x, alpha))


@op("div")
def div(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    """Compute x / y."""
    if rounding_mode is not None:
        return NotImplemented
    return ops.div(x, y)


@op("reciprocal")
def reciprocal(x: Any) -> Any:
    """Compute 1 / x."""
    return ops.div(1.0, x)


@op("rsqrt")
def rsqrt(x: Any) -> Any:
    """Compute 1 / √x."""
    return ops.div(1.0, ops.sqrt(x))


@op("square")
def square(x: Any) -> Any:
    """Compute x²."""
    return ops.mul(x, x)


@op("masked_fill", of=chosen)
def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    """Return x, but a number where the mask is true."""
    return ops.where(mask, value, x)


@op("silu")
def silu(x: Any) -> Any:
    """Compute x σ(x)."""
    return ops.mul(x, ops.sigmoid(x))


@op("elu")
def elu(x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    """Return x where it is positive, else α (exp x − 1)."""
    is_high = ops.greater(x, 0.0)
    # Where x is large, its exponential would be infinite, and 0 times its gradient NaN.
    power = ops.exp(ops.mul(input_scale, ops.where(is_high, 0.0, x)))
    return ops.where(is_high, times(x, scale), ops.mul(alpha * scale, ops.sub(power, 1.0)))


@op("leaky_relu")
def leaky_relu(x: Any, negative_slope: float = 0.01) -> Any:
    """Return x where it is positive, else a fraction of it."""
    return ops.where(ops.greater(x, 0.0), x, ops.mul(negative_slope, x))


@op("softplus")
def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """Compute log(1 + exp(β x)) / β; return x where β x is above the threshold."""
    scaled = times(x, beta)
    is_linear = ops.greater(scaled, threshold)
    return ops.where(is_linear, x, ops.div(ops.softplus(ops.where(is_linear, 0.0, scaled)), beta))


@op("log_sigmoid_forward")
def log_sigmoid_forward(x: Any) -> Any:
    """Compute log σ(x); return also zeros for the buffer that torch keeps for its gradient."""
    return ops.neg(ops.softplus(ops.neg(x))), np.zeros(shape_of(x))


@op("clamp")
def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    """Limit x to a range; at a limit the gradient is that of x."""
    if any(isinstance(limit, Operators) for limit in (min, max)):
        return NotImplemented
    # If the limits are in the wrong order, torch returns the upper one.
    if min is not None and max is not None and not np.all(np.less_equal(min, max)):
        return NotImplemented
    if min is not None:
        x = ops.where(ops.greater_equal(x, min), x, ops.stop_gradient(ops.maximum(x, min)))
    return x if max is None else ops.where(ops.less_equal(x, max), x, ops.stop_gradient(ops.minimum(x, max)))


@op("clamp_min")
def clamp_min(x: Any, min: Any) -> Any:
    """Limit x from below."""
    return clamp(x, min)


@op("clamp_max")
def clamp_max(x: Any, max: Any) -> Any:
    """Limit x from above."""
    return clamp(x, None, max)


@op("hardtanh")
def hardtanh(x: Any, low: float = -1.0, high: float = 1.0) -> Any:
    """Limit x to a range; at a limit there is no gradient."""
    is_between = ops.mul(ops.greater(x, low), ops.less(x, high))
    return ops.where(is_between, x, ops.stop_gradient(ops.minimum(ops.maximum(x, low), high)))


@op("addcmul")
def addcmul(x: Any, y: Any, z: Any, *, value: float = 1) -> Any:
    """Compute x + value y z."""
    return ops.add(x, times(ops.mul(y, z), value))


@op("addcdiv")
def addcdiv(x: Any, y: Any, z: Any, *, value: float = 1) -> Any:
    """Compute x + value y / z."""
    return ops.add(x, times(ops.div(y, z), value))


@op("lerp")
def lerp(x: Any, end: Any, weight: Any) -> Any:
    """Compute x + weight (end - x), from the nearer end."""
    if isinstance(weight, Operators):
        return NotImplemented
    apart = ops.sub(end, x)
    return ops.where(np.less(weight, 0.5), ops.add(x, ops.mul(weight, apart)), ops.sub(end, ops.mul(apart, 1 - weight)))


@op("logical_not", of=tested)
def logical_not(x: Any) -> Any:
    """Return whether x is false."""
    return ops.equal(x, 0.0)


@op("logical_and", of=tested)
def logical_and(x: Any, y: Any) -> Any:
    """Return whether both are true."""
    return ops.mul(ops.not_equal(x, 0.0), ops.not_equal(y, 0.0))


@op("logical_or", of=tested)
def logical_or(x: Any, y: Any) -> Any:
    """Return whether at least one is true."""
    return ops.maximum(ops.not_equal(x, 0.0), ops.not_equal(y, 0.0))


stand_for(conditions, bitwise_not=logical_not, bitwise_and=logical_and, bitwise_or=logical_or)


@op("bitwise_xor", of=conditions)
def xor(x: Any, y: Any) -> Any:
    """Return whether exactly one is true."""
    return ops.not_equal(x, y)


@op("clone", "detach_copy", "alias", "lift_fresh", "lift_fresh_copy", "contiguous", of=seen)
def same(x: Any, **options: Any) -> Any:
    """Return x."""
    return x


@op("_to_copy")
def to_copy(x: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Any:
    """Return x, with ints and bools as floats of the model."""
    return ops.mul(x, 1.0) if dtype is not None else x


@op("detach", of=seen)
def detach(x: Any) -> Any:
    """Return x without its gradient."""
    return ops.stop_gradient(x)


@op("copy", of=moved)
def copy(x: Any, source: Any, non_blocking: bool = False) -> Any:
    """Broadcast the source to the shape of x."""
    return broadcast_to(source, shape_of(x))


def times(x: Any, factor: float) -> Any:
    """Multiply x by a number."""
    return x if factor == 1 else ops.mul(x, float(factor))
