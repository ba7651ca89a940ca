"""Test that a warm training step, with recorded graphs and a known plan, only does what changes between steps."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.blas.packed import NAME as PACKED
from autobatch.system.processor import has_avx512
from checkout import ROOT
from helpers.counters.counting import count_calls, files_entered, files_in_order
from helpers.twins.cases import CASES

MOST_FILES, MOST_CALLS, MOST_MOVES = 22, 89, 64
N_STEPS, MOST_CALLS_OF_A_WAIT = 10, 3
SMALL_CALLS = {
    ("instances", "inference"): 248, ("recorded", "inference"): 193, ("plan found", "inference"): 138,
    ("instances", "training"): 299, ("recorded", "training"): 246, ("plan found", "training"): 182,
}  # fmt: skip
"""The maximum number of calls of Python and C functions for one instance; see `experiments/latency.py`."""
LIBRARY_CALLS = 22
"""Additional calls that limit the threads of a library, for backends that use one."""


class Step(ab.Module):
    """An LSTM step with an output layer."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.lstm, self.output = ab.LSTMCell(8, 8, rng=rng), ab.Linear(8, 8, rng=rng)

    @ab.cell
    def step(self, x: Any, h: Any, c: Any) -> Any:
        h, c = self.lstm(x, (h, c))
        return self.output(h), h, c

    @ab.cell
    def step_loss(self, x: Any, h: Any, c: Any) -> Any:
        """Compute the cross-entropy of the logits with class 0."""
        h, _ = self.lstm(x, (h, c))
        return ab.cross_entropy(self.output(h), 0)


@pytest.mark.parametrize("library", [PACKED, "numpy"])
@pytest.mark.parametrize(("way", "mode"), SMALL_CALLS)
def test_a_call_of_one_instance_makes_few_calls(way: str, mode: str, library: str) -> None:
    """Unrecorded, recorded, and with a known plan. Uses the minimum of several runs, because some work is rare."""
    if library == PACKED and not has_avx512():
        pytest.skip("autobatch's own products need AVX-512")
    model, states = Step(), [tuple(np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32))]
    n_plans, function = int(way == "plan found"), model.step if mode == "inference" else model.step_loss
    run = ab.batched(lambda state: function(*state), module=model, backend=Cpu(provider=library), plan_cache=n_plans)
    given = states if way == "instances" else run.record_all(states)
    call = run if mode == "inference" else run.value_and_grad
    for _ in range(3):
        call(given)
    counts = [count_calls(call, given) for _ in range(8)]
    assert min(counts) <= SMALL_CALLS[way, mode] + LIBRARY_CALLS * (library != PACKED), counts
    assert run.last is not None
    assert run.last.plan_hit is (True if way == "plan found" else None)


def test_a_warm_step_enters_few_files_and_makes_few_calls() -> None:
    """A feature that adds work to every call makes this fail."""
    model, instances = CASES[0].draw(seed=5, n_instances=8, dim=8)
    loss = ab.batched(model.astype("float32").loss, policy="score", backend="cpu")
    graphs = loss.record_all(instances)
    for _ in range(3):
        loss.value_and_grad(graphs)
    entered = files_in_order(loss.value_and_grad, graphs)
    assert loss.last is not None
    assert loss.last.plan_hit
    files = {*entered}
    assert len(files) <= MOST_FILES, sorted(files)
    assert len(entered) <= MOST_CALLS, Counter(entered).most_common()
    assert sum(before != after for before, after in pairwise(entered)) <= MOST_MOVES, entered
    told = (ROOT / "docs" / "how_it_works.md").read_text(encoding="utf-8").split("### A training step, file by file")[1]
    named = re.findall(r"`([a-z_/]+\.py)`", told.split("\n## ")[0])
    assert sorted({*named} - {"tests/engine/test_warm_step.py"}) == sorted(name.removeprefix("/") for name in files)


def test_a_step_costs_the_same_whatever_the_number_of_instances() -> None:
    """Except for work per instance: their digests, and the structures of their results."""
    totals = []
    for n_instances in (4, 32):
        model, instances = CASES[0].draw(seed=5, n_instances=n_instances, dim=8)
        loss = ab.batched(model.astype("float32").loss, policy="score", backend="cpu")
        graphs = loss.record_all(instances)
        for _ in range(3):
            loss.value_and_grad(graphs)
        totals.append(files_entered(loss.value_and_grad, graphs).total())
    assert totals[1] - totals[0] <= 4 * (32 - 4)


class Walk(ab.Module):
    """A program that awaits a choice in each step."""

    def __init__(self) -> None:
        self.inner = ab.Linear(4, 4, rng=np.random.default_rng(0))

    @ab.cell
    def step(self, x: Any) -> Any:
        return ab.tanh(self.inner(x))

    async def run(self, x: Any) -> int:
        """Count the steps that chose the last element."""
        n = 0
        for _ in range(N_STEPS):
            x = self.step(x)
            n += int(await ab.value(ab.argmax(x))) == 3
        return n


def test_a_round_makes_few_calls_for_each_program_that_waits() -> None:
    run = ab.batched(Walk().run)
    counts = []
    for n_instances in (4, 32):
        instances = [*np.random.default_rng(0).standard_normal((n_instances, 4)).astype(np.float32)]
        for _ in range(3):
            run(instances)
        counts.append(len(files_in_order(run, instances)))
        assert run.last is not None
        assert run.last.rounds == N_STEPS
    assert counts[1] - counts[0] <= MOST_CALLS_OF_A_WAIT * N_STEPS * (32 - 4)
