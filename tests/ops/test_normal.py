"""Test normal noise: equal eagerly and batched, correctly distributed, and fixed while gradients are checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import GraphError
from helpers.fakes.counting_backend import Counting
from helpers.runs.ways import each

DIM = 4


class Sampler(ab.Module):
    """Draws a state around another one, as in a variational autoencoder (Kingma, Welling 2014)."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.mean, self.scale = (ab.Linear(DIM, DIM, rng=rng) for _ in range(2))
        self.astype("float64")

    @ab.cell
    def sample(self, h: Any) -> Any:
        return self.mean(h) + ab.exp(0.1 * self.scale(h)) * ab.normal(DIM)

    @ab.cell
    def twice(self, h: Any) -> Any:
        return h + ab.normal((DIM,)) - ab.normal(DIM) * ab.normal()

    def loss(self, inputs: list[Any]) -> Any:
        state: Any = np.zeros(DIM)
        for x in inputs:
            state = self.twice(self.sample(ab.tanh(state + x)))
        return ab.sum(ab.tanh(state))


class Dropping(ab.Module):
    """Noise after dropout, in the same cell and in the next."""

    def __init__(self) -> None:
        self.weight = ab.Parameter(np.ones(2))
        self.drop = ab.Dropout(0.5)

    @ab.cell
    def step(self, x: Any) -> Any:
        return self.drop(x) * self.weight + ab.normal(2)

    def loss(self, x: Any) -> Any:
        return self.step(ab.tanh(self.step(x)))


def draw(seed: int = 0) -> list[list[Any]]:
    rng = np.random.default_rng(seed)
    return [list(rng.standard_normal((int(n), DIM))) for n in rng.integers(0, 6, 8)]


def eager(function: Callable[[Any], Any], instances: list[Any], seed: int, step: int) -> list[Any]:
    results = []
    for key, instance in enumerate(instances):
        with ab.randomness(seed=seed, step=step, key=key):
            results.append(function(instance))
    return results


@each("backend", ["reference", "cpu", Counting()])
def test_eager_and_batched_draw_the_same(backend: Any) -> None:
    model, instances = Sampler(), draw()
    loss = ab.batched(model.loss, seed=7, backend=backend)
    loss.step = 3
    np.testing.assert_allclose(loss(instances), eager(model.loss, instances, 7, 3), rtol=1e-12)
    loss.step = 4
    assert not np.allclose(loss(instances[1:]), eager(model.loss, instances, 7, 3)[1:])


def test_gradients_are_those_of_fixed_noise() -> None:
    model = Sampler()
    ab.testing.check_grads(ab.batched(model.loss), draw(), model, np.random.default_rng(1))


def test_noise_is_drawn_in_evaluation_too() -> None:
    model, instances = Sampler().eval(), draw()
    np.testing.assert_allclose(ab.batched(model.loss)(instances), eager(model.loss, instances, 0, 0), rtol=1e-12)


def test_in_evaluation_dropout_counts_as_in_training() -> None:
    model = Dropping().eval()
    instances = [np.zeros(2), np.ones(2)]
    found = ab.batched(model.loss, seed=5)(instances)
    for key, x in enumerate(instances):
        with ab.randomness(seed=5, key=key):
            np.testing.assert_allclose(found[key], model.loss(x), rtol=1e-6)


def test_the_distribution_is_normal_and_independent() -> None:
    draws = ab.cell(lambda x: ab.normal((50, 2)) + 0.0 * x)
    numbers = np.concatenate([ab.batched(draws)([np.zeros(())] * 400)])
    assert numbers.shape == (400, 50, 2)
    flat = numbers.reshape(-1, 2)
    np.testing.assert_allclose(flat.mean(axis=0), 0.0, atol=0.03)
    np.testing.assert_allclose(np.cov(flat.T), np.eye(2), atol=0.03)
    np.testing.assert_allclose((flat**4).mean(), 3.0, atol=0.15)
    np.testing.assert_allclose(
        [(np.abs(flat) < z).mean() for z in (0.5, 1.0, 2.0)], (0.3829, 0.6827, 0.9545), atol=0.01
    )
    assert np.abs(np.corrcoef(numbers[:, 0, 0], numbers[:, 1, 0])[0, 1]) < 0.2


def test_outside_cells_there_is_no_node_to_draw_for() -> None:
    with pytest.raises(GraphError, match="outside cells"):
        ab.batched(lambda x: x + ab.normal(2))([np.zeros(2)])
