"""Building blocks of random programs over any number of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import autobatch as ab

DIM = 2


class Weights(ab.Module):
    """The weights of the programs."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.W, self.v = ab.Parameter(rng.standard_normal((DIM, DIM))), ab.Parameter(rng.standard_normal(DIM))
        self.table = ab.Parameter(rng.standard_normal((5, DIM)))
        self.astype("float64")


@ab.cell
def attend(w: Weights, x: Any) -> Any:
    """Apply self-attention."""
    return ab.softmax((x @ w.W) @ x.T / 2.0) @ x


@ab.cell
def compare(w: Weights, x: Any) -> Any:
    """Compare each row with all rows."""
    return x + ab.mean(ab.tanh(x[:, None] * w.v - x), axis=1)


Step = Callable[[Weights, Any], Any]
STEPS: tuple[Step, ...] = (  # each takes one row or more, and returns at least as many
    lambda w, x: ab.tanh(x @ w.W),
    lambda w, x: x * w.v + ab.sum(x, axis=1, keepdims=True),
    lambda w, x: x[::-1] * x,
    lambda w, x: ab.concat([x[1:], x[:1]], axis=0),
    lambda w, x: ab.concat([x, x[::2]], axis=0),
    lambda w, x: ab.concat([x[:, 1:], x[:, :1]], axis=1),
    lambda w, x: x - ab.max(x, axis=0),
    lambda w, x: x * ab.softmax(x @ w.v, axis=0)[:, None],
    lambda w, x: ab.where(x > 0.0, x, 0.5 * x) + x[0] * x[-1],
    lambda w, x: x + ab.attend(w.v, x, ab.tanh(x)),
    lambda w, x: ab.layer_norm(x, w.v, w.v, eps=0.1),
    lambda w, x: ab.concat([x[-1][None] * w.v, x], axis=0)[:-1],
    attend,
    compare,
    lambda w, x: x * ab.cross_entropy(x @ w.v, 0),
    lambda w, x: x * ab.lookup(x, ab.argmax(x @ w.v)),
    lambda w, x: x - ab.tanh(x[ab.top_k(x[:, 0], 1)[1]][0]),
)
ENDS: tuple[Step, ...] = (
    lambda w, x: ab.sum(x * x),
    lambda w, x: ab.sum(ab.max(x, axis=0)),
    lambda w, x: ab.logsumexp(x),
    lambda w, x: ab.sum(ab.mean(x, axis=0) * x[0]),
    lambda w, x: ab.cross_entropy(x @ w.v, ab.argmax(x[:, 1])),
)
