"""Products, layers, losses and ops along axes of ATen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch import ops
from autobatch.ops.define import shape_of
from autobatch.ops.elementwise import instead
from autobatch.ops.indexing import pick
from autobatch.ops.products import matmul as product
from autobatch.torch.aten.elementwise import rsqrt, times
from autobatch.torch.aten.shapes import unsqueeze
from autobatch.torch.aten.table import indexed, op, placed, scaled, stand_for

Dims = Any


@op("sum")
def sum_(x: Any, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Sum over axes."""
    return ops.sum(x, _axes(dim), keepdim)


@op("mean")
def mean(x: Any, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Average over axes."""
    return ops.mean(x, _axes(dim), keepdim)


@op("amax")
def amax(x: Any, dim: Dims = None, keepdim: bool = False) -> Any:
    """Return the largest element over axes."""
    return ops.max(x, _axes(dim), keepdim)


@op("amin")
def amin(x: Any, dim: Dims = None, keepdim: bool = False) -> Any:
    """Return the smallest element over axes."""
    return ops.min(x, _axes(dim), keepdim)


@op("max", of=placed)
def max_(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the largest element; along an axis also its place, and the gradient flows only to the element there."""
    return _shared(ops.max(x), x) if dim is None else _with_place(x, dim, keepdim)


@op("min", of=placed)
def min_(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the smallest element; along an axis also its place, and the gradient flows only to the element there."""
    if dim is None:
        return _shared(ops.min(x), x)
    found, place = _with_place(ops.neg(x), dim, keepdim)
    return ops.neg(found), place


def _shared(found: Any, x: Any) -> Any:
    """Return a found element whose gradient is shared by all equal elements, or by all NaN if it is NaN."""
    found = ops.stop_gradient(found)
    # Only NaN differs from itself.
    is_there = ops.where(ops.equal(found, found), ops.equal(x, found), ops.not_equal(x, x))
    return instead(ops.div(ops.sum(ops.where(is_there, x, 0.0)), ops.sum(is_there)), found)


def _with_place(x: Any, dim: int, keepdim: bool) -> Any:
    """Return the largest element along an axis, and its place."""
    shape, place = shape_of(x), argmax(x, dim, keepdim=True)
    if not shape:
        return x, place
    axis = dim % len(shape)
    numbers = np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    is_there = ops.equal(numbers, place)
    found = ops.sum(ops.where(is_there, x, 0.0), axis, keepdim)
    return found, place if keepdim else ops.reshape(place, shape_of(found))


@op("argmax", of=placed)
def argmax(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the place of the largest element."""
    if dim is None:
        return ops.argmax(ops.reshape(x, (math.prod(shape_of(x)),)))
    found = ops.argmax(x, dim)
    return unsqueeze(found, dim) if keepdim else found


@op("logsumexp")
def logsumexp(x: Any, dim: Dims, keepdim: bool = False) -> Any:
    """Compute the logarithm of the sum of exponentials over axes."""
    return ops.logsumexp(x, _axes(dim), keepdim)


@op("var")
def var(x: Any, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    """Compute the variance over axes."""
    return var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


@op("std")
def std(x: Any, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    """Compute the standard deviation over axes."""
    return _root(var(x, dim, correction=correction, keepdim=keepdim))


@op("var_mean")
def var_mean(x: Any, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    """Compute the variance and the mean over axes."""
    middle = ops.mean(x, _axes(dim), True)
    is_finite = ops.equal(ops.sub(middle, middle), 0.0)  # if not, torch passes no gradient to the mean
    apart = ops.sub(x, ops.where(is_finite, middle, ops.stop_gradient(middle)))
    n = math.prod(shape_of(x)) // math.prod(shape_of(middle)) - (1 if correction is None else correction)
    spread = ops.div(ops.sum(ops.mul(apart, apart), _axes(dim), keepdim), float(n))
    return spread, middle if keepdim else ops.mean(x, _axes(dim), False)


@op("linalg_vector_norm")
def vector_norm(x: Any, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Compute the Euclidean norm over axes; its gradient at zero is zero."""
    return _root(ops.sum(ops.mul(x, x), _axes(dim), keepdim)) if ord == 2 else NotImplemented


def _root(x: Any) -> Any:
    """Compute the square root; its gradient at zero is zero, as in torch's norms."""
    is_zero = ops.equal(x, 0.0)
    # The inner choice keeps the infinite derivative at 0 out: 0 times infinity would be NaN.
    return ops.where(is_zero, 0.0, ops.sqrt(ops.where(is_zero, 1.0, x)))


def _axes(dim: Dims) -> Any:
    """Convert axes to our form: None for all, an int or a tuple."""
    return None if dim is None or dim == [] or dim == () else dim if isinstance(dim, int) else tuple(dim)


MEAN, SUM = 1, 2
"""Reductions of losses, as ATen numbers them."""


stand_for(mm=product, mv=product, bmm=product, dot=ops.dot, matmul=product)


@op("addmm", "addmv", "baddbmm")
def addmm(bias: Any, x: Any, y: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """Compute β bias + α x @ y."""
    return ops.add(times(bias, beta), times(product(x, y), alpha))


@op("_softmax", of=scaled)
def softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    """Compute the softmax along an axis."""
    return ops.softmax(x, dim) if shape_of(x) else NotImplemented


@op("_log_softmax", of=scaled)
def log_softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    """Compute the logarithm of the softmax along an axis."""
    return ops.log_softmax(x, dim) if shape_of(x) else NotImplemented


@op("native_layer_norm")
def native_layer_norm(x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    """Normalize the last axes, scale and shift; return also mean and 1 / deviation."""
    axes = tuple(range(-len(shape), 0))
    spread, middle = var_mean(x, axes, correction=0, keepdim=True)
    scale = rsqrt(ops.add(spread, eps))
    found = ops.mul(ops.sub(x, middle), scale)
    found = found if weight is None else ops.mul(found, weight)
    found = found if bias is None else ops.add(found, bias)
    return found, ops.stop_gradient(middle), ops.stop_gradient(scale)


@op("nll_loss_forward", "nll_loss", of=indexed)
def nll_loss_forward(x: Any, target: Any, weight: Any, reduction: int, ignore_index: int) -> Any:
    """Compute the negative scores of the labels, 0 for ignored ones; return also the number of labels not ignored."""
    if weight is not None:
        return NotImplemented
    losses = ops.neg(pick(x, target, ignore=ignore_index))
    count = ops.sum(ops.not_equal(target, float(ignore_index)))
    total = losses if reduction not in (MEAN, SUM) else ops.sum(losses)
    return mean_of(total, count) if reduction == MEAN else total, count


def mean_of(total: Any, count: Any) -> Any:
    """Divide a total by a count; a count of 0 gives NaN without a gradient."""
    is_none = ops.equal(count, 0.0)
    return ops.where(is_none, math.nan, ops.div(total, ops.where(is_none, 1.0, count)))


@op("mse_loss")
def mse_loss(x: Any, y: Any, reduction: int = MEAN) -> Any:
    """Compute the squared differences."""
    return _reduce(ops.squared_error(x, y), reduction)


@op("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    x: Any, y: Any, weight: Any = None, pos_weight: Any = None, reduction: int = MEAN
) -> Any:
    """Compute the binary cross-entropy of logits x and targets y."""
    if pos_weight is not None:
        return NotImplemented
    losses = ops.add(ops.mul(ops.sub(1.0, y), x), ops.softplus(ops.neg(x)))
    return _reduce(losses if weight is None else ops.mul(losses, weight), reduction)


def _reduce(losses: Any, reduction: int) -> Any:
    return ops.mean(losses) if reduction == MEAN else ops.sum(losses) if reduction == SUM else losses
