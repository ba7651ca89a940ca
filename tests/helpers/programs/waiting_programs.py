"""Small async programs, and functions that run them on counted memory, for tests of rounds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.cuda.backend import Cuda
from autobatch.backends.reference import Reference
from autobatch.backends.values import Memory, MemoryPool
from autobatch.devices.store import HOST
from host_device import HostDevice

DIM = 3
BACKENDS: list[Any] = [lambda: Reference(poison=True), lambda: Cpu(poison=True)]
if shutil.which("g++") is not None:
    BACKENDS.append(lambda: Cuda(poison=True, device=HostDevice()))


class Model(ab.Module):
    """Cells that turn a state until it is done."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.turning = ab.Parameter(rng.standard_normal((DIM, DIM)))
        self.kept: Any = None
        self.astype("float64")

    @ab.cell
    def turn(self, x: Any) -> Any:
        return ab.tanh(self.turning @ x)

    @ab.cell
    def total(self, x: Any) -> Any:
        return ab.sum(x)

    @ab.cell
    def norm(self, x: Any) -> Any:
        return ab.sqrt(ab.sum(x * x))

    @ab.cell
    def row(self, x: Any, number: int) -> Any:
        return x + ab.lookup(self.turning, number)

    async def loop(self, item: tuple[Any, int]) -> Any:
        """Turn as many times as the item says, and await a value after each turn."""
        x, n = item
        for _ in range(n):
            x = self.turn(x)
            await ab.value(self.total(x))
        return self.total(x)


def items(*lengths: int) -> list[tuple[Any, int]]:
    rng = np.random.default_rng(1)
    return [(rng.standard_normal(DIM), n) for n in lengths]


def data(n: int = 4) -> list[Any]:
    return [x for x, _ in items(*range(n))]


class CountingPool(MemoryPool[Memory]):
    """Counts the memories in use, and records the count at the start of each run."""

    def __init__(self) -> None:
        super().__init__(lambda: Memory(HOST))
        self.n_taken, self.before = 0, list[int]()

    def take(self) -> Memory:
        self.before.append(self.n_taken)
        self.n_taken += 1
        return super().take()

    def give_back(self, memory: Memory, needed: int) -> None:
        self.n_taken -= 1
        super().give_back(memory, needed)


def batched(function: Callable[..., Any], **options: Any) -> ab.Batched:
    """Return the batched function, on a backend whose `pool` counts."""
    backend = Reference(poison=True)
    backend.pool = CountingPool()
    return ab.batched(function, **{"backend": backend, **options})


def taken(run: ab.Batched) -> int:
    """Return the number of memories that were not returned."""
    found: int = run.backend.pool.n_taken  # type: ignore[attr-defined]
    return found


def last(run: ab.Batched) -> Any:
    assert run.last is not None
    return run.last


class Boom(Exception):
    """Raised by programs."""


async def fail(model: Model, x: Any) -> Any:
    """Raise if the awaited value is positive."""
    if await ab.value(model.total(x)) > 0.0:
        raise Boom("positive")
    return model.total(x)
