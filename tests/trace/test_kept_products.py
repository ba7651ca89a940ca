"""Test products that nodes keep so that derivatives need not compute them again."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.graph.words import MOST_OUTPUTS
from autobatch.ir.flows import products_of
from autobatch.ir.typetable import NodeType


class Net(ab.Module):
    """A cell with two products, whose body depends on attributes."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.a, self.b = ab.Linear(3, 3, rng=rng), ab.Linear(3, 3, rng=rng)
        self.swapped = self.bent = False
        self.astype("float64")

    @ab.cell
    def step(self, x: Any, y: Any) -> Any:
        p, q = (self.b(y), self.a(x)) if self.swapped else (self.a(x), self.b(y))
        p, q = (q, p) if self.swapped else (p, q)
        return ab.tanh(p) * ab.sigmoid(q), ab.sin(p) if self.bent else p

    @ab.cell
    def out(self, h: Any) -> Any:
        return ab.sum(h * h * h)

    @ab.cell
    def deep(self, x: Any) -> Any:
        return ab.sum(ab.tanh(self.b(ab.tanh(self.a(x)))))

    def energy(self, points: Any) -> Any:
        state, total = points[0], 0.0
        for point in points[1:]:
            state, other = self.step(point, state)
            total = total + self.out(state) + self.out(other)
        return total

    def loss(self, points: Any) -> Any:
        energy, gradient = ab.value_and_grad(self.energy)(points)
        return ab.sum_n([energy, *map(self.out, gradient)])

    async def waiting(self, points: Any) -> Any:
        number = await ab.value(self.energy(points))
        energy, gradient = ab.value_and_grad(self.energy)(points)
        return ab.sum_n([number * energy, *map(self.out, gradient)])

    def curvature(self, points: Any) -> Any:
        total = lambda points: self.energy(points) + ab.sum_n([self.deep(x) for x in points])  # noqa: E731
        return ab.sum_n([self.out(x) for x in ab.hvp(total, (points,), (points,))[1][0]])


@pytest.fixture
def clouds() -> list[Any]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal((n, 3)) for n in (3, 2, 5, 4)]


def n_products(node_type: NodeType) -> int:
    return len(products_of(node_type.program.vars, node_type.program.instructions))


def by_name(batched: Any) -> dict[str, NodeType]:
    return {node_type.name: node_type for node_type in batched.recorder.types.types}


def assert_right(batched: Any, instances: Any, points: Any, function: Any) -> None:
    """Compare losses with eager mode, and gradients with central differences along a direction."""
    model, eps = batched.recorder.module, 1e-6

    def eagerly() -> float:
        return float(np.mean([float(function(x)) for x in points]))

    value, grads = batched.value_and_grad(instances)
    assert np.isclose(value, eagerly(), rtol=1e-10)
    rng = np.random.default_rng(2)
    for name, parameter in model.parameters().items():
        along, before = rng.standard_normal(parameter.shape), parameter.data.copy()
        parameter.data = before + eps * along
        above = eagerly()
        parameter.data = before - eps * along
        slope = (above - eagerly()) / (2 * eps)
        parameter.data = before
        assert np.isclose(np.sum(along * np.asarray(grads[name])), slope, rtol=1e-5, atol=1e-7), name


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_gradients_read_the_products_of_their_cell(backend: str, clouds: list[Any]) -> None:
    model = Net()
    batched = ab.batched(model.loss, backend=backend)
    assert_right(batched, clouds, clouds, model.loss)
    types = by_name(batched)
    assert types["step"].program.n_kept == 2
    assert n_products(types["step"]) == n_products(types["gradient of step"]) == 2


def test_programs_without_derivatives_keep_nothing(clouds: list[Any]) -> None:
    batched = ab.batched(Net().energy, backend="reference")
    batched.value_and_grad(clouds)
    assert all(node_type.program.n_kept == 0 for node_type in batched.recorder.types.types)


def test_derivatives_of_derivatives_keep_products_too(clouds: list[Any]) -> None:
    model = Net()
    batched = ab.batched(model.curvature, module=model, backend="reference")
    assert_right(batched, clouds, clouds, model.curvature)
    types = by_name(batched)
    assert types["gradient of deep"].program.n_kept == 1
    assert n_products(types["tangent of gradient of deep"]) < 2 * n_products(types["gradient of deep"])


@pytest.mark.parametrize("change", ["swapped", "bent"])
def test_another_body_keeps_its_own_products(change: str, clouds: list[Any]) -> None:
    """The change renumbers the products, or makes a product an intermediate value."""
    model = Net()
    batched = ab.batched(model.loss, backend="reference")
    graphs = batched.record_all(clouds)
    assert_right(batched, graphs, clouds, model.loss)
    setattr(model, change, True)
    assert_right(batched, graphs, clouds, model.loss)
    setattr(model, change, False)
    assert_right(batched, graphs, clouds, model.loss)


def test_graphs_that_were_recorded_before_a_derivative_stay_valid(clouds: list[Any]) -> None:
    model = Net()
    function: Any = lambda points: (model.loss if len(points) > 3 else model.energy)(points)  # noqa: E731
    batched = ab.batched(function, module=model, backend="reference")
    short = [points for points in clouds if len(points) <= 3]
    graphs = batched.record_all(short)
    assert_right(batched, clouds, clouds, function)
    assert by_name(batched)["step"].program.n_kept == 2
    assert_right(batched, graphs, short, function)


def test_graphs_of_another_process_find_what_nodes_keep(clouds: list[Any]) -> None:
    model = Net()
    pickled = pickle.dumps(ab.batched(model.loss, backend="reference").record_all(clouds))
    there = Net()
    batched = ab.batched(there.loss, backend="reference")
    assert_right(batched, pickle.loads(pickled), clouds, there.loss)
    assert by_name(batched)["step"].program.n_kept == 2


def test_async_programs_compute_products_again(clouds: list[Any]) -> None:
    model = Net()
    batched = ab.batched(model.waiting, backend="reference")
    expected = [float(ab.eager(model.waiting, points)) for points in clouds]
    assert np.allclose(batched(clouds), expected, rtol=1e-10)
    assert all(node_type.program.n_kept == 0 for node_type in batched.recorder.types.types)


def test_more_products_than_outputs_are_computed_again() -> None:
    model = Net()

    @ab.cell
    def many(x: Any) -> Any:
        return tuple(ab.tanh(model.a(x) * k) for k in range(MOST_OUTPUTS - 4))

    def loss(x: Any) -> Any:
        (g,) = ab.grad(lambda x: ab.sum(ab.sum_n(list(many(x)))), wrt=lambda x: x)(x)
        return ab.sum(g * g)

    batched, points = ab.batched(loss, module=model, backend="reference"), np.ones((2, 3))
    assert np.allclose(batched([*points]), [float(loss(x)) for x in points], rtol=1e-10)
    assert by_name(batched)["many"].program.n_kept == 0
