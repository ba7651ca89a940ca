"""The basic ops of torch, ATen's, as ops of ours, by name.

Each is given values, parameters and arrays in the place of tensors, and all else as torch gives it. It gives
NotImplemented for what only torch can do.

Source: the operator schemas of torch, `torch.ops.aten`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch import ops
from autobatch.errors import GraphError
from autobatch.ops.define import shape_of
from autobatch.ops.indexing import one_hot
from autobatch.ops.products import matmul as product
from autobatch.ops.shaping import expand as broadcast_to
from autobatch.ops.shaping import slice_

OPS: dict[str, Callable[..., Any]] = {}

MEAN, SUM = 1, 2
"""Reductions of losses, as ATen numbers them."""


def op(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark what stands for the ops of these names."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        OPS.update(dict.fromkeys(names, function))
        return function

    return mark


# Element by element.

OPS.update(
    neg=ops.neg, exp=ops.exp, log=ops.log, sqrt=ops.sqrt, abs=ops.abs, sin=ops.sin, cos=ops.cos, erf=ops.erf,
    tanh=ops.tanh, sigmoid=ops.sigmoid, relu=ops.relu, gelu=ops.gelu, mul=ops.mul, pow=ops.pow,
    maximum=ops.maximum, minimum=ops.minimum, where=ops.where, gt=ops.greater, ge=ops.greater_equal, lt=ops.less,
    le=ops.less_equal, eq=ops.equal, ne=ops.not_equal,
)  # fmt: skip


@op("add")
def add(x: Any, y: Any, *, alpha: float = 1) -> Any:
    """x + alpha y."""
    return ops.add(x, _times(y, alpha))


@op("sub")
def sub(x: Any, y: Any, *, alpha: float = 1) -> Any:
    """x - alpha y."""
    return ops.sub(x, _times(y, alpha))


@op("rsub")
def rsub(x: Any, y: Any, alpha: float = 1) -> Any:
    """y - alpha x."""
    return ops.sub(y, _times(x, alpha))


@op("div")
def div(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    """x / y."""
    if rounding_mode is not None:
        raise GraphError(f"division with rounding_mode={rounding_mode!r} has no gradient and no counterpart here.")
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
    scaled = _times(x, beta)
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
    return ops.add(x, _times(ops.mul(y, z), value))


@op("addcdiv")
def addcdiv(x: Any, y: Any, z: Any, *, value: float = 1) -> Any:
    """x + value y / z."""
    return ops.add(x, _times(ops.div(y, z), value))


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


# Products.

OPS.update(mm=product, mv=product, bmm=product, dot=ops.dot, matmul=product)


@op("addmm", "addmv", "baddbmm")
def addmm(bias: Any, x: Any, y: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """β bias + α x @ y."""
    return ops.add(_times(bias, beta), _times(product(x, y), alpha))


# Shapes.


@op("t")
def t(x: Any) -> Any:
    """A matrix with its axes swapped."""
    return ops.transpose(x)


@op("transpose")
def transpose(x: Any, dim0: int, dim1: int) -> Any:
    """x with two axes swapped."""
    axes = list(range(len(shape_of(x))))
    axes[dim0], axes[dim1] = axes[dim1], axes[dim0]
    return ops.transpose(x, axes)


@op("permute")
def permute(x: Any, dims: Sequence[int]) -> Any:
    """x with its axes in another order."""
    return ops.transpose(x, tuple(dims))


@op("view", "_unsafe_view", "reshape", "_reshape_alias", "view_copy")
def view(x: Any, size: Sequence[int], *others: Any) -> Any:
    """The elements of x in another shape."""
    return ops.reshape(x, tuple(size))


@op("expand")
def expand(x: Any, size: Sequence[int], *, implicit: bool = False) -> Any:
    """x broadcast to a shape, in which -1 leaves an axis as it is."""
    shape = (1,) * (len(size) - len(shape_of(x))) + shape_of(x)
    wanted = tuple(own if n == -1 else n for own, n in zip(shape, size, strict=True))
    return broadcast_to(ops.reshape(x, shape) if shape != shape_of(x) else x, wanted)


@op("unsqueeze")
def unsqueeze(x: Any, dim: int) -> Any:
    """x with another axis of length one."""
    shape = list(shape_of(x))
    shape.insert(dim % (len(shape) + 1), 1)
    return ops.reshape(x, tuple(shape))


@op("squeeze")
def squeeze(x: Any, dim: int | Sequence[int] | None = None) -> Any:
    """x without axes of length one."""
    shape = shape_of(x)
    given = range(len(shape)) if dim is None else [dim] if isinstance(dim, int) else dim
    out = {d % len(shape) for d in given if shape} & {d for d, n in enumerate(shape) if n == 1}
    return ops.reshape(x, tuple(n for d, n in enumerate(shape) if d not in out))


@op("slice")
def cut(x: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    """Every step-th element along an axis, from one to another."""
    return _at(x, dim, slice(*slice(start, end, step).indices(shape_of(x)[dim])))


@op("select")
def select(x: Any, dim: int, index: int) -> Any:
    """One element along an axis."""
    return _at(x, dim, index)


@op("split", "unsafe_split")
def split(x: Any, size: int, dim: int = 0) -> Any:
    """Parts of a size along an axis; the last may be shorter."""
    length = shape_of(x)[dim]
    return [_at(x, dim, slice(first, min(first + size, length))) for first in range(0, length, size)]


@op("split_with_sizes")
def split_with_sizes(x: Any, sizes: Sequence[int], dim: int = 0) -> Any:
    """Parts of these sizes along an axis."""
    ends = np.cumsum(sizes).tolist()
    return [_at(x, dim, slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


@op("unbind")
def unbind(x: Any, dim: int = 0) -> Any:
    """All elements along an axis."""
    return [_at(x, dim, place) for place in range(shape_of(x)[dim])]


@op("cat")
def cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Values one after the other along an axis; those of torch's empty shape (0,) are left out."""
    rank = max(len(shape_of(x)) for x in tensors)
    parts = [x for x in tensors if len(shape_of(x)) == rank]
    return parts[0] if len(parts) == 1 else ops.concat(parts, dim)


