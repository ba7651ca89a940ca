"""autobatch: write plain Python for one instance, and run it on mini-batches as if an expert had batched it."""

from autobatch import starting as _starting  # noqa: F401  # isort: skip  # before what takes long to import
from autobatch import built as _built  # noqa: F401  # isort: skip

from importlib import import_module
from typing import TYPE_CHECKING, Any

from autobatch import ops, optim
from autobatch.api import Batched, batched
from autobatch.errors import (
    AutobatchError,
    BackendError,
    CheckpointError,
    DataError,
    DistributedError,
    GraphError,
    NumericError,
    PlanError,
    PolicyError,
    ScheduleError,
    ServingError,
    ShapeError,
)  # fmt: skip
from autobatch.graph.graph import Graph
from autobatch.nn.layers import Dropout, Embedding, GRUCell, LayerNorm, Linear, LSTMCell
from autobatch.nn.minibatches import minibatches, plan_ahead
from autobatch.ops import (
    abs,
    add,
    affine,
    argmax,
    attend,
    categorical,
    clip,
    concat,
    cos,
    cross_entropy,
    div,
    dot,
    dot_n,
    dropout,
    each,
    einsum,
    elu,
    equal,
    erf,
    exp,
    gelu,
    greater,
    greater_equal,
    layer_norm,
    leaky_relu,
    less,
    less_equal,
    log,
    log_softmax,
    logsumexp,
    logsumexp_n,
    lookup,
    matmul,
    max,
    max_n,
    maximum,
    mean,
    mean_n,
    min,
    minimum,
    mul,
    neg,
    normal,
    not_equal,
    outer,
    pow,
    relu,
    reshape,
    sigmoid,
    sin,
    softmax,
    softmax_n,
    softplus,
    split,
    sqrt,
    squared_error,
    stack,
    stop_gradient,
    sub,
    sum,
    sum_n,
    tanh,
    top_k,
    transpose,
    where,
)  # fmt: skip
from autobatch.ops.randomness import randomness
from autobatch.params.module import Module
from autobatch.params.parameter import Parameter
from autobatch.params.sparse_rows import Rows
from autobatch.release import VERSION
from autobatch.trace.awaiting import eager, gather, value
from autobatch.trace.cell import cell
from autobatch.trace.fold import fold, scan
from autobatch.trace.fold_edges import fold_edges

__version__ = VERSION

__all__ = [
    "AutobatchError", "BackendError", "Batched", "CheckpointError", "DataError", "DistributedError", "Dropout",
    "Embedding", "GRUCell", "Graph", "GraphError", "LSTMCell", "LayerNorm", "Linear", "Module", "NumericError",
    "Parameter", "PlanError", "PolicyError", "Rows", "ScheduleError", "ServingError", "ShapeError", "abs", "add",
    "affine", "argmax", "attend", "batched", "categorical", "cell", "clip", "concat", "cos", "cross_entropy",
    "distributed", "div", "dot", "dot_n", "dropout", "each", "eager", "einsum", "elu", "equal", "erf", "exp", "export",
    "fold", "fold_edges", "gather", "gelu", "grad", "greater", "greater_equal", "hvp", "jvp", "layer_norm",
    "leaky_relu", "less", "less_equal", "load", "log", "log_softmax", "logsumexp", "logsumexp_n", "lookup", "matmul",
    "max", "max_n", "maximum", "mean", "mean_n", "min", "minibatches", "minimum", "mul", "neg", "normal", "not_equal",
    "ops", "optim", "outer", "plan_ahead", "policies", "pow", "randomness", "readers", "relu", "reshape", "scan",
    "serve", "serving", "sigmoid", "sin", "softmax", "softmax_n", "softplus", "split", "sqrt", "squared_error", "stack",
    "stop_gradient", "sub", "sum", "sum_n", "tanh", "testing", "top_k", "transpose", "value", "value_and_grad", "vjp",
    "where",
]  # fmt: skip

if TYPE_CHECKING:
    from autobatch import distributed, readers, serving, testing
    from autobatch.deploy.loading import load
    from autobatch.deploy.writing import export
    from autobatch.serving.server import serve
    from autobatch.trace.derivatives import grad, hvp, jvp, value_and_grad, vjp
else:
    LAZY = {
        **dict.fromkeys(("grad", "hvp", "jvp", "value_and_grad", "vjp"), "autobatch.trace.derivatives"),
        "export": "autobatch.deploy.writing",
        "load": "autobatch.deploy.loading",
        "serve": "autobatch.serving.server",
    }

    def __getattr__(name: str) -> Any:
        if name in ("distributed", "policies", "readers", "serving", "testing"):
            return import_module(f"autobatch.{name}")
        if name in LAZY:
            return getattr(import_module(LAZY[name]), name)
        if name == "torch":
            raise AttributeError("autobatch.torch must be imported: import autobatch.torch as abt.", name=name)
        from autobatch.missing import advice

        raise AttributeError(f"module 'autobatch' has no attribute {name!r}{advice(name, __all__)}", name=name)


def __dir__() -> list[str]:
    """Return the public names, for dir() and completion, without the folders of the runtime."""
    return __all__
