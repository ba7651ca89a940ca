"""Small first programs: a perceptron, and variants that a new user would try."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import autobatch as ab
from helpers.zoo.case import Case, Rng, Weights, array, linear

DIM, HIDDEN, CLASSES = 4, 6, 3


class Perceptron(ab.Module):
    """One hidden layer and a classifier."""

    def __init__(self, rng: Rng) -> None:
        self.hidden = ab.Linear(DIM, HIDDEN, rng=rng)
        self.output = ab.Linear(HIDDEN, CLASSES, rng=rng)

    @ab.cell
    def loss(self, instance: Any) -> Any:
        x, label = instance
        return ab.cross_entropy(self.output(ab.relu(self.hidden(x))), label)


def perceptron(w: Weights, instance: Any) -> Tensor:
    x, label = instance
    return F.cross_entropy(linear(w, "output", linear(w, "hidden", torch.tensor(x)).relu()), torch.tensor(label))


class Outside(ab.Module):
    """No cell at all: ops outside cells are nodes of their own."""

    def __init__(self, rng: Rng) -> None:
        self.W, self.b, self.v = array(rng, HIDDEN, DIM), array(rng, HIDDEN), array(rng, HIDDEN)

    def loss(self, xs: Any) -> Any:
        total = 0.0
        for x in xs:
            total = total + ab.sum(self.v * ab.tanh(self.W @ x + self.b))
        return total / len(xs)


class Highway(ab.Module):
    """Layers with gated shortcuts (Srivastava, Greff, Schmidhuber 2015)."""

    def __init__(self, rng: Rng) -> None:
        self.layers = [(ab.Linear(DIM, DIM, rng=rng), ab.Linear(DIM, DIM, rng=rng)) for _ in range(3)]
        self.output = ab.Linear(DIM, CLASSES, rng=rng)

    def loss(self, instance: Any) -> Any:
        x, depth, label = instance
        for transform, gate in self.layers[:depth]:
            x = self.layer(x, transform, gate)
        return ab.cross_entropy(self.output(x), label)

    @ab.cell
    def layer(self, x: Any, transform: Any, gate: Any) -> Any:
        t = ab.sigmoid(gate(x))
        return t * ab.relu(transform(x)) + (1.0 - t) * x


def highway(w: Weights, instance: Any) -> Tensor:
    x, depth, label = instance
    x = torch.tensor(x)
    for i in range(depth):
        t = torch.sigmoid(linear(w, f"layers.{i}.1", x))
        x = torch.lerp(x, linear(w, f"layers.{i}.0", x).relu(), t)
    return F.cross_entropy(linear(w, "output", x), torch.tensor(label))


class LeastSquares(ab.Module):
    """A line fitted to points with a matrix product: the mean square of X @ w + b - y."""

    def __init__(self, rng: Rng) -> None:
        self.w, self.b = array(rng, 2), ab.Parameter(0.1)

    @ab.cell
    def loss(self, points: Any) -> Any:
        X, y = points
        error = X @ self.w + self.b - y
        return ab.mean(error * error)


def draw_labelled(rng: Rng) -> Any:
    return rng.standard_normal(DIM), int(rng.integers(CLASSES))


def draw_vectors(rng: Rng) -> Any:
    return list(rng.standard_normal((rng.integers(1, 5), DIM)))


def draw_vector(rng: Rng) -> Any:
    return rng.standard_normal(DIM)


def draw_points(rng: Rng) -> Any:
    x = rng.standard_normal((5, 2))
    return x, x @ [1.0, -2.0] + 0.5


def draw_deep(rng: Rng) -> Any:
    return rng.standard_normal(DIM), int(rng.integers(1, 4)), int(rng.integers(CLASSES))


def outside(w: Weights, xs: Any) -> Tensor:
    return (torch.tanh(F.linear(torch.tensor(np.array(xs)), w["W"], w["b"])) @ w["v"]).mean()


CASES = [
    Case("perceptron", Perceptron, draw_labelled, perceptron),
    Case("no cells", Outside, draw_vectors, outside),
    Case("highway network", Highway, draw_deep, highway),
    Case(
        "least squares",
        LeastSquares,
        draw_points,
        lambda w, p: F.mse_loss(torch.tensor(p[0]) @ w["w"] + w["b"], torch.tensor(p[1])),
    ),
]