@op("stack")
def stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Values along an axis of their own."""
    return ops.concat([unsqueeze(x, dim) for x in tensors], dim)


@op("repeat")
def repeat(x: Any, repeats: Sequence[int]) -> Any:
    """Copies of x one after the other, along each axis."""
    x = ops.reshape(x, (1,) * (len(repeats) - len(shape_of(x))) + shape_of(x))
    for axis, n in enumerate(repeats):
        x = ops.concat([x] * n, axis) if n > 1 else x
    return x


@op("embedding")
def embedding(weight: Any, indices: Any, *options: Any) -> Any:
    """Rows of a table."""
    return ops.lookup(weight, indices)


@op("index_select")
def index_select(x: Any, dim: int, index: Any) -> Any:
    """The elements along an axis that ints number."""
    if dim % len(shape_of(x)) == 0:
        return ops.lookup(x, index)
    axes = list(range(len(shape_of(x))))
    axes.insert(0, axes.pop(dim))
    found = ops.lookup(ops.transpose(x, axes), index)
    return ops.transpose(found, tuple(int(a) for a in np.argsort(axes)))


# Reductions.

Dims = Any


@op("sum")
def sum_(x: Any, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The sum over axes."""
    return ops.sum(x, _axes(dim), keepdim)


@op("mean")
def mean(x: Any, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The mean over axes."""
    return ops.mean(x, _axes(dim), keepdim)


@op("amax")
def amax(x: Any, dim: Dims = None, keepdim: bool = False) -> Any:
    """The largest element over axes."""
    return ops.max(x, _axes(dim), keepdim)


@op("amin")
def amin(x: Any, dim: Dims = None, keepdim: bool = False) -> Any:
    """The smallest element over axes."""
    return ops.min(x, _axes(dim), keepdim)


@op("max")
def max_(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The largest element; along an axis also its place."""
    return ops.max(x) if dim is None else (ops.max(x, dim, keepdim), argmax(x, dim, keepdim))


@op("argmax")
def argmax(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The place of the largest element."""
    if dim is None:
        return ops.argmax(ops.reshape(x, (math.prod(shape_of(x)),)))
    found = ops.argmax(x, dim)
    return unsqueeze(found, dim) if keepdim else found


@op("logsumexp")
def logsumexp(x: Any, dim: Dims, keepdim: bool = False) -> Any:
    """The logarithm of the sum of exponentials over axes."""
    largest = ops.stop_gradient(ops.max(x, _axes(dim), True))
    found = ops.add(ops.log(ops.sum(ops.exp(ops.sub(x, largest)), _axes(dim), True)), largest)
    return found if keepdim else ops.reshape(found, shape_of(ops.sum(x, _axes(dim), False)))


@op("var")
def var(x: Any, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    """The variance over axes."""
    return var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


@op("std")
def std(x: Any, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    """The standard deviation over axes."""
    return _root(var(x, dim, correction=correction, keepdim=keepdim))


@op("var_mean")
def var_mean(x: Any, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    """The variance and the mean over axes."""
    middle = ops.mean(x, _axes(dim), True)
    apart = ops.sub(x, middle)
    n = math.prod(shape_of(x)) // math.prod(shape_of(middle)) - (1 if correction is None else correction)
    spread = ops.div(ops.sum(ops.mul(apart, apart), _axes(dim), keepdim), float(n))
    return spread, middle if keepdim else ops.mean(x, _axes(dim), False)


@op("linalg_vector_norm")
def vector_norm(x: Any, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The Euclidean norm over axes."""
    return _root(ops.sum(ops.mul(x, x), _axes(dim), keepdim)) if ord == 2 else NotImplemented


# Layers and losses.


@op("_softmax")
def softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    """The softmax along an axis."""
    return ops.softmax(x, dim)


@op("_log_softmax")
def log_softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    """The logarithm of the softmax along an axis."""
    return ops.log_softmax(x, dim)


@op("native_layer_norm")
def native_layer_norm(x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    """The last axes with mean 0 and variance 1, scaled and shifted; and mean and 1 / deviation."""
    axes = tuple(range(-len(shape), 0))
    spread, middle = var_mean(x, axes, correction=0, keepdim=True)
    scale = rsqrt(ops.add(spread, eps))
    found = ops.mul(ops.sub(x, middle), scale)
    found = found if weight is None else ops.mul(found, weight)
    return found if bias is None else ops.add(found, bias), middle, scale


@op("nll_loss_forward", "nll_loss")
def nll_loss_forward(x: Any, target: Any, weight: Any, reduction: int, ignore_index: int) -> Any:
    """Minus the scores of the labels; and the sum of their weights."""
    if weight is not None or ignore_index >= 0:
        return NotImplemented
    losses = ops.neg(ops.sum(ops.mul(x, one_hot(target, size=shape_of(x)[-1])), -1))
    return _reduce(losses, reduction), np.asarray(float(math.prod(shape_of(losses))))


@op("mse_loss")
def mse_loss(x: Any, y: Any, reduction: int = MEAN) -> Any:
    """The squares of differences."""
    return _reduce(ops.squared_error(x, y), reduction)


@op("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    x: Any, y: Any, weight: Any = None, pos_weight: Any = None, reduction: int = MEAN
) -> Any:
    """Minus the logarithms of the probabilities of what is so, or is not."""
    if pos_weight is not None:
        return NotImplemented
    losses = ops.sub(ops.softplus(x), ops.mul(x, y))
    return _reduce(losses if weight is None else ops.mul(losses, weight), reduction)


# Constants.


@op("zeros_like", "new_zeros", "empty_like", "new_empty")
def zeros(x: Any, *size: Any, **options: Any) -> Any:
    """Zeros in the shape of x, or in another."""
    return np.zeros(tuple(size[0]) if size else shape_of(x))


@op("ones_like", "new_ones")
def ones(x: Any, *size: Any, **options: Any) -> Any:
    """Ones in the shape of x, or in another."""
    return np.ones(tuple(size[0]) if size else shape_of(x))


@op("full_like")
def full_like(x: Any, value: float, **options: Any) -> Any:
    """A number in the shape of x."""
    return np.full(shape_of(x), float(value))


@op("new_full")
def new_full(x: Any, size: Sequence[int], value: float, **options: Any) -> Any:
    """A number in a shape."""
    return np.full(tuple(size), float(value))


@op("fill")
def fill(x: Any, value: Any) -> Any:
    """A number in the shape of x."""
    return broadcast_to(value, shape_of(x)) if hasattr(value, "shape") else np.full(shape_of(x), float(value))


@op("zero")
def zero(x: Any) -> Any:
    """Zeros in the shape of x."""
    return np.zeros(shape_of(x))


def _root(x: Any) -> Any:
    """The square root, whose gradient at zero is zero, as that of torch's norms."""
    is_above = ops.greater(x, 0.0)
    return ops.where(is_above, ops.sqrt(ops.where(is_above, x, 1.0)), 0.0)


def _times(x: Any, factor: float) -> Any:
    return x if factor == 1 else ops.mul(x, float(factor))


def _at(x: Any, dim: int, index: Any) -> Any:
    axis = dim % len(shape_of(x))
    return slice_(x, index=(*(slice(None) for _ in range(axis)), index))


def _axes(dim: Dims) -> Any:
    """Axes as ours are given: None for all, an int or a tuple."""
    return None if dim is None or dim == [] or dim == () else dim if isinstance(dim, int) else tuple(dim)


def _reduce(losses: Any, reduction: int) -> Any:
    return ops.mean(losses) if reduction == MEAN else ops.sum(losses) if reduction == SUM else losses
