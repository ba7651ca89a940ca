"""Tiles: those of a batch are its rows, each once, and outputs and gradients do not depend on how large they are."""

from __future__ import annotations

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends import tiles
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.tiles import arrays_of, count_tiles, find_serial, rows_of_tile
from helpers.checkers.parity import TOLERANCES, compare, compare_gradients
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.runs.ways import each
from helpers.twins.cases import CASES, Case

N_SEEDS = 12


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of two rows."""
    monkeypatch.setattr(tiles, "TILE_BYTES", 0)
    monkeypatch.setattr(tiles, "LEAST_ROWS", 2)


@pytest.mark.parametrize("n_threads", [1, 2, 3, 7])
def test_tiles_are_few_and_even(n_threads: int) -> None:
    for most in (2, 16, 96, 1000):
        for n_rows in (1, 2, 15, 16, 17, 96, 97, 100, 1000, 5138):
            at_once = rows_of_tile(n_rows, most, n_threads)
            assert 0 < at_once <= most
            assert count_tiles(n_rows, most, n_threads) == len(range(0, n_rows, at_once))
            if n_threads == 1 and n_rows <= most:
                assert count_tiles(n_rows, most, n_threads) == 1
            if n_rows >= n_threads * tiles.ROUND_ROWS * 2:
                assert count_tiles(n_rows, most, n_threads) >= n_threads
            assert count_tiles(n_rows, tiles.WHOLE, n_threads) == 1


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
    """The same for compiled kernels, alone and with a helper: to the bit what one thread computes."""
    model, instances = case.draw(seed=1, n_instances=9, dim=20)
    model.astype(dtype)
    compare_gradients(model.loss, instances, Cpu(poison=True, jitted=True), TOLERANCES[dtype])
    alone, together = (
        ab.batched(model.loss, backend=Cpu(poison=True, jitted=True), threads=n).value_and_grad(instances)
        for n in (1, 2)
    )
    np.testing.assert_array_equal(alone[0], together[0])
    for name, gradient in alone[1].items():
        np.testing.assert_array_equal(gradient, together[1][name])


@pytest.mark.slow
@each("seed", range(N_SEEDS))
def test_batches_that_add_are_serial(seed: int) -> None:
    """Those with a node of which an output is added to what is at one of its destinations."""
    rng = np.random.default_rng(seed)
    model = draw_model(rng, smooth=True)
    loss = ab.batched(model.everything, backend="reference")
    plan = loss.prepare(draw_instances(rng, model, n=5), training=True, has_aux=True).parts[0].plan
    for batch, is_serial in zip(plan.batches, find_serial(arrays_of(plan)), strict=True):
        nodes = plan.node_at[plan.type_ptr[batch.type_id] :][batch.start : batch.end]
        outputs = range(plan.tables.out_ptr[batch.type_id + 1] - plan.tables.out_ptr[batch.type_id])
        expected = any(any(plan.added(int(node), o)) for node in nodes for o in outputs)
        assert is_serial == expected


def test_launches_are_calls_of_tiles(small: None) -> None:
    """A chain's cell runs once per tile of two rows; an output layer over all of them too."""
    model, instances = CASES[0].draw(seed=2, n_instances=8, dim=4)
    few = ab.batched(model.loss, backend=Cpu(jitted=False))
    few(instances)
    assert few.last is not None
    in_tiles = few.last.launches
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "LEAST_ROWS", 10_000)
        whole = ab.batched(model.loss, backend=Cpu(jitted=False))
        whole(instances)
    assert whole.last is not None
    assert whole.last.launches < in_tiles
