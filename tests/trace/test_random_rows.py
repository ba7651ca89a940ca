"""Random programs over rows of any number, in one cell and between cells: batched is eager, and so are gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from helpers.runs.ways import each

DIM, N_SEEDS = 2, 12


class Weights(ab.Module):
    """What the programs multiply by."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.W, self.v = ab.Parameter(rng.standard_normal((DIM, DIM))), ab.Parameter(rng.standard_normal(DIM))
        self.table = ab.Parameter(rng.standard_normal((5, DIM)))
        self.astype("float64")


Step = Callable[[Weights, Any], Any]
STEPS: tuple[Step, ...] = (  # all of them take one row or more, and give as many, or more
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
)
ENDS: tuple[Step, ...] = (
    lambda w, x: ab.sum(x * x),
    lambda w, x: ab.sum(ab.max(x, axis=0)),
    lambda w, x: ab.logsumexp(x),
    lambda w, x: ab.sum(ab.mean(x, axis=0) * x[0]),
)


@pytest.mark.slow
@pytest.mark.usefixtures("_checked")
@each("seed", range(N_SEEDS))
def test_random_programs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = Weights()
    steps = [STEPS[k] for k in rng.integers(len(STEPS), size=5)]
    end, n_inside = ENDS[rng.integers(len(ENDS))], int(rng.integers(0, 6))

    def inside(weights: Weights, words: Any, features: Any) -> Any:
        x = ab.lookup(weights.table, words) + features
        for step in steps[:n_inside]:
            x = step(weights, x)
        return x

    cell = ab.cell(ragged=("words", "features"))(inside)
    last = ab.cell(lambda weights, x: end(weights, x))

    def loss(item: Any) -> Any:
        x = cell(weights, *item)
        for step in steps[n_inside:]:
            x = step(weights, x)
        return last(weights, x)

    items = [(rng.integers(0, 5, n), rng.standard_normal((n, DIM))) for n in (1, 3, 2, 7)]
    for make in (lambda: Reference(poison=True), lambda: Cpu(poison=True, jitted=False)):
        found = ab.batched(loss, module=weights, backend=make())
        ab.testing.check_batched(loss, found, items, 1e-10)
        ab.testing.check_grads(found, items, weights, np.random.default_rng(seed))
