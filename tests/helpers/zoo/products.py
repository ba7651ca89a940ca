"""Products with sums, constants, broadcasts and strided views, as in a new user's first experiments."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

import autobatch as ab
from helpers.zoo.case import Case, Rng, Weights, array, linear
from helpers.zoo.first import DIM, HIDDEN, draw_vector, draw_vectors


class SumOfLayer(ab.Module):
    """The loss is the sum of a layer's outputs."""

    def __init__(self, rng: Rng) -> None:
        self.hidden = ab.Linear(DIM, DIM, rng=rng)
        self.lin = ab.Linear(DIM, HIDDEN, rng=rng)

    def loss(self, xs: Any) -> Any:
        h = np.zeros(DIM)
        for x in xs:
            h = self.step(h, x)
        return self.total(h)

    @ab.cell
    def step(self, h: Any, x: Any) -> Any:
        return ab.tanh(self.hidden(h) + x)

    @ab.cell
    def total(self, h: Any) -> Any:
        return ab.sum(self.lin(h))


class MeanOfLayer(SumOfLayer):
    """The loss is the mean of a layer's outputs."""

    @ab.cell
    def total(self, h: Any) -> Any:
        return ab.mean(self.lin(h))


class NegativeSum(SumOfLayer):
    """The loss is the negative sum of a product."""

    @ab.cell
    def total(self, h: Any) -> Any:
        return -ab.sum(self.lin.weight @ h)


def layer_after_steps(w: Weights, xs: Any) -> Tensor:
    h = torch.zeros(DIM, dtype=torch.float64)
    for x in xs:
        h = torch.tanh(linear(w, "hidden", h) + torch.from_numpy(x))
    return h


class ConstantInput(ab.Module):
    """A product with a constant vector that does not depend on x."""

    def __init__(self, rng: Rng) -> None:
        self.W = array(rng, HIDDEN, DIM)

    @ab.cell
    def loss(self, x: Any) -> Any:
        return ab.sum(self.W @ (x * 0.0 + 1.0))


class ReversedRows(ab.Module):
    """Strided views of a weight: reversed rows, every second column."""

    def __init__(self, rng: Rng) -> None:
        self.W = array(rng, DIM, 2 * DIM)

    @ab.cell
    def loss(self, x: Any) -> Any:
        h = ab.tanh(self.W[:, ::2] @ x)
        return ab.sum(ab.tanh(self.W[::-1] @ ab.concat((h, x))))


def reversed_rows(w: Weights, x: Any) -> Tensor:
    x = torch.tensor(x)
    h = torch.tanh(w["W"][:, ::2] @ x)
    return torch.tanh(w["W"].flip(0) @ torch.cat((h, x))).sum()


class ScaledColumns(ab.Module):
    """A product times a column, so that both are broadcast."""

    def __init__(self, rng: Rng) -> None:
        self.W, self.c = array(rng, 3, DIM), array(rng, 2, 1)

    @ab.cell
    def loss(self, x: Any) -> Any:
        return ab.sum((self.W @ x) * self.c)


CASES = [
    Case("sum of a layer", SumOfLayer, draw_vectors, lambda w, xs: linear(w, "lin", layer_after_steps(w, xs)).sum()),
    Case("mean of a layer", MeanOfLayer, draw_vectors, lambda w, xs: linear(w, "lin", layer_after_steps(w, xs)).mean()),
    Case("-sum(W @ h)", NegativeSum, draw_vectors, lambda w, xs: -(w["lin.weight"] @ layer_after_steps(w, xs)).sum()),
    Case("W @ ones", ConstantInput, draw_vector, lambda w, x: w["W"].sum()),
    Case("strided weights", ReversedRows, draw_vector, reversed_rows),
    Case(
        "scaled columns",
        ScaledColumns,
        draw_vector,
        lambda w, x: torch.outer(w["c"][:, 0], w["W"] @ torch.tensor(x)).sum(),
    ),
]
