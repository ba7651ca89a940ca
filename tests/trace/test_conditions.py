"""Test comparisons: bools eagerly, numbers when batched; programs mean the same in both modes or are refused."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.base import Backend
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from helpers.runs.ways import each

MASK = np.array([True, False, True])
ALIKE: dict[str, Callable[[Any, Any], Any]] = {
    "and": lambda a, b: a * b,
    "or": lambda a, b: ab.where(a, 1.0, b),
    "not": lambda a, b: 1.0 - a,
    "same": lambda a, b: a == b,
    "count": lambda a, b: sum([a, b]),
    "counted from a number": lambda a, b: 0 + a + b,
    "counted by an op": lambda a, b: ab.add(a, b),
    "less one": lambda a, b: a - 1.0,
    "parts": lambda a, b: ab.concat((a[:1], b[1:])) + 1.0,
    "share": lambda a, b: ab.mean(a) + ab.sum(b),
    "counted with a number": lambda a, b: a + 1.0 + b,
    "masked": lambda a, b: MASK * a * 2.0 + b,
}
REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "@": operator.matmul,
    "negative": lambda a, b: -a,
    "np.add": np.add,
    "parts": lambda a, b: a[1:] + b[1:],
    "products": lambda a, b: a * b + b,
    "bools": lambda a, b: a + True,
    "an array of bools": lambda a, b: MASK + a,
}


class Model(ab.Module):
    """A cell that combines two conditions on `W @ x`."""

    def __init__(self, combine: Callable[[Any, Any], Any]) -> None:
        self.W, self.combine = ab.Parameter(np.random.default_rng(0).standard_normal((3, 3))), combine
        self.astype("float64")

    @ab.cell
    def loss(self, x: Any) -> Any:
        h = self.W @ x
        return ab.sum(self.combine(h > 0.0, x <= h) * h)


def draw() -> list[Any]:
    return list(np.random.default_rng(1).standard_normal((64, 3)))


@each("backend", [Reference(poison=True), Cpu(poison=True)])
@each("combine", ALIKE.values())
def test_conditions_mean_the_same_batched(combine: Callable[[Any, Any], Any], backend: Backend) -> None:
    model, xs = Model(combine), draw()
    np.testing.assert_allclose(ab.batched(model.loss, backend=backend)(xs), [model.loss(x) for x in xs], atol=1e-12)


@each("combine", REFUSED.values())
def test_arithmetic_of_conditions_alone_is_refused(combine: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(ab.GraphError, match=r"in cell 'loss': . was applied to conditions, which are bools in eager"):
        ab.batched(Model(combine).loss)(draw())
