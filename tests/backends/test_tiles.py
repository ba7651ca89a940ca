"""Test tiles: they cover the rows of a batch once, and results do not depend on their size."""

from __future__ import annotations

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends import tables
from autobatch.backends.cpu.backend import Cpu
from helpers.checkers.parity import TOLERANCES, compare, compare_gradients
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.runs.ways import each
from helpers.twins.cases import CASES, Case

N_SEEDS = 12


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "TILE_BYTES", 0)
    monkeypatch.setattr(tables, "LEAST_ROWS", 2)


@pytest.mark.cases(2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_models_in_small_tiles(case: Case, small: None) -> None:
    model, instances = case.draw(seed=5, n_instances=7, dim=5)
    cpu = compare(model.loss, instances)
    compare_gradients(model.loss, instances, cpu)


@pytest.mark.slow
@each("seed", range(N_SEEDS))
def test_random_programs_in_small_tiles(seed: int, small: None) -> None:
    rng = np.random.default_rng(1000 + seed)
    model = draw_model(rng, smooth=seed % 2 == 0)
    instances = draw_instances(rng, model, n=5)
    cpu = compare(model.everything, instances)
    compare_gradients(model.everything, instances, cpu, has_aux=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", [CASES[0], *(pytest.param(case, marks=pytest.mark.slow) for case in CASES[1:])])
def test_compiled_in_small_tiles(case: Case, dtype: str, small: None) -> None:
    """With compiled kernels, alone and with a helper: bit-identical to one thread."""
    model, instances = case.draw(seed=1, n_instances=9, dim=20)
    model.astype(dtype)
    compare_gradients(model.loss, instances, Cpu(poison=True), TOLERANCES[dtype])
    alone, together = (
        ab.batched(model.loss, backend=Cpu(poison=True), threads=n).value_and_grad(instances) for n in (1, 2)
    )
    np.testing.assert_array_equal(alone[0], together[0])
    for name, gradient in alone[1].items():
        np.testing.assert_array_equal(gradient, together[1][name])


def test_launches_are_calls_of_tiles(small: None) -> None:
    """A chain's cell runs once per tile of two rows, and so does an output layer over all rows."""
    model, instances = CASES[0].draw(seed=2, n_instances=8, dim=4)
    few = ab.batched(model.loss, backend=Cpu())
    few(instances)
    assert few.last is not None
    in_tiles = few.last.launches
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "LEAST_ROWS", 10_000)
        whole = ab.batched(model.loss, backend=Cpu())
        whole(instances)
    assert whole.last is not None
    assert whole.last.launches < in_tiles
