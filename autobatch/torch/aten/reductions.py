"""Ops of ATen along axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from autobatch import ops
from autobatch.ops.define import shape_of
from autobatch.ops.elementwise import instead
from autobatch.torch.aten.shapes import unsqueeze
from autobatch.torch.aten.table import op, placed

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
    largest = ops.stop_gradient(ops.max(x, _axes(dim), True))
    largest = ops.where(ops.equal(ops.abs(largest), np.inf), 0.0, largest)
    found = ops.add(ops.log(ops.sum(ops.exp(ops.sub(x, largest)), _axes(dim), True)), largest)
    return found if keepdim else ops.reshape(found, shape_of(ops.sum(x, _axes(dim), False)))


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
    return ops.where(is_zero, 0.0, ops.sqrt(ops.where(is_zero, 1.0, x)))


def _axes(dim: Dims) -> Any:
    """Convert axes to our form: None for all, an int or a tuple."""
    return None if dim is None or dim == [] or dim == () else dim if isinstance(dim, int) else tuple(dim)
