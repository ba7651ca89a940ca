"""Functions of torch that have an op of their own here: a trace intercepts them before torch decomposes them.

Each takes torch's arguments, with values, parameters and arrays in place of tensors. It returns NotImplemented for
unsupported arguments; torch then decomposes the function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from autobatch import ops
from autobatch.ops.conditions import is_condition
from autobatch.ops.define import shape_of
from autobatch.ops.elementwise import instead
from autobatch.ops.indexing import pick
from autobatch.ops.operators import Symbol
from autobatch.ops.products import matmul
from autobatch.torch.aten.layers import mean_of

FUNCTIONS: dict[Any, Callable[..., Any]] = {}


def stands_for(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the counterpart of these functions of torch."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        FUNCTIONS.update(dict.fromkeys(functions, function))
        return function

    return mark


@stands_for(functional.linear, torch._C._nn.linear)
def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """Multiply a vector, rows of vectors, or one row of any rank, by a matrix (out, in), and add a bias."""
    shape = shape_of(input)
    if math.prod(shape[:-1]) > 1:
        product = matmul(input, ops.transpose(weight))
        return product if bias is None else product + bias
    x = ops.reshape(input, shape[-1:]) if len(shape) > 1 else input
    y = weight @ x if bias is None else ops.affine(weight, x, bias)
    return ops.reshape(y, (*shape[:-1], *shape_of(y))) if len(shape) > 1 else y


FUNCTIONS.update(dict.fromkeys((torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__), matmul))


@stands_for(torch.einsum, functional.bilinear)
def einsum(equation: Any, *operands: Any) -> Any:
    """Sum products of one or two values in Einstein notation."""
    if not isinstance(equation, str) or len(operands) > 2 or "." in equation or "->" not in equation:
        return NotImplemented
    return ops.einsum(equation, *operands)


@stands_for(functional.embedding)
def embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Look up rows of a table; row `padding_idx` has no gradient."""
    if max_norm is not None or (scale_grad_by_freq and sparse):
        return NotImplemented
    rows = ops.lookup(weight, input)
    if scale_grad_by_freq:
        # The rows themselves, whose gradients are divided by the counts.
        rows = instead(ops.div(rows, _counts(input, shape_of(weight)[1:])), ops.stop_gradient(rows))
    if padding_idx is None:
        return rows
    is_padding = ops.equal(input, float(padding_idx % shape_of(weight)[0]))
    is_padding = ops.reshape(is_padding, (*shape_of(is_padding), *(1 for _ in shape_of(weight)[1:])))
    return ops.where(is_padding, ops.stop_gradient(rows), rows)


def _counts(ids: Any, row: tuple[int, ...]) -> Any:
    """Count the occurrences of each id among all ids, in a shape that broadcasts to rows of shape `row`."""
    n = math.prod(shape_of(ids))
    are_equal = ops.equal(ops.reshape(ids, (n, 1)), ops.reshape(ids, (1, n)))
    return ops.reshape(ops.sum(are_equal, 1), (*shape_of(ids), *(1 for _ in row)))


@stands_for(torch.Tensor.__getitem__)
def take(x: Any, index: Any) -> Any:
    """Take rows by a value of ints."""
    return ops.lookup(x, index) if isinstance(index, Symbol) and not is_condition(index) else NotImplemented


@stands_for(functional.dropout)
def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Zero elements at random."""
    return ops.dropout(input, p) if training and not inplace else NotImplemented


@stands_for(functional.layer_norm)
def layer_norm(input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Normalize the last axis."""
    if len(normalized_shape) != 1 or weight is None or bias is None:
        return NotImplemented
    return ops.layer_norm(input, weight, bias, eps=eps)


@stands_for(functional.cross_entropy)
def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Compute the loss of labels () or (N,) under logits (C,) or (N, C); ignored labels have loss 0 and no weight."""
    logits, labels = shape_of(input), shape_of(target)
    if weight is not None or label_smoothing or logits[:-1] != labels or not 1 <= len(logits) <= 2:
        return NotImplemented
    losses = ops.neg(pick(ops.log_softmax(input), target, ignore=ignore_index))
    if reduction == "none":
        return losses
    total = ops.sum(losses) if labels else losses
    return total if reduction == "sum" else mean_of(total, ops.sum(ops.not_equal(target, float(ignore_index))))


@stands_for(torch.lstm_cell, torch._VF.lstm_cell)
def lstm_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """Compute one step of an LSTM: h and c."""
    h, c = hx
    i, f, g, o = ops.split(linear(input, w_ih, b_ih) + linear(h, w_hh, b_hh), 4)
    c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
    return ops.sigmoid(o) * ops.tanh(c), c


@stands_for(torch.gru_cell, torch._VF.gru_cell)
def gru_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """Compute one step of a GRU."""
    r_x, z_x, n_x = ops.split(linear(input, w_ih, b_ih), 3)
    r_h, z_h, n_h = ops.split(linear(hx, w_hh, b_hh), 3)
    n = ops.tanh(n_x + ops.sigmoid(r_x + r_h) * n_h)
    return n + ops.sigmoid(z_x + z_h) * (hx - n)


@stands_for(torch.rnn_tanh_cell, torch._VF.rnn_tanh_cell)
def rnn_tanh_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """Compute one step of an RNN with tanh units."""
    return ops.tanh(linear(input, w_ih, b_ih) + linear(hx, w_hh, b_hh))


@stands_for(torch.rnn_relu_cell, torch._VF.rnn_relu_cell)
def rnn_relu_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """Compute one step of an RNN with rectified units."""
    return ops.relu(linear(input, w_ih, b_ih) + linear(hx, w_hh, b_hh))


@stands_for(functional.batch_norm)
def batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Normalize each channel by the running statistics, in evaluation."""
    if training or running_mean is None or len(shape_of(input)) < 2:
        return NotImplemented
    shape = (1, -1, *(1 for _ in shape_of(input)[2:]))
    mean, var, weight, bias = (
        x if x is None else ops.reshape(x, shape) for x in (running_mean, running_var, weight, bias)
    )
    scaled = ops.div(ops.sub(input, mean), ops.sqrt(ops.add(var, eps)))
    scaled = scaled if weight is None else ops.mul(scaled, weight)
    return scaled if bias is None else ops.add(scaled, bias)


NUMBERED = embedding, take, cross_entropy
"""Functions with int arguments that index floats."""
