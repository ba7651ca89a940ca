"""Products, layers and losses of ATen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from autobatch import ops
from autobatch.ops.define import shape_of
from autobatch.ops.indexing import pick
from autobatch.ops.products import matmul as product
from autobatch.torch.aten.elementwise import rsqrt, times
from autobatch.torch.aten.reductions import var_mean
from autobatch.torch.aten.table import indexed, op, scaled, stand_for

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
