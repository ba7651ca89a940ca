"""Test small first programs that were once wrong or refused: eagerly, batched, alone and together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from autobatch.system.processor import has_avx512

Body = Callable[[Any, Any, int], Any]
N = 3

BODIES: dict[str, Body] = {
    # Gradients that are equal for all elements or rows, and reach a product.
    "sum of a layer": lambda m, x, i: ab.sum(m.layer(x)),
    "mean of a layer": lambda m, x, i: ab.mean(m.layer(x)),
    "minus the sum of a product": lambda m, x, i: -ab.sum(m.W @ x),
    "sum of two products": lambda m, x, i: ab.sum(m.W @ x + m.U @ x),
    "a product of ones": lambda m, x, i: ab.sum(m.W @ (x * 0.0 + 1.0)),
    "a product of one number": lambda m, x, i: ab.sum(m.W @ (ab.sum(x) + np.zeros(N))),
    "a product of a constant": lambda m, x, i: ab.sum(m.W @ np.ones(N) * x[0]),
    # Reductions of products, with parameters broadcast along each axis.
    "a column": lambda m, x, i: ab.sum((m.S @ x) * m.column),
    "a row": lambda m, x, i: ab.sum(ab.tanh(m.S @ x) * m.row),
    "a column and a row": lambda m, x, i: ab.sum(ab.tanh(m.S @ x) * m.column * m.row + m.column),
    "the largest": lambda m, x, i: ab.max((m.S @ x) * m.column),
    # Views of parameters that libraries refuse.
    "rows backwards": lambda m, x, i: ab.sum(ab.tanh(m.W[::-1] @ x)),
    "every other column": lambda m, x, i: ab.sum(ab.tanh(m.wide[:, ::2] @ x)),
    "every other row": lambda m, x, i: ab.sum(ab.tanh(m.tall[::2] @ x)),
    "columns backwards": lambda m, x, i: ab.sum(ab.tanh(x @ m.S[:, ::-1])),
    "a transpose backwards": lambda m, x, i: ab.sum(ab.tanh(ab.transpose(m.W)[::-1] @ (m.W @ x))),
    # Two products of one vector, of which one passes no gradient on.
    "half a gradient": lambda m, x, i: ab.sum(
        ab.where(m.W @ -x + m.W @ (x * 1.3) > -9.0, ab.tanh(m.U @ (x * 1.3) + m.E @ x), 0.0)
    ),
    # A table that is also multiplied, next to another matrix.
    "a tied table": lambda m, x, i: ab.cross_entropy(m.E @ ab.tanh(x + ab.lookup(m.E, i)) + m.U @ x, i),
    "a tied vector": lambda m, x, i: ab.lookup(m.bias, i) * ab.sum(ab.tanh(m.W @ x + m.U @ x + m.bias)),
}  # fmt: skip


class Model(ab.Module):
    """A cell with one of these bodies."""

    def __init__(self, body: Body) -> None:
        rng = np.random.default_rng(0)
        self.body = body
        self.layer = ab.Linear(N, 4, rng=rng)
        self.W, self.U, self.E = (ab.Parameter(rng.standard_normal((4, N))) for _ in range(3))
        self.S = ab.Parameter(rng.standard_normal((N, N)))
        self.wide, self.tall = (ab.Parameter(rng.standard_normal(shape)) for shape in ((4, 2 * N), (7, N)))
        self.column, self.row = (ab.Parameter(rng.standard_normal(shape)) for shape in ((2, 1), (1, N)))
        self.bias = ab.Parameter(rng.standard_normal(4))
        self.astype("float64")

    @ab.cell
    def cell(self, x: Any, i: int) -> Any:
        return self.body(self, x, i)

    @ab.cell
    def before(self, x: Any) -> Any:
        return ab.tanh(x)

    def loss(self, instance: Any) -> Any:
        x, i = instance
        return self.cell(self.before(x), i)


def draw(n: int) -> list[Any]:
    rng = np.random.default_rng(1)
    return [(rng.standard_normal(N), int(rng.integers(4))) for _ in range(n)]


def compare(body: Body, backend: Any, n: int) -> None:
    """Compare batched with eager losses, and gradients with the reference backend and central differences."""
    model, instances = Model(body), draw(n)
    ours, theirs = ab.batched(model.loss, backend=backend), ab.batched(model.loss, backend=Reference(poison=True))
    np.testing.assert_allclose(ours(instances), [model.loss(x) for x in instances], rtol=1e-10)
    value, found = ours.value_and_grad(instances)
    other, expected = theirs.value_and_grad(instances)
    np.testing.assert_allclose(value, other, rtol=1e-10)
    for name in expected:
        np.testing.assert_allclose(np.asarray(found[name]), np.asarray(expected[name]), rtol=1e-10, atol=1e-13)
    if n < 64:
        ab.testing.check_grads(theirs, instances, model, np.random.default_rng(2))


@pytest.mark.cases(15)
@pytest.mark.usefixtures("_checked")
@pytest.mark.parametrize("n", [1, 64])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_programs(body: Body, n: int) -> None:
    compare(body, Cpu(poison=True), n)


VIEWS = ("rows backwards", "every other column", "every other row", "columns backwards", "a tied table")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "provider"),
    [
        ("bf16", None),
        pytest.param("float32", "packed", marks=pytest.mark.skipif(not has_avx512(), reason="needs AVX-512")),
    ],
)
@pytest.mark.parametrize("name", VIEWS)
def test_views_of_weights_are_packed(name: str, precision: str, provider: str | None) -> None:
    model, instances = Model(BODIES[name]).astype("float32"), draw(9)
    ours = ab.batched(model.loss, backend=Cpu(provider=provider), precision=precision)
    theirs = ab.batched(model.loss, backend=Reference(), precision=precision)
    value, found = ours.value_and_grad(instances)
    other, expected = theirs.value_and_grad(instances)
    np.testing.assert_allclose(value, other, rtol=1e-4)
    for part in expected:
        np.testing.assert_allclose(np.asarray(found[part]), np.asarray(expected[part]), atol=2e-3, err_msg=part)


COMPILED = ("sum of a layer", "a column", "a tied table")


@pytest.mark.cases(0, 8)
@pytest.mark.parametrize("name", [*COMPILED, *(name for name in BODIES if name not in COMPILED)])
def test_compiled(name: str) -> None:
    compare(BODIES[name], Cpu(poison=True), 64)
