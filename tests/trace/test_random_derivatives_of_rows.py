"""Test random programs with derivatives by ragged rows: batched equals eager, gradients equal differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from helpers.programs.random_rows import DIM, ENDS, STEPS, Step, Weights

SMOOTH = [STEPS[k] for k in (0, 1, 2, 3, 4, 5, 7, 9, 11, 12, 13, 14)]
N_ROWS = (1, 3, 2, 7)


@dataclass(frozen=True)
class Program:
    """A cell with ragged arguments, steps on its rows between cells, and a last cell."""

    weights: Weights
    cell: Any
    steps: list[Step]
    last: Any

    def energy(self, words: Any, features: Any) -> Any:
        return self.end(self.cell(self.weights, words, features))

    def end(self, x: Any) -> Any:
        """Apply the steps and the last cell to the rows of the first cell."""
        for step in self.steps:
            x = step(self.weights, x)
        return self.last(self.weights, x)


def by_array(program: Program, words: Any, features: Any) -> Any:
    """Differentiate by the rows of an array and by parameters."""
    weights = program.weights
    value, (rows, table, matrix) = ab.value_and_grad(
        program.energy, wrt=lambda words, features: (features, weights.table, weights.W)
    )(words, features)
    return value + sum(ab.sum(ab.tanh(row)) for row in rows) + ab.sum(ab.sin(table)) + ab.sum(matrix * weights.W)


def by_rows(program: Program, words: Any, features: Any) -> Any:
    """Differentiate by the rows of a cell; another cell reads them together with their gradient."""
    made = program.cell(program.weights, words, features)
    return program.last(program.weights, ab.tanh(ab.grad(program.end)(made)) + 0.5 * made)


def along(program: Program, words: Any, features: Any) -> Any:
    """Take a derivative along rows, and a Hessian-vector product."""
    made = program.cell(program.weights, words, features)
    value, tangent = ab.jvp(program.end, (made,), (made * program.weights.v,))
    _, products = ab.hvp(program.energy, (words, features), (features,), wrt=lambda words, features: features)
    return value * tangent + sum(ab.sum(ab.tanh(row)) for row in products[0])


def twice(program: Program, words: Any, features: Any) -> Any:
    """Differentiate the gradient by an array again, by the rows of a cell."""
    made = program.cell(program.weights, words, features)

    def inner(x: Any) -> Any:
        rows = ab.grad(lambda features: program.energy(words, features) * program.last(program.weights, x))(features)
        return sum(ab.sum(ab.sin(row)) for row in rows)

    return program.last(program.weights, ab.tanh(ab.grad(inner)(made)))


USES: tuple[Callable[[Program, Any, Any], Any], ...] = (by_array, by_rows, along, twice)


def total_at(weights: Weights, along: dict[str, Any], run: Any, items: list[Any], step: float) -> float:
    """Sum the losses at parameters moved by `step` along a direction."""
    parameters = weights.parameters()
    start = {name: p.data.copy() for name, p in parameters.items()}
    try:
        for name, p in parameters.items():
            p.data = start[name] + step * along[name]
        return float(run(items).sum())
    finally:
        for name, p in parameters.items():
            p.data = start[name]


def check_slope(at: Callable[[float], float], found: Any) -> None:
    """Compare a slope with differences, extrapolated twice (Richardson) because the losses bend strongly."""
    first, second, third = ((at(h) - at(-h)) / (2 * h) for h in (1e-5, 5e-6, 2.5e-6))
    once = (4 * second - first) / 3, (4 * third - second) / 3
    slope = (16 * once[1] - once[0]) / 15
    assert abs(found - slope) <= 1e-6 * (1.0 + abs(slope) + abs(at(0.0)) + abs(first)), (found, slope)


@pytest.mark.cases(2, 40)
@pytest.mark.usefixtures("_checked")
@pytest.mark.parametrize("seed", range(120))
def test_random_derivatives_of_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = Weights()
    steps = [SMOOTH[k] for k in rng.integers(len(SMOOTH), size=4)]
    end, n_inside, inner = ENDS[(0, 2, 3)[rng.integers(3)]], int(rng.integers(0, 5)), SMOOTH[rng.integers(len(SMOOTH))]
    asks = bool(rng.random() < 0.5)

    def inside(weights: Weights, words: Any, features: Any) -> Any:
        x = ab.lookup(weights.table, words) + features
        for step in steps[:n_inside]:
            x = step(weights, x)
        if asks:
            value, (g, w) = ab.value_and_grad(
                lambda y: ab.sum(ab.tanh(inner(weights, y))), wrt=lambda y: (y, weights.W)
            )(x)
            x = x + ab.tanh(g) * ab.sum(w) + 0.1 * value
        return ab.tanh(x)

    cell = ab.cell(ragged=("words", "features"))(inside)
    last = ab.cell(lambda weights, x: end(weights, x))
    program, use = Program(weights, cell, steps[n_inside:], last), USES[seed % len(USES)]
    items = [(rng.integers(0, 5, n), rng.standard_normal((n, DIM))) for n in N_ROWS]

    def loss(item: Any) -> Any:
        return use(program, *item)

    for make in (lambda: Reference(poison=True), lambda: Cpu(poison=True)):
        run = ab.batched(loss, module=weights, backend=make(), policy=("agenda", "depth", "score")[seed % 3])
        ab.testing.check_batched(loss, run, items, 1e-9)
        _, grads, inputs = run.value_and_grad(items, reduce="sum", inputs=True)
        along = {name: rng.standard_normal(p.shape) for name, p in weights.parameters().items()}
        found = sum(np.sum(np.array(grads[name]) * v) for name, v in along.items())
        check_slope(partial(total_at, weights, along, run, items), found)
        for (words, features), (_, gradient) in zip(items, inputs, strict=True):
            direction = rng.standard_normal(features.shape)

            def moved(step: float, item: Any = (words, features, direction)) -> float:
                return float(loss((item[0], item[1] + step * item[2])))

            check_slope(moved, np.sum(gradient * direction))
