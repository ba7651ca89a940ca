"""Test random programs at random times that fail, are cancelled or see new parameters: the others are unaffected."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError, Future, wait
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.serving import running
from helpers.programs.waiting_programs import DIM, Boom, Model

WAIT = 120.0
N_REQUESTS = 24


class Random(Model):
    """A program drawn from a seed: turns, sums of lists, parallel branches, and awaited numbers that decide."""

    def __init__(self) -> None:
        super().__init__()
        self.second = ab.Parameter(np.random.default_rng(5).standard_normal((DIM, DIM)))
        self.astype("float64")

    @ab.cell
    def join(self, values: list[Any]) -> Any:
        return ab.tanh(self.second @ ab.sum_n(values))

    async def grow(self, rng: Any, x: Any, depth: int) -> Any:
        if depth == 0 or rng.random() < 0.2:
            return self.turn(x)
        below = [(rng.spawn(1)[0], self.row(x, k), depth - 1) for k in range(int(rng.integers(1, 4)))]
        if rng.random() < 0.5:
            grown = [*await ab.gather(*(self.grow(*one) for one in below))]
        else:
            grown = [await self.grow(*one) for one in below]
        joined = self.join(grown)
        if rng.random() < 0.5 and await ab.value(self.total(joined)) > 0:
            joined = self.turn(joined)
        return joined

    async def run(self, request: tuple[int, str]) -> Any:
        seed, fate = request
        rng = np.random.default_rng(seed)
        found = await self.grow(rng, rng.standard_normal(DIM), int(rng.integers(0, 5)))
        if fate == "raise":
            raise Boom(str(seed))
        if fate == "range":
            found = self.row(found, 17)
        return {"state": found, "total": self.total(found), "unread": [self.turn(found)] if seed % 3 else []}

    def plain(self, request: tuple[int, str]) -> Any:
        """Run a program that awaits nothing."""
        seed, fate = request
        rng = np.random.default_rng(seed)
        x: Any = rng.standard_normal(DIM)
        for _ in range(int(rng.integers(1, 9))):
            x = self.join([self.turn(x), x]) if rng.random() < 0.5 else self.turn(x)
        self.turn(x)  # is not used
        if fate == "raise":
            raise Boom(str(seed))
        return self.row(x, 17) if fate == "range" else (x, self.total(x))


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return all(same(found[key], value) for key, value in expected.items()) and found.keys() == expected.keys()
    if isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(same, found, expected))
    return bool(np.allclose(found, expected, rtol=0, atol=1e-10))


class Sender(threading.Thread):
    """A thread that sends requests and cancels some of them."""

    def __init__(self, server: Any, requests: list[tuple[int, str]], rng: np.random.Generator) -> None:
        super().__init__()
        self._server, self._requests, self._rng = server, requests, rng
        self.futures = list[Future[Any]]()

    def run(self) -> None:
        for request in self._requests:
            time.sleep(self._rng.exponential(1e-3))
            self.futures.append(self._server.submit(request, deadline=WAIT))
            if self._rng.random() < 0.2:
                time.sleep(self._rng.exponential(1e-3))
                self.futures[-1].cancel()


@pytest.mark.parametrize("method", ["run", "plain"])
@pytest.mark.parametrize("quantum", [1e3, 1e-15])
@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 20), marks=pytest.mark.slow)], ids=["few", "many"])
def test_arrivals(seeds: range, quantum: float, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "QUANTUM", quantum)
    monkeypatch.setattr(running, "WHOLE", quantum)
    monkeypatch.setattr(running, "COMPACT_AT", 64)
    for seed in seeds:
        serve_randomly(seed, method)


def serve_randomly(seed: int, method: str) -> None:
    rng = np.random.default_rng(seed)
    model = Random()
    function = getattr(model, method)
    server = ab.serve(function, backend="reference", max_running=int(rng.integers(1, 9)))
    for _ in range(3):  # parameters change in between
        requests = [
            (int(rng.integers(1000)), str(rng.choice(["", "", "", "raise", "range"]))) for _ in range(N_REQUESTS)
        ]
        expected = [ab.eager(function, (number, "")) for number, _ in requests]
        parts = [Sender(server, requests[k::3], np.random.default_rng((seed, k))) for k in range(3)]
        for part in parts:
            part.start()
        for part in parts:
            part.join()
        futures = [parts[k % 3].futures[k // 3] for k in range(len(requests))]
        wait(futures, WAIT)
        for (number, fate), future, value in zip(requests, futures, expected, strict=True):
            try:
                error = future.exception(WAIT)
            except CancelledError:
                continue
            if fate == "raise":
                assert isinstance(error, Boom)
                assert str(error) == str(number)
            elif fate == "range":
                assert isinstance(error, ab.DataError)
            else:
                assert error is None
                assert same(future.result(), value)
        model.second.data = rng.standard_normal((DIM, DIM))
    server.close()
    counts = server.explain()
    assert counts.done + counts.failed + counts.cancelled == 3 * N_REQUESTS
