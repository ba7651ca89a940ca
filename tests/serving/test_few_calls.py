"""Test that a served batch, and a round of served programs, make few Python calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.serving.running import Running
from helpers.counters.counting import files_in_order

N_STEPS = 4
MOST_OF_A_BATCH, MOST_OF_A_REQUEST = 148, 10
MOST_OF_A_ROUND, MOST_OF_A_WAIT = 192, 9


class Chain(ab.Module):
    """Applies a layer several times."""

    def __init__(self) -> None:
        self.inner = ab.Linear(4, 4, rng=np.random.default_rng(0))

    @ab.cell
    def step(self, x: Any) -> Any:
        return ab.tanh(self.inner(x))

    def run(self, x: Any) -> Any:
        for _ in range(N_STEPS):
            x = self.step(x)
        return x

    async def walk(self, x: Any) -> Any:
        """Compute the last state, awaiting each one."""
        for _ in range(N_STEPS):
            x = self.step(x)
            await ab.value(ab.argmax(x))
        return x


def serve(running: Running, instances: list[Any]) -> list[Any]:
    """Run requests that arrive together until all have ended."""
    for place, instance in enumerate(instances):
        running.begin(place, place, instance)
    found = list[Any]()
    while len(found) < len(instances):
        assert not running.record()
        running.run()
        found += running.answer()
    return found


def count_calls_of(function: Any, n_requests: int) -> int:
    """Count the Python calls of a server that runs requests of this function; return the minimum of several runs."""
    running = Running(ab.batched(function, backend="cpu").of_programs(lambda given: given), 32)
    instances = [*np.random.default_rng(0).standard_normal((n_requests, 4)).astype(np.float32)]
    for _ in range(3):
        serve(running, instances)
    counts = [len(files_in_order(serve, running, instances)) for _ in range(5)]
    running.close()
    return min(counts)


@pytest.mark.parametrize(
    ("name", "most", "most_of_each"),
    [("run", MOST_OF_A_BATCH, MOST_OF_A_REQUEST), ("walk", MOST_OF_A_ROUND, MOST_OF_A_WAIT)],
)
def test_requests_make_few_calls(name: str, most: int, most_of_each: int) -> None:
    """For a batch or round of one request, and per additional request."""
    one, many = (count_calls_of(getattr(Chain(), name), n) for n in (1, 17))
    n_rounds = N_STEPS if name == "walk" else 1
    assert one <= most * n_rounds
    assert many - one <= 16 * most_of_each * n_rounds
