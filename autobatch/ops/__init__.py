"""The ops, the operations in the bodies of cells. Shapes are per node, without a batch axis; see `ops/define.py`."""

from autobatch.ops.define import Op, define_op
from autobatch.ops.elementwise import (
    abs,
    add,
    clip,
    cos,
    div,
    elu,
    equal,
    exp,
    greater,
    greater_equal,
    leaky_relu,
    less,
    less_equal,
    log,
    maximum,
    minimum,
    mul,
    neg,
    not_equal,
    pow,
    relu,
    sigmoid,
    sin,
    softplus,
    sqrt,
    squared_error,
    stop_gradient,
    sub,
    tanh,
    where,
)  # fmt: skip
from autobatch.ops.error_function import erf, gelu
from autobatch.ops.indexing import cross_entropy, lookup, top_k
from autobatch.ops.linear import affine, dot, outer
from autobatch.ops.products import einsum, matmul
from autobatch.ops.random import categorical, dropout, normal
from autobatch.ops.reduction import argmax, layer_norm, log_softmax, logsumexp, max, mean, min, softmax, sum
from autobatch.ops.shaping import concat, reshape, slice_, split, stack, transpose
from autobatch.ops.variadic import attend, dot_n, each, logsumexp_n, max_n, mean_n, softmax_n, sum_n

__all__ = [
    "Op", "abs", "add", "affine", "argmax", "attend", "categorical", "clip", "concat", "cos", "cross_entropy",
    "define_op", "div", "dot", "dot_n", "dropout", "each", "einsum", "elu", "equal", "erf", "exp", "gelu", "greater",
    "greater_equal", "layer_norm", "leaky_relu", "less", "less_equal", "log", "log_softmax", "logsumexp", "logsumexp_n",
    "lookup", "matmul", "max", "max_n", "maximum", "mean", "mean_n", "min", "minimum", "mul", "neg", "normal",
    "not_equal", "outer", "pow", "relu", "reshape", "sigmoid", "sin", "slice_", "softmax", "softmax_n", "softplus",
    "split", "sqrt", "squared_error", "stack", "stop_gradient", "sub", "sum", "sum_n", "tanh", "top_k", "transpose",
    "where",
]  # fmt: skip
