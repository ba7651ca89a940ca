"""A loss on a clock of its own: what is chosen by measuring is then known."""

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
    """Time passes only while batches run: by nodes, faster with threads, and slower by what others take.

    Attributes:
        asked: how many threads each run might use.
        slower: times as long with more than one thread.
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
    """Put this code on a machine of four cores whose time is known."""
    found = Clockwork()
    monkeypatch.setattr(counts, "perf_counter", found)
    monkeypatch.setattr(threads, "usable_cores", lambda: 4)
    monkeypatch.setattr(threads, "_all_pools", list)  # torch's pool may be limited to one thread
    return found


class Chain(ab.Module):
    """A chain of cells."""

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
    """Train on the same mini-batch of unequal instances."""
    return [loss.value_and_grad(list(range(2, 2 + size)))[0] for _ in range(n_calls)]


def make(clock: Clockwork, **options: Any) -> tuple[ab.Batched, NotingBackend]:
    """A loss on the reference backend and a clock, and its backend."""
    backend = NotingBackend(Reference(), on_run=clock.run)
    loss = ab.batched(Chain().astype("float64").loss, policy="depth", backend=backend, **options)
    return loss, backend
