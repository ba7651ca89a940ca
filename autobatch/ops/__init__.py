"""The ops: the operations that a cell's body uses. Shapes are per node, without a batch axis; see `ops/define.py`."""

from autobatch.ops.define import Op, define_op
from autobatch.ops.elementwise import (
    add,
    div,
    equal,
    exp,
    greater,
    greater_equal,
    less,
    less_equal,
    log,
    mul,
    neg,
    not_equal,
    pow,
    relu,
    sigmoid,
    softplus,
    sqrt,
    squared_error,
    stop_gradient,
    sub,
    tanh,
    where,
)  # fmt: skip
from autobatch.ops.indexing import cross_entropy, lookup
from autobatch.ops.linear import affine, dot, matmul, outer
from autobatch.ops.normal import erf, gelu
from autobatch.ops.random import dropout
from autobatch.ops.reduction import layer_norm, log_softmax, logsumexp, max, mean, softmax, sum
from autobatch.ops.shaping import concat, reshape, slice_, split, transpose
from autobatch.ops.variadic import attend, dot_n, each, logsumexp_n, max_n, mean_n, softmax_n, sum_n

__all__ = [
    "Op", "add", "affine", "attend", "concat", "cross_entropy", "define_op", "div", "dot", "dot_n", "dropout",
    "each", "equal", "erf", "exp", "gelu", "greater", "greater_equal", "layer_norm", "less", "less_equal",
    "log", "log_softmax", "logsumexp", "logsumexp_n", "lookup", "matmul", "max", "max_n", "mean", "mean_n",
    "mul", "neg", "not_equal", "outer", "pow", "relu", "reshape", "sigmoid", "slice_", "softmax", "softmax_n",
    "softplus", "split", "sqrt", "squared_error", "stop_gradient", "sub", "sum", "sum_n", "tanh", "transpose",
    "where",
]  # fmt: skip
