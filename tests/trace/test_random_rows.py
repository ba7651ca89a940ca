"""Test random programs over ragged rows, in one cell and between cells: batched equals eager, gradients included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from helpers.programs.random_rows import DIM, ENDS, STEPS, Weights
from helpers.runs.ways import each

N_SEEDS = 12


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
    for make in (lambda: Reference(poison=True), lambda: Cpu(poison=True)):
        found = ab.batched(loss, module=weights, backend=make())
        ab.testing.check_batched(loss, found, items, 1e-10)
        ab.testing.check_grads(found, items, weights, np.random.default_rng(seed))
