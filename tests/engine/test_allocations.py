"""Test that a warm training step on the cpu backend allocates nothing that grows, nor do processes grow.

A step with a known plan (forward, backward and optimizer) may allocate no NumPy array whose size depends on the
model or the trees.
"""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.models.data.tree import Tree
from autobatch.models.tree_lstm import TreeLSTM
from helpers.counters.counting_arrays import counting

BYTES_PER_INSTANCE, BYTES_BESIDE = 48, 256  # losses and their weights, a few times; scalars


WARM_UP = 10  # steps


def make_step(dim: int, depth: int, n_instances: int, backend: Any, **options: Any) -> Callable[[], None]:
    """Return a training step of a Tree-LSTM on full trees, with the same recorded graphs each time."""

    def draw(height: int) -> Tree[int]:
        if height == 0:
            return Tree.leaf(int(rng.integers(3)), int(rng.integers(9)))
        return Tree.inner(int(rng.integers(3)), draw(height - 1), draw(height - 1))

    rng = np.random.default_rng(0)
    model = TreeLSTM(9, dim, 3, rng)
    loss = ab.batched(model.loss, backend=backend, **options)
    graphs = loss.record_all([draw(depth) for _ in range(n_instances)])
    optimizer = ab.optim.Adam(model, lr=1e-3)

    def step() -> None:
        _, grads = loss.value_and_grad(graphs)
        optimizer.step(grads)

    return step


def test_the_counter_counts() -> None:
    with counting() as sizes:
        kept = [np.empty(100), np.zeros(7, np.float32)]
    assert sizes[:2] == [800, 28]
    del kept


def test_a_warm_step_allocates_what_it_returns_and_no_more() -> None:
    found = {}
    for dim, depth, n_instances in ((8, 2, 16), (40, 5, 16), (8, 2, 64)):
        step = make_step(dim, depth, n_instances, Cpu(provider="numpy"))
        for _ in range(WARM_UP):
            step()
        with counting() as sizes:
            step()
        found[dim, depth, n_instances] = len(sizes), sum(sizes)
    assert found[8, 2, 16] == found[40, 5, 16]
    assert found[8, 2, 16][0] == found[8, 2, 64][0]
    for (_, __, n_instances), (_, n_bytes) in found.items():
        assert n_bytes <= BYTES_PER_INSTANCE * n_instances + BYTES_BESIDE


@pytest.mark.long
@pytest.mark.parametrize("plan_cache", [0, 4], ids=["planned anew", "cached plan"])
def test_ten_thousand_steps_do_not_grow_the_process(plan_cache: int) -> None:
    step = make_step(8, 2, 4, Cpu(), plan_cache=plan_cache)
    for _ in range(1000):
        step()
    gc.collect()
    objects = len(gc.get_objects())  # the list itself takes memory
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(10_000):
        step()
    gc.collect()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before <= 1024
    assert len(gc.get_objects()) - objects <= 100
