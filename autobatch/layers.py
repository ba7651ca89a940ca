"""Layers: modules that name, shape and draw their parameters as torch does, so that state dicts carry over.

A layer works on the value of one node, without a batch axis, inside a cell or outside.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from autobatch import ops
from autobatch.errors import ShapeError
from autobatch.module import Module, Parameter


class Linear(Module):
    """`weight @ x + bias`, from D = `n_in` numbers to `n_out`.

    Args:
        n_in: length of the last axis of x, at least 1.
        n_out: length of the last axis of the result, at least 1.
        rng: draws `weight` and then `bias`, evenly between ±1/sqrt(n_in).
        bias: whether there is a bias; without, the attribute `bias` is None.

    Attributes:
        weight: Parameter of shape (n_out, n_in).
        bias: Parameter of shape (n_out,), or None.

    Raises:
        ShapeError: a size is below 1.

    Source: torch.nn.Linear, whose names, shapes and range these are.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> layer = ab.Linear(3, 2, rng=np.random.default_rng(0))
    >>> layer.weight, layer.bias
    (Parameter(shape=(2, 3), dtype=float32), Parameter(shape=(2,), dtype=float32))
    >>> layer(np.ones(3, dtype=np.float32)).shape
    (2,)
    """

    def __init__(self, n_in: int, n_out: int, rng: np.random.Generator, bias: bool = True) -> None:
        if min(n_in, n_out) < 1:
            raise ShapeError(f"cannot make a Linear from {n_in} to {n_out} numbers; give sizes of at least 1.")
        bound = 1.0 / math.sqrt(n_in)
        self.weight = Parameter(rng.uniform(-bound, bound, (n_out, n_in)))
        self.bias = Parameter(rng.uniform(-bound, bound, n_out)) if bias else None

    def __call__(self, x: Any) -> Any:
        """Apply the layer to a value of shape (n_in,), giving shape (n_out,)."""
        return self.weight @ x if self.bias is None else ops.affine(self.weight, x, self.bias)
