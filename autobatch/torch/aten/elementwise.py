"""Ops of ATen that are element by element."""

from __future__ import annotations

from typing import Any

import numpy as np

from autobatch import ops
from autobatch.ops.define import shape_of
from autobatch.ops.shaping import expand as broadcast_to
from autobatch.torch.aten.table import OPS, op

OPS.update(
    neg=ops.neg, exp=ops.exp, log=ops.log, sqrt=ops.sqrt, abs=ops.abs, sin=ops.sin, cos=ops.cos, erf=ops.erf,
    tanh=ops.tanh, sigmoid=ops.sigmoid, relu=ops.relu, gelu=ops.gelu, mul=ops.mul, pow=ops.pow,
    maximum=ops.maximum, minimum=ops.minimum, where=ops.where, gt=ops.greater, ge=ops.greater_equal, lt=ops.less,
    le=ops.less_equal, eq=ops.equal, ne=ops.not_equal,
)  # fmt: skip


@op("add")
def add(x: Any, y: Any, *, alpha: float = 1) -> Any:
    """x + alpha y."""
    return ops.add(x, times(y, alpha))


@op("sub")
def sub(x: Any, y: Any, *, alpha: float = 1) -> Any:
    """x - alpha y."""
    return ops.sub(x, times(y, alpha))


@op("rsub")
def rsub(x: Any, y: Any, alpha: float = 1) -> Any:
    """y - alpha x."""
    return ops.sub(y, times(x, alpha))


@op("div")
def div(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    """x / y."""
    if rounding_mode is not None:
        return NotImplemented
    return ops.div(x, y)


@op("reciprocal")
def reciprocal(x: Any) -> Any:
    """1 / x."""
    return ops.div(1.0, x)


@op("rsqrt")
def rsqrt(x: Any) -> Any:
    """1 / √x."""
    return ops.div(1.0, ops.sqrt(x))


@op("square")
def square(x: Any) -> Any:
    """x²."""
    return ops.mul(x, x)


@op("log1p")
def log1p(x: Any) -> Any:
    """log(1 + x)."""
    return ops.log(ops.add(1.0, x))


@op("xlogy")
def xlogy(x: Any, y: Any) -> Any:
    """x log y, and 0 where x is 0."""
    is_zero = ops.equal(x, 0.0)
    return ops.mul(x, ops.log(ops.where(is_zero, 1.0, y)))


@op("masked_fill")
def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    """x, and a number where the mask holds."""
    return ops.where(mask, value, x)


@op("silu")
def silu(x: Any) -> Any:
    """x σ(x)."""
    return ops.mul(x, ops.sigmoid(x))


@op("elu")
def elu(x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    """x where it is positive, else α (exp x − 1)."""
    low = ops.mul(alpha * scale, ops.sub(ops.exp(ops.mul(input_scale, ops.minimum(x, 0.0))), 1.0))
    return ops.where(ops.greater(x, 0.0), ops.mul(scale, x), low)


@op("leaky_relu")
def leaky_relu(x: Any, negative_slope: float = 0.01) -> Any:
    """x where it is positive, else a fraction of it."""
    return ops.where(ops.greater(x, 0.0), x, ops.mul(negative_slope, x))


@op("softplus")
def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """log(1 + exp(β x)) / β; x where β x is above the threshold."""
    scaled = times(x, beta)
    return ops.where(ops.greater(scaled, threshold), x, ops.div(ops.softplus(ops.minimum(scaled, threshold)), beta))


@op("log_sigmoid_forward")
def log_sigmoid_forward(x: Any) -> Any:
    """log σ(x), and what torch keeps for its gradient."""
    return ops.neg(ops.softplus(ops.neg(x))), np.zeros(shape_of(x))


@op("clamp", "hardtanh")
def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    """x between two limits."""
    x = x if min is None else ops.maximum(x, min)
    return x if max is None else ops.minimum(x, max)


@op("clamp_min")
def clamp_min(x: Any, min: Any) -> Any:
    """x, and no less than a limit."""
    return ops.maximum(x, min)


@op("clamp_max")
def clamp_max(x: Any, max: Any) -> Any:
    """x, and no more than a limit."""
    return ops.minimum(x, max)


@op("addcmul")
def addcmul(x: Any, y: Any, z: Any, *, value: float = 1) -> Any:
    """x + value y z."""
    return ops.add(x, times(ops.mul(y, z), value))


@op("addcdiv")
def addcdiv(x: Any, y: Any, z: Any, *, value: float = 1) -> Any:
    """x + value y / z."""
    return ops.add(x, times(ops.div(y, z), value))


@op("lerp")
def lerp(x: Any, end: Any, weight: Any) -> Any:
    """x + weight (end - x)."""
    return ops.add(x, ops.mul(weight, ops.sub(end, x)))


@op("logical_not", "bitwise_not")
def logical_not(x: Any) -> Any:
    """Whether x is not true."""
    return ops.equal(x, 0.0)


@op("logical_and", "bitwise_and")
def logical_and(x: Any, y: Any) -> Any:
    """Whether both are true."""
    return ops.mul(ops.not_equal(x, 0.0), ops.not_equal(y, 0.0))


@op("logical_or", "bitwise_or")
def logical_or(x: Any, y: Any) -> Any:
    """Whether one is true."""
    return ops.maximum(ops.not_equal(x, 0.0), ops.not_equal(y, 0.0))


@op("clone", "detach_copy", "alias", "lift_fresh", "lift_fresh_copy", "_to_copy", "contiguous")
def same(x: Any, **options: Any) -> Any:
    """x."""
    return x


@op("detach")
def detach(x: Any) -> Any:
    """x, which no gradient passes."""
    return ops.stop_gradient(x)


@op("copy")
def copy(x: Any, source: Any, non_blocking: bool = False) -> Any:
    """The numbers of the source, in the shape of x."""
    return broadcast_to(source, shape_of(x))


def times(x: Any, factor: float) -> Any:
    """x times a number."""
    return x if factor == 1 else ops.mul(x, float(factor))
