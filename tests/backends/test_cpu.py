"""Test the cpu backend against the reference backend: outputs and gradients of models and random programs.

Generated source runs here as plain Python, except for one model, because compiling a random cell takes about a second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.graph.rewrite import DEFAULT, PASSES
from autobatch.system.processor import has_avx512
from helpers.checkers.parity import TOLERANCES, compare, compare_gradients
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.twins.cases import CASES, Case

N_SEEDS = 20


@pytest.mark.cases(3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_models(case: Case) -> None:
    model, instances = case.draw(seed=3, n_instances=6, dim=5)
    cpu = compare(model.loss, instances)
    compare_gradients(model.loss, instances, cpu)
    compare(model.scores, instances)


@pytest.mark.cases(2, 25)
@pytest.mark.parametrize("seed", range(300))
def test_random_programs(seed: int) -> None:
    """Each runs in one of three ways; `tests/whole/test_fuzz.py` covers many more of both."""
    policy, rewrites = (("agenda", PASSES), ("depth", DEFAULT), ("agenda", ()))[seed % 3]
    rng = np.random.default_rng(seed)
    model = draw_model(rng, smooth=seed % 2 == 0)
    instances = draw_instances(rng, model, n=5)
    cpu = compare(model.everything, instances, policy=policy, rewrites=rewrites)
    compare_gradients(model.everything, instances, cpu, has_aux=True, policy=policy, rewrites=rewrites)


@pytest.mark.cases(1, 6)
@pytest.mark.parametrize(
    ("dtype", "provider"),
    [
        ("float32", None),
        pytest.param("float32", "packed", marks=pytest.mark.skipif(not has_avx512(), reason="needs AVX-512")),
        ("float64", None),
    ],
)
@pytest.mark.parametrize("case", [CASES[0], *(pytest.param(case, marks=pytest.mark.slow) for case in CASES[1:])])
def test_compiled_kernels(case: Case, dtype: str, provider: str | None) -> None:
    """Both dtypes, and also our own product."""
    model, instances = case.draw(seed=1, n_instances=6, dim=20)
    model.astype(dtype)
    cpu = Cpu(poison=True, provider=provider)
    compare_gradients(model.loss, instances, cpu, TOLERANCES[dtype])


@pytest.mark.cases(0, 8)
@pytest.mark.parametrize("seed", range(N_SEEDS))
def test_compiled_random_programs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = draw_model(rng, smooth=seed % 2 == 0)
    cpu = Cpu(poison=True)
    compare_gradients(model.everything, draw_instances(rng, model, n=5), cpu, has_aux=True, rewrites=PASSES)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_differences_of_products_are_rounded_as_in_eager_mode(dtype: str) -> None:
    """A fused multiplication and subtraction would give NaN at double roots."""
    model: Any = ab.Module()
    model.unit = ab.Parameter(np.ones(1))
    model.astype(dtype)

    @ab.cell
    def root(a: Any, b: Any, c: Any) -> Any:
        return ab.sqrt(b * b - 4.0 * a * c), ab.sqrt(a * c * -4.0 + b * b)

    x = np.random.default_rng(0).random(64).astype(dtype)
    given = np.ones_like(x), 2 * x, x * x
    for found in ab.batched(lambda _: root(*given), module=model, backend="cpu")([0]):
        assert not found.any()


def test_backward_skips_what_no_loss_reads() -> None:
    """Rows that the loss does not depend on get no gradient, even where it would be infinite."""
    weight = ab.Parameter(np.array([2.0, 3.0]))

    class Model(ab.Module):
        def __init__(self) -> None:
            self.weight = weight

        @ab.cell
        def root(self, x: Any) -> Any:
            return ab.sqrt(x * self.weight)

        def loss(self, numbers: Any) -> Any:
            first, second = self.root(numbers[0]), self.root(numbers[1])
            return ab.sum(first), second

    model = Model().astype("float64")
    instances = [np.array([[1.0, 4.0], [0.0, 0.0]]), np.array([[9.0, 1.0], [0.0, 1.0]])]
    cpu = Cpu(poison=True)
    compare_gradients(model.loss, instances, cpu, has_aux=True)
    found = ab.batched(model.loss, backend=cpu).value_and_grad(instances, reduce="sum", has_aux=True)[1]
    np.testing.assert_allclose(
        found["weight"], [0.5 * np.sqrt(1 / 2) + 0.5 * np.sqrt(9 / 2), 0.5 * np.sqrt(4 / 3) + 0.5 * np.sqrt(1 / 3)]
    )


def test_a_table_may_be_read_by_rows_and_as_a_whole() -> None:
    class Model(ab.Module):
        def __init__(self) -> None:
            self.table = ab.Parameter(np.arange(12.0).reshape(4, 3) / 7)

        @ab.cell
        def both(self, row: int, x: Any) -> Any:
            return ab.sum(ab.lookup(self.table, row) * x) + ab.sum(self.table * x)

        def loss(self, row: int) -> Any:
            return self.both(row, np.array([1.0, 2.0, row]))

    model = Model().astype("float64")
    compare_gradients(model.loss, [2, 0, 3, 2], compare(model.loss, [2, 0, 3, 2]))
