"""Small programs that failed in `tools/fuzz.py`, by cause: on both backends, alone and in a batch of 64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.base import Backend
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from autobatch.memplan.planner import MemoryPlanner

BACKENDS: dict[str, Callable[[], Backend]] = {
    "reference": lambda: Reference(poison=True),
    "cpu": lambda: Cpu(poison=True),
}
WITHOUT = dict.fromkeys(("simplifies", "joins", "stacks", "sums", "cuts", "hoists", "fuses", "reuses"), False)
pytestmark = pytest.mark.usefixtures("_checked")
backends = pytest.mark.parametrize("backend", list(BACKENDS))


class Model(ab.Module):
    """Float64 parameters of several shapes."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.matrix = ab.Parameter(rng.standard_normal((4, 3)))
        self.table = ab.Parameter(rng.standard_normal((5, 4)))
        self.none = ab.Parameter(np.zeros(0))
        self.empty = ab.Parameter(np.zeros((0, 0, 5)))
        self.astype("float64")


def check(model: ab.Module, loss: Any, instances: list[Any], backend: str, name: str) -> None:
    """Compare losses with eager ones, and gradients with those of the reference backend without any passes."""
    plain = ab.batched(loss, backend=Reference(), rewrites=(), planner=MemoryPlanner(**WITHOUT, recomputes="nothing"))
    batched = ab.batched(loss, backend=BACKENDS[backend]())
    for batch in (instances[:1], [instances[k % len(instances)] for k in range(64)]):
        np.testing.assert_allclose(batched(batch), [loss(x) for x in batch], rtol=1e-12, atol=1e-12)
        expected, found = plain.value_and_grad(batch)[1], batched.value_and_grad(batch)[1]
        np.testing.assert_allclose(np.array(found[name]), np.array(expected[name]), rtol=1e-10, atol=1e-12)


@backends
def test_an_output_that_is_made_in_pieces_has_several_readers(backend: str) -> None:
    """Rows of several ids are several loops, and all of them are inputs of the second reader too."""

    class Rows(Model):
        @ab.cell
        def rows(self, ids: Any) -> Any:
            return ab.lookup(self.table, ids)

        @ab.cell
        def first(self, x: Any) -> Any:
            return ab.sum(x * x)

        @ab.cell
        def second(self, x: Any) -> Any:
            return ab.sum(ab.tanh(x))

        def loss(self, ids: Any) -> Any:
            rows = self.rows(ids)
            return self.first(rows) + self.second(rows)

    model = Rows()
    check(model, model.loss, [np.array([0, 2, 0]), np.array([4, 1, 1])], backend, "table")


@backends
def test_an_output_whose_pieces_are_made_before_and_after_a_product(backend: str) -> None:
    class Gates(Model):
        @ab.cell
        def gates(self, x: Any) -> Any:
            gates = ab.sigmoid(self.table[:4] @ x)
            left, right = ab.split(gates, 2)
            return gates, ab.tanh(self.matrix @ ab.concat((left * right, left[:1]))), left + right

        @ab.cell
        def first(self, x: Any, y: Any, z: Any) -> Any:
            return ab.sum(x * x) + ab.sum(y) + ab.sum(z * z)

        @ab.cell
        def second(self, x: Any, y: Any, z: Any) -> Any:
            return ab.sum(ab.tanh(x)) + ab.sum(y * y) - ab.sum(z)

        def loss(self, x: Any) -> Any:
            made = self.gates(x)
            return self.first(*made) + self.second(*made)

    model = Gates()
    rng = np.random.default_rng(1)
    check(model, model.loss, list(rng.standard_normal((5, 4))), backend, "table")


@backends
def test_sums_of_values_without_elements(backend: str) -> None:
    class Empty(Model):
        def loss(self, x: Any) -> Any:
            return ab.sum(ab.sum_n([self.empty, np.full((0, 0, 5), -0.5), self.empty])) + ab.sum(self.matrix * x)

    model = Empty()
    check(model, model.loss, [1.0, 2.0], backend, "matrix")


@backends
def test_sums_of_nothing(backend: str) -> None:
    class Nothing(Model):
        @ab.cell
        def nothing(self, x: Any) -> Any:
            return np.zeros(0), x

        def loss(self, x: Any) -> Any:
            nothing, x = self.nothing(x)
            return ab.sum(nothing) + ab.sum(self.matrix @ x) + ab.sum(self.matrix[:, :0] @ x[:0])

    model = Nothing()
    check(model, model.loss, [np.ones(3), np.arange(3.0)], backend, "matrix")


@backends
def test_the_largest_of_values_without_elements(backend: str) -> None:
    class Largest(Model):
        @ab.cell
        def largest(self, x: Any) -> Any:
            return ab.max_n([x, x, x])

        def loss(self, x: Any) -> Any:
            return ab.sum(self.largest(self.none))

    model = Largest()
    check(model, model.loss, [1.0, 2.0], backend, "matrix")


@backends
def test_products_of_nothing_beside_values_in_pieces(backend: str) -> None:
    """A loop over no elements is in no piece, but its result is still read."""

    class Nothing(Model):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.bias = ab.Parameter(np.zeros((2, 0))), ab.Parameter([0.5, -1.0])
            self.astype("float64")

        @ab.cell
        def step(self, x: Any, pair: Any) -> Any:
            left, right = pair
            found = ab.attend(self.none[..., ::2], right, left, scale=1.0, shape=(0,))
            summed = ab.sum_n([a * b for a, b in zip(right, right[::-1], strict=True)], shape=(0,))
            shifted = self.wide @ found + self.bias
            return [shifted, np.full((0, 0), 0.5), shifted, summed, np.full((0,), 0.5)]

        def loss(self, n: int) -> Any:
            lists = [np.zeros(0), self.none], [self.none, np.full(0, -0.5)]
            shifted, *_, summed, _ = self.step(self.bias, lists)
            return ab.sum(ab.tanh(shifted)) * n + ab.sum(summed)

    model = Nothing()
    check(model, model.loss, [1, 2], backend, "bias")
