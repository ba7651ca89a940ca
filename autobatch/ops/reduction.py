"""Reductions over the axes of one node's value, and the normalizations built on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.arguments import is_bool, is_int, refusal, show, to_plain
from autobatch.errors import ShapeError
from autobatch.ops.define import Array, Op, Shape, Value, composite, define_op, of_values, shape_of
from autobatch.ops.elementwise import abs, equal, exp, log, stop_gradient, where
from autobatch.ops.operators import FUNCTIONS
from autobatch.ops.shaping import expand, reshape

Axis = int | tuple[int, ...] | None


def axes_of(ndim: int, axis: Axis) -> tuple[int, ...]:
    """Return the non-negative numbers of the reduced axes, in order; ShapeError for an invalid or repeated axis."""
    if axis is None:
        return tuple(range(ndim))
    axis = to_plain(axis)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    if any(not is_int(a) or not -ndim <= a < ndim for a in axes):
        raise ShapeError(f"the axis of a reduction must be one of the {ndim} axes of the value, got {show(axis)}.")
    chosen = {a % ndim for a in axes}
    if len(chosen) < len(axes):
        raise ShapeError(f"the axes of a reduction must differ, got {axis} for a value with {ndim} axes.")
    return tuple(sorted(chosen))


def _reduced(x: Shape, axis: Axis, keepdims: bool) -> Shape:
    axes = axes_of(len(x), axis)
    if not is_bool(keepdims):
        raise refusal("keepdims", "True or False", keepdims, ShapeError)
    if keepdims:
        return tuple(1 if a in axes else size for a, size in enumerate(x))
    return tuple(size for a, size in enumerate(x) if a not in axes)


def _reduced_to_max(x: Shape, axis: Axis, keepdims: bool) -> Shape:
    reduced = _reduced(x, axis, keepdims)
    if 0 in (x[a] for a in axes_of(len(x), axis)) and 0 not in reduced:
        raise ShapeError(f"max must be given at least 1 element, got axis {axis} of a value of shape {x}.")
    return reduced


def _define_reduction(name: str, reduce: Callable[..., Any], pullback: Callable[..., Any], shape: Any = _reduced) -> Op:
    def kernel(xp: Any, x: Array, out: Array, axis: Axis, keepdims: bool) -> None:
        axes = tuple(a + 1 for a in axes_of(x.ndim - 1, axis))
        reduce(xp)(x, axis=axes, out=out, keepdims=keepdims)

    return define_op(name, shape=shape, kernel=kernel, pullback=pullback)


def _restore(g: Any, x: Any, axis: Axis) -> Any:
    """Return `g`, the gradient of a reduction of `x`, with the reduced axes restored as axes of length one."""
    return reshape(g, _reduced(x.shape, axis, keepdims=True))


def _max_pullback(g: Any, out: Any, x: Any, axis: Axis, keepdims: bool) -> tuple[Any]:
    hit = equal(x, _restore(out, x, axis))
    return (where(hit, _restore(g, x, axis), 0.0) / sum(hit, axis, keepdims=True),)


_sum_op = _define_reduction(
    "sum", lambda xp: xp.sum, lambda g, out, x, axis, keepdims: (expand(_restore(g, x, axis), x.shape),)
)
_max_op = _define_reduction("max", lambda xp: xp.amax, _max_pullback, _reduced_to_max)


@of_values
def sum(x: Value, axis: Axis = None, keepdims: bool = False) -> Value:
    """Sum over `axis` (all axes by default).

    Shapes: any x; the result lacks these axes, or with `keepdims` has length 1 there.
    Gradient: 1 for each element.

    >>> ab.sum(np.array([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    array([4., 6.])
    """
    return _sum_op(x, axis=axis, keepdims=keepdims)


@composite
def mean(x: Value, axis: Axis = None, keepdims: bool = False) -> Value:
    """Average over `axis` (all axes by default).

    Shapes: any x; the result lacks these axes, or with `keepdims` has length 1 there.
    Gradient: 1 / n for each of n elements.

    >>> ab.mean(np.array([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    array([2., 3.])
    """
    total, sizes = sum(x, axis, keepdims), shape_of(x)
    size = math.prod((sizes[a] for a in axes_of(len(sizes), axis)), start=1.0)
    return total / size


@of_values
def max(x: Value, axis: Axis = None, keepdims: bool = False) -> Value:
    """Return the largest element over `axis` (all axes by default).

    Shapes: any x; the result lacks these axes, or with `keepdims` has length 1 there.
    Gradient: 1 for the largest element, 0 for the others; equal largest elements share it evenly. Second derivatives
        are 0, also where the largest elements are equal and they are undefined.

    >>> ab.max(np.array([[1.0, 4.0], [3.0, 2.0]]), axis=0)
    array([3., 4.])
    """
    return _max_op(x, axis=axis, keepdims=keepdims)


@composite
def min(x: Value, axis: Axis = None, keepdims: bool = False) -> Value:
    """Return the smallest element over `axis` (all axes by default).

    Shapes: any x; the result lacks these axes, or with `keepdims` has length 1 there.
    Gradient: 1 for the smallest element, 0 for the others; equal smallest elements share it evenly. Second derivatives
        are 0, also where the smallest elements are equal and they are undefined.

    >>> ab.min(np.array([[1.0, 4.0], [3.0, 2.0]]), axis=0)
    array([1., 2.])
    """
    return -max(-x, axis, keepdims)


def _argmax_shape(x: Shape, axis: int | None) -> Shape:
    return _reduced_to_max(x, axis, keepdims=False)


def _argmax(xp: Any, x: Array, out: Array, axis: int | None) -> None:
    flat = x.reshape(len(x), -1) if axis is None else x
    out[...] = xp.argmax(flat, axis=-1 if axis is None else _along(x, axis))


def _n_choices(x: Shape, axis: int | None) -> int:
    return (math.prod(x) if axis is None else x[axis]) or 1  # an empty axis has no choices, but ints as its result


_argmax_op = define_op("argmax", shape=_argmax_shape, kernel=_argmax, below=_n_choices)


@composite
def argmax(x: Value, axis: int | None = None) -> Value:
    """Return the position of the largest element along `axis` (in the flattened value by default), the first of ties.

    It is an int, which `ab.lookup` takes in the same cell or in another one. Arithmetic converts it to the model's
    float type, like ints of the data. NaN counts as larger than any number, as in NumPy and torch.

    Shapes: any x; the result lacks the axis, () by default.
    Gradient: none.

    >>> ab.argmax(np.array([[0.5, 2.0], [1.0, 0.0]]), axis=1)
    array([1, 0])
    >>> int(ab.argmax(np.array([[0.5, 2.0], [1.0, 0.0]])))
    1
    """
    return _argmax_op(x, axis=axis)


@composite
def logsumexp(x: Value, axis: Axis = None, keepdims: bool = False) -> Value:
    """Compute the logarithm of the sum of exp(x) over `axis` (all axes by default), without overflow.

    Shapes: any x; the result lacks these axes, or with `keepdims` has length 1 there.
    Gradient: softmax(x) over these axes; nan where the result is infinite.

    >>> float(ab.logsumexp(np.array([1000.0, 1000.0])).round(4))
    1000.6931
    """
    # The peak cancels, so any constant is right, and the gradient of the rest is the softmax.
    peak = finite_peak(max(x, axis, keepdims=True))
    total = log(sum(exp(x - peak), axis, keepdims=True)) + peak
    return total if keepdims is True else reshape(total, _reduced(shape_of(x), axis, keepdims))


def finite_peak(peak: Any) -> Any:
    """Return the number to subtract before `exp`: the largest value, or 0 if it is infinite."""
    # inf - inf would be nan, although the logarithm of the sum is then -inf or inf.
    return stop_gradient(where(equal(abs(peak), np.inf), 0.0, peak))


def _same_shape(x: Shape, axis: int) -> Shape:
    if not is_int(axis):
        raise refusal("axis", "an int", axis, ShapeError)
    axes_of(len(x), axis)
    return x


def _along(x: Array, axis: int) -> int:
    return axis if axis < 0 else axis + 1


def _softmax(xp: Any, x: Array, out: Array, axis: int) -> None:
    axis = _along(x, axis)
    xp.subtract(x, xp.amax(x, axis=axis, keepdims=True), out=out, dtype=out.dtype)
    xp.exp(out, out=out)
    xp.true_divide(out, out.sum(axis=axis, keepdims=True), out=out)


def _log_softmax(xp: Any, x: Array, out: Array, axis: int) -> None:
    axis = _along(x, axis)
    xp.subtract(x, xp.amax(x, axis=axis, keepdims=True), out=out, dtype=out.dtype)
    xp.subtract(out, xp.log(xp.exp(out).sum(axis=axis, keepdims=True)), out=out)


_softmax_op = define_op(
    "softmax", shape=_same_shape, kernel=_softmax,
    pullback=lambda g, out, x, axis: (out * (g - sum(g * out, axis, keepdims=True)),),
)  # fmt: skip
_log_softmax_op = define_op(
    "log_softmax", shape=_same_shape, kernel=_log_softmax,
    pullback=lambda g, out, x, axis: (g - exp(out) * sum(g, axis, keepdims=True),),
)  # fmt: skip


@of_values
def softmax(x: Value, axis: int = -1) -> Value:
    """Scale exp(x) to sum to one along `axis`, without overflow.

    Shapes: any x with this axis; the result has the same shape.
    Gradient: y * (g - sum(g * y)) along the axis, where g is the gradient of the result y.

    >>> ab.softmax(np.array([0.0, 0.0, np.log(2.0)])).round(4)
    array([0.25, 0.25, 0.5 ])
    """
    return _softmax_op(x, axis=axis)


@of_values
def log_softmax(x: Value, axis: int = -1) -> Value:
    """Compute the logarithm of `softmax` along `axis` directly.

    Shapes: any x with this axis; the result has the same shape.
    Gradient: g - softmax(x) * sum(g) along the axis, where g is the gradient of the result.

    >>> ab.log_softmax(np.array([0.0, 0.0])).round(4)
    array([-0.6931, -0.6931])
    """
    return _log_softmax_op(x, axis=axis)


def _layer_norm_shape(x: Shape, gain: Shape, bias: Shape, eps: float) -> Shape:
    if not isinstance(eps, (int, float, np.ndarray)):
        raise refusal("eps of layer_norm", "a number", eps)
    if not x or gain != x[-1:] or bias != x[-1:]:
        raise ShapeError(
            f"gain and bias of layer_norm must have shape {x[-1:]} for a value of shape {x}, got {gain} and {bias}."
        )
    return x


def _layer_norm(xp: Any, x: Array, gain: Array, bias: Array, out: Array, eps: float) -> None:
    xp.subtract(x, x.mean(axis=-1, keepdims=True), out=out)
    xp.subtract(out, out.mean(axis=-1, keepdims=True), out=out)  # removes the rounding error of a large mean
    scale = 1 / xp.sqrt((out * out).mean(axis=-1, keepdims=True) + eps)
    lead = (-1,) + (1,) * (x.ndim - 2)
    xp.multiply(out, scale, out=out)
    xp.multiply(out, gain.reshape((*lead, gain.shape[-1])), out=out)
    xp.add(out, bias.reshape((*lead, bias.shape[-1])), out=out)


def _layer_norm_pullback(g: Any, out: Any, x: Any, gain: Any, bias: Any, eps: float) -> tuple[Any, ...]:
    centred = x - mean(x, -1, keepdims=True)
    centred = centred - mean(centred, -1, keepdims=True)
    scale = (mean(centred * centred, -1, keepdims=True) + eps) ** -0.5
    normal, h = centred * scale, g * gain
    dx = scale * (h - mean(h, -1, keepdims=True) - normal * mean(h * normal, -1, keepdims=True))
    return dx, g * normal, g


_layer_norm_op = define_op(
    "layer_norm", shape=_layer_norm_shape, kernel=_layer_norm, pullback=_layer_norm_pullback
)  # fmt: skip


@of_values
def layer_norm(x: Value, gain: Value, bias: Value, eps: float = 1e-5) -> Value:
    """Normalize `x` to mean 0 and variance 1 along the last axis, times gain, plus bias (Ba, Kiros, Hinton 2016).

    Shapes: x (..., n), gain (n,), bias (n,), the result like x. `eps` is added to the variance.
    Gradient: for x, gain and bias.

    >>> ab.layer_norm(np.array([1.0, 3.0]), np.ones(2), np.zeros(2)).round(4)
    array([-1.,  1.])
    """
    return _layer_norm_op(x, gain, bias, eps=eps)


def unbroadcast(x: Any, shape: Shape) -> Any:
    """Sum `x` over the axes that `shape` lacks or has at length one: the transpose of broadcasting to x's shape."""
    sizes = shape_of(x)
    extra = len(sizes) - len(shape)
    wide = tuple(a for a, size in enumerate(sizes) if a < extra or (shape[a - extra] == 1 and size != 1))
    if wide:
        x = reshape(sum(x, wide, keepdims=True), tuple(1 if a in wide else s for a, s in enumerate(sizes))[extra:])
    return expand(x, shape)


FUNCTIONS.update(sum=sum, mean=mean, max=max, min=min)
