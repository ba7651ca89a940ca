"""Test that outputs without influence on a loss get no gradient, even where it would not be finite (0 * inf)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from helpers.runs.ways import each

BACKENDS = ["reference", "cpu"]
DIM = 3
SINGULAR: dict[str, Callable[[Any], Any]] = {
    "log": lambda h: ab.log(ab.relu(h)),
    "sqrt": lambda h: ab.sqrt(ab.relu(h)),
    "div": lambda h: 1.0 / ab.relu(h),
    "pow": lambda h: ab.relu(h) ** 0.5,
    "pow of -1": lambda h: ab.relu(h) ** -1.0,
    "exp": lambda h: ab.exp(ab.exp(1e3 * h * h)),
}


class Beside(ab.Module):
    """A cell that returns a sum of squares and a singular function of the same state."""

    def __init__(self, singular: Callable[[Any], Any], depth: int = 1) -> None:
        rng = np.random.default_rng(0)
        self.W = ab.Parameter(rng.standard_normal((DIM, DIM)))
        self.V = ab.Parameter(rng.standard_normal((DIM, DIM)))
        self.singular, self.depth = singular, depth

    @ab.cell
    def both(self, x: Any) -> Any:
        h = self.W @ x
        return ab.sum(h * h), ab.sum(self.singular(self.V @ h)), h

    @ab.cell
    def through(self, value: Any, unused: Any) -> Any:
        """Pass an unused value through another cell, which is not singular."""
        return value * 2.0, ab.tanh(unused)

    def used(self, x: Any) -> Any:
        """Return the first output alone as the loss."""
        return self.both(x)[0]

    def passed(self, x: Any) -> Any:
        value, unused, _ = self.both(x)
        return self.through(value, unused)[0]

    def chained(self, x: Any) -> Any:
        """Chain the cell; each node reads the previous state."""
        total, h = 0.0, x
        for _ in range(3):
            value, _, h = self.both(h)
            total = total + value
        return total

    def with_aux(self, x: Any) -> Any:
        value, unused, _ = self.both(x)
        return value, unused

    def mixed(self, instance: tuple[Any, bool]) -> Any:
        """Use both outputs, or only the first."""
        x, uses_both = instance
        value, other, _ = self.both(x)
        return value + other if uses_both else value

    def alone(self, x: Any) -> Any:
        """Hold an unused value in the function itself, where each op is a node."""
        value, unused, _ = self.both(x)
        logged = ab.log(unused * 0.0)
        return self.through(value, logged)[0]


def gradients_by_hand(model: Beside, xs: list[Any], chain: int = 1) -> Any:
    """Return the gradient for W of the mean over `xs` of the sum over k of |W^k x|^2."""
    w, total = model.W.data, np.zeros((DIM, DIM))
    for x in xs:
        states = [x]
        for _ in range(chain):
            states.append(w @ states[-1])
        g = np.zeros(DIM)
        for before, h in zip(states[-2::-1], states[:0:-1], strict=True):
            g = g + 2.0 * h
            total += np.outer(g, before)
            g = w.T @ g
    return total / len(xs)


def batched(function: Any, backend: str, **options: Any) -> Any:
    return ab.batched(function, backend=Cpu() if backend == "cpu" else backend, **options)


def draw(n: int, seed: int = 1) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(DIM) for _ in range(n - 1)] + [np.zeros(DIM)]


@pytest.mark.cases(1)
@pytest.mark.parametrize("backend", BACKENDS)
@each("n", [1, 64])
@each("name", SINGULAR)
@each("use", ["used", "passed", "chained", "with_aux", "alone"])
def test_what_is_not_used_has_no_gradient(use: str, name: str, n: int, backend: str) -> None:
    model = Beside(SINGULAR[name]).astype("float64")
    xs = draw(n)
    loss = batched(getattr(model, use), backend)
    _, grads = loss.value_and_grad(xs, has_aux=use == "with_aux")
    wanted = gradients_by_hand(model, xs, chain=3 if use == "chained" else 1) * (2 if use in ("passed", "alone") else 1)
    np.testing.assert_allclose(grads["W"], wanted, rtol=1e-12, atol=1e-300)
    assert not grads["V"].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_nodes_that_use_all_outputs_have_all_gradients(backend: str) -> None:
    """Some nodes of a cell use the logarithm, of positive numbers, and others do not, with a logarithm of 0."""
    model = Beside(lambda h: ab.log(h * h)).astype("float64")
    xs = draw(20)
    uses = [bool(k % 3) for k in range(19)] + [False]
    _, grads = batched(model.mixed, backend).value_and_grad(list(zip(xs, uses, strict=True)), reduce="sum")
    one_by_one = [batched(model.mixed, backend).value_and_grad([pair])[1] for pair in zip(xs, uses, strict=True)]
    for name in ("W", "V"):
        assert np.isfinite(grads[name]).all()
        np.testing.assert_allclose(grads[name], sum(g[name] for g in one_by_one), rtol=1e-10)
    assert grads["V"].any()


class Logged(ab.Module):
    """A cell with one output, whose weights get a non-finite gradient from rows of zeros."""

    def __init__(self) -> None:
        self.W = ab.Parameter(np.abs(np.random.default_rng(0).standard_normal((DIM, DIM))))

    @ab.cell
    def logged(self, x: Any) -> Any:
        return ab.sum(ab.log(self.W @ x))

    def loss(self, x: Any) -> Any:
        """Return the loss, and the same cell on zeros as an additional result."""
        return self.logged(x), self.logged(x * 0.0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_a_batch_that_no_loss_depends_on_leave_weights_alone(backend: str) -> None:
    """Half of a batch's rows are active, and the weights get only their gradients."""
    model = Logged().astype("float64")
    xs = [np.abs(x) + 0.1 for x in draw(8)]
    loss = batched(model.loss, backend)
    (_, aux), grads = loss.value_and_grad(xs, reduce="sum", has_aux=True)
    assert np.isneginf(aux).all()
    wanted = sum(np.outer(1.0 / (model.W.data @ x), x) for x in xs)
    np.testing.assert_allclose(grads["W"], wanted, rtol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_plans_are_found_again_and_parts_are_right(backend: str) -> None:
    model = Beside(SINGULAR["log"]).astype("float64")
    xs = draw(16)
    loss = batched(model.used, backend)
    graphs = loss.record_all(xs)
    _, grads = loss.value_and_grad(graphs)
    first = {name: g.copy() for name, g in grads.items()}
    loss.value_and_grad(graphs)
    assert loss.last.plan_hit
    whole = loss.last.planned_bytes
    in_parts = batched(model.used, backend, max_bytes=whole // 2)
    _, grads = in_parts.value_and_grad(in_parts.record_all(xs))
    assert in_parts.last.parts > 1
    for name, g in grads.items():
        np.testing.assert_allclose(g, first[name], rtol=1e-12)
        assert np.isfinite(g).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_loss_may_be_any_of_what_is_returned(backend: str) -> None:
    """One graph with two structures: they must not share a plan."""
    model = Beside(SINGULAR["log"]).astype("float64")
    loss = batched(model.with_aux, backend)
    xs = [np.ones(DIM), np.zeros(DIM)]
    (_, aux), grads = loss.value_and_grad(loss.record_all(xs), has_aux=True)
    assert np.isfinite(grads["W"]).all()
    assert np.isneginf(aux[1])


class Switched(ab.Module):
    """A cell whose body reads a switch of its module."""

    def __init__(self) -> None:
        self.W = ab.Parameter(np.random.default_rng(0).standard_normal((DIM, DIM)))
        self.squares = True

    @ab.cell
    def both(self, x: Any) -> Any:
        h = self.W @ x
        return ab.sum(h * h if self.squares else 3.0 * h), ab.sum(ab.log(ab.relu(h)))

    def loss(self, x: Any) -> Any:
        return self.both(x)[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_cells_that_are_traced_again_stop_at_the_same_outputs(backend: str) -> None:
    model = Switched().astype("float64")
    loss = batched(model.loss, backend)
    xs = draw(6)
    graphs = loss.record_all(xs)
    for squares in (True, False, True, False):
        model.squares = squares
        slopes = [np.outer(2.0 * (model.W.data @ x) if squares else np.full(DIM, 3.0), x) for x in xs]
        for instances in (graphs, xs, graphs):
            _, grads = loss.value_and_grad(instances, reduce="sum")
            np.testing.assert_allclose(grads["W"], sum(slopes), rtol=1e-12)
    n_types = len(loss.merged([]).types)
    assert loss.last.plan_hit
    loss.value_and_grad(xs)
    assert len(loss.merged([]).types) == n_types == 3


def test_inference_and_cells_without_singular_ops_have_no_other_types() -> None:
    model = Beside(ab.tanh)
    loss = ab.batched(model.used, backend="reference")
    loss.value_and_grad(draw(4))
    n_types = len(loss.merged([]).types)
    singular = Beside(SINGULAR["log"])
    other = ab.batched(singular.used, backend="reference")
    with np.errstate(all="ignore"):
        other(draw(4))
    assert len(other.merged([]).types) == n_types
    other.value_and_grad(draw(4))
    assert other.merged([]).types.names == ["constant", "both#1", "both#2"]
    assert other.last is not None
    assert loss.last is not None
    assert other.last.batches == loss.last.batches
