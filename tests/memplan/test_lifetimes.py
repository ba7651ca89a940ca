"""Test reuse of memory: areas that are alive at the same time do not overlap, and the peak is near the live size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch._native import give_out
from autobatch.backends.reference import Reference
from autobatch.plan.plan_check import check_plan
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.runs.planned import place_batch

START = 7


@pytest.mark.parametrize("start", range(0, 200, 40))
def test_areas_that_live_at_one_time_lie_apart(start: int) -> None:
    for seed in range(start, start + 40):
        check_areas(np.random.default_rng(seed))


def check_areas(rng: np.random.Generator) -> None:
    n = int(rng.integers(1, 40))
    first = np.array([rng.integers(k + 1) for k in range(n)], np.int32)
    size = 16 * rng.integers(0, 5, n)
    place, end = give_out(first, size, START)
    alive = [{k for k in range(step, n) if first[k] <= step and size[k]} for step in range(n)]
    for together in alive:
        ranges = sorted((int(place[k]), int(place[k] + size[k])) for k in together)
        bounds = [START, *(bound for one in ranges for bound in one), end]
        assert bounds == sorted(bounds)
    most = max(sum(int(size[k]) for k in together) for together in alive)
    assert most <= end - START <= int(size.sum())


@pytest.mark.parametrize("n", [1, 2, 50])
def test_a_chain_needs_two_areas(n: int) -> None:
    """A batch writes the next batch's rows while it reads its own."""
    place, end = give_out(np.maximum(np.arange(n) - 1, 0).astype(np.int32), np.full(n, 16), 0)
    assert end == 16 * min(n, 2)
    assert set(place.tolist()) == set(range(0, end, 16))


class Chain(ab.Module):
    """A chain of cells of width 64."""

    def __init__(self) -> None:
        self.linear = ab.Linear(64, 64, rng=np.random.default_rng(0))

    @ab.cell
    def step(self, x: object) -> object:
        return ab.tanh(self.linear(x))

    def run(self, n: int) -> object:
        x: object = np.ones(64)
        for _ in range(n):
            x = self.step(x)
        return x


def checked_size(function: Callable[[Any], Any], instances: list[Any], training: bool) -> int:
    placed = place_batch(function, instances, training, rewrites=())
    check_plan(*placed)
    return placed.plan.size


def test_inference_over_a_long_chain_takes_no_more_than_over_a_short_one() -> None:
    chain = Chain()
    sizes = [checked_size(chain.run, [n] * 3, training=False) for n in (2, 10, 100)]
    assert sizes[0] == sizes[1] == sizes[2] == 3 * 64 * 3  # two areas, and the requested values
    assert checked_size(chain.run, [100] * 3, training=True) > 50 * sizes[0]


@pytest.mark.cases(0, 2)
@pytest.mark.parametrize("start", range(5))
def test_rows_that_are_used_again_hold_what_their_readers_want(start: int) -> None:
    """Random cells over random graphs, on a buffer of NaN, checked against one instance at a time."""
    for seed in range(start, 15, 5):
        rng = np.random.default_rng(seed)
        model = draw_model(rng, smooth=True).astype("float64")
        instances = draw_instances(rng, model, n=6)
        expected = [float(np.asarray(model.loss(instance))) for instance in instances]
        for policy in ("agenda", "depth", "unbatched", "score"):
            check_plan(*place_batch(model.loss, instances, training=False, policy=policy, rewrites=()))
            loss = ab.batched(model.loss, policy=policy, backend=Reference(poison=True))
            np.testing.assert_allclose(loss(instances), expected, rtol=1e-10, atol=1e-10)
