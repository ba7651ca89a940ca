"""Test that a budget of work leads to rounds of the intended duration."""

from __future__ import annotations

import numpy as np
import pytest

from autobatch.serving.admission import Budget
from helpers.runs.ways import each


@each("seed", range(20))
def test_rounds_come_to_take_as_long_as_they_shall(seed: int) -> None:
    rng, budget = np.random.default_rng(seed), Budget(0.02)
    for per_round, per_work in 10 ** rng.uniform((-5, -11), (-2.3, -8), (3, 2)):
        seconds = [0.0]
        for k in range(60):
            work = budget.work if k % 5 else 0.3 * budget.work  # now and then there is less to do
            seconds.append(per_round + work * per_work)
            budget.learn(work, seconds[-1])
        assert seconds[-1] == pytest.approx(0.02, rel=0.05)


def test_small_rounds_leave_it_large() -> None:
    budget = Budget(0.02)
    budget.learn(1e7, 0.02)
    before = budget.work
    for _ in range(100):
        budget.learn(1e3, 0.002)  # almost all of it is fixed cost per round
    assert budget.work == before


def test_an_interrupted_round_halves_it() -> None:
    budget = Budget(0.02)
    budget.learn(1e7, 0.02)
    before = budget.work
    budget.learn(1e3, 0.1)
    assert budget.work == before / 2
