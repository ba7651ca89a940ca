"""Advice for names that other libraries have and `autobatch` does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.keywords import nearest

ARRAY = "NumPy arrays are constants in recorded programs, so write np.{}"
INSTEAD = {
    **{name: ARRAY.format(name) for name in ("array", "arange", "eye", "full", "linspace", "ones", "zeros")},
    **{f"{name}_like": ARRAY.format(f"{name}(x.shape)") for name in ("ones", "zeros")},
    "tensor": ARRAY.format("array"),
    "cat": "write ab.concat",
    "concatenate": "write ab.concat",
    "hstack": "write ab.concat",
    "bmm": "write ab.matmul",
    "mm": "write ab.matmul",
    "mv": "write ab.matmul",
    "nll_loss": "write ab.cross_entropy, which takes logits",
    "mse_loss": "write ab.mean(ab.squared_error(x, y))",
    "clamp": "write ab.clip",
    "chunk": "write ab.split",
    "swish": "write x * ab.sigmoid(x)",
    "silu": "write x * ab.sigmoid(x)",
    "square": "write x * x",
    "detach": "write ab.stop_gradient",
    "topk": "write ab.top_k",
    "permute": "write ab.transpose",
    "rand": "draw instances with NumPy; in a cell write ab.normal",
    "randn": "draw instances with NumPy; in a cell write ab.normal",
    "no_grad": "a call computes no gradients; value_and_grad does",
    "nn": "layers are ab.Linear, ab.Embedding, ab.LSTMCell and others",
    "jit": "ab.batched compiles",
    "vmap": "write ab.batched",
}


def suggesting(module: str, public: Sequence[str]) -> Callable[[str], Any]:
    """Make the `__getattr__` of a module, whose error suggests the nearest of its public names.

    >>> suggesting("autobatch.optim", ["Adam"])("Adm")
    Traceback (most recent call last):
    ...
    AttributeError: module 'autobatch.optim' has no attribute 'Adm'; did you mean Adam?
    """

    def __getattr__(name: str) -> Any:
        near = nearest(name, public, likeness=0.75)
        told = f"; did you mean {near}?" if near else ""
        raise AttributeError(f"module {module!r} has no attribute {name!r}{told}", name=name)

    return __getattr__


def advice(name: str, public: Sequence[str]) -> str:
    """Return the advice to append to the error message for a missing name; it begins with a semicolon, or is "".

    >>> advice("zeros", ["relu"]), advice("Relu", ["relu"]), advice("xyzzy", ["relu"])
    ('; NumPy arrays are constants in recorded programs, so write np.zeros', '; did you mean ab.relu?', '')
    >>> advice("sign", ["sin"])
    '; compose it from other ops, or define your own with ab.ops.define_op'
    """
    if name in INSTEAD:
        return f"; {INSTEAD[name]}"
    if name in vars(np):
        return "; compose it from other ops, or define your own with ab.ops.define_op"
    near = nearest(name, public, likeness=0.75)
    return f"; did you mean ab.{near}?" if near else ""
