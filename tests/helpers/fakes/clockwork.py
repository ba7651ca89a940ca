"""A loss on a fake clock, so that choices based on measurements are deterministic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.reference import Reference
from autobatch.blas import threads
from autobatch.engine import counts
from helpers.fakes.noting_backend import NotedExecutable, NotingBackend


class Clockwork:
    """A clock that advances only while batches run, in proportion to nodes and depending on the number of threads.

    Attributes:
        asked: the number of threads that each run may use.
        slower: the factor on the time of runs with several threads.
    """

    def __init__(self) -> None:
        self.now, self.slower, self.per_thread = 0.0, 1.0, 1.0
        self.asked: list[int] = []

    def __call__(self) -> float:
        return self.now

    def run(self, executable: NotedExecutable) -> None:
        n_threads, n_nodes = executable.options.threads, executable.plan.graph.n_nodes
        self.asked.append(n_threads)
        self.now += 1e-6 * n_nodes * (self.slower / (self.per_thread * n_threads) if n_threads > 1 else 1.0)


def set_clock(monkeypatch: pytest.MonkeyPatch) -> Clockwork:
    """Pretend that this machine has four cores, and replace the clock."""
    found = Clockwork()
    monkeypatch.setattr(counts, "perf_counter", found)
    monkeypatch.setattr(threads, "usable_cores", lambda: 4)
    monkeypatch.setattr(threads, "_all_pools", list)  # torch's pool may be limited to one thread
    return found


class Chain(ab.Module):
    def __init__(self) -> None:
        self.matrix = ab.Parameter(np.random.default_rng(0).standard_normal((5, 5)))

    @ab.cell
    def turn(self, x: Any) -> Any:
        return ab.tanh(self.matrix @ x)

    def loss(self, n: int) -> Any:
        x = np.ones(5)
        for _ in range(n):
            x = self.turn(x)
        return ab.sum(x)


def train(loss: ab.Batched, n_calls: int, size: int = 4) -> list[Any]:
    """Train repeatedly on one mini-batch of instances of different lengths; return the values."""
    return [loss.value_and_grad(list(range(2, 2 + size)))[0] for _ in range(n_calls)]


def make(clock: Clockwork, **options: Any) -> tuple[ab.Batched, NotingBackend]:
    """Return a loss on the reference backend and this clock, and its backend."""
    backend = NotingBackend(Reference(), on_run=clock.run)
    loss = ab.batched(Chain().astype("float64").loss, policy="depth", backend=backend, **options)
    return loss, backend
