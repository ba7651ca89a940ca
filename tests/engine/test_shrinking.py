"""Test that the memory kept for later instances shrinks again after a large one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import GraphError
from helpers.runs.ways import each

LARGE, FEW = 9_000, 9


class Sums(ab.Module):
    """Sums of word vectors."""

    def __init__(self) -> None:
        self.table = ab.Parameter(np.random.default_rng(0).standard_normal((5, 16)))

    @ab.cell
    def word(self, number: int, scale: float = 1.0) -> Any:
        return ab.tanh(ab.lookup(self.table, number) * scale)

    def loss(self, n: int) -> Any:
        return ab.sum(ab.sum_n([self.word(i % 5, float(i)) for i in range(n)]))


def n_logged(run: ab.Batched) -> int:
    """Return the bytes that the log of calls keeps for later recordings."""
    return run.recorder.calls.log.n_bytes


def n_bytes(run: ab.Batched) -> int:
    """Return the bytes that the backend keeps for later runs."""
    pool: Any = run.backend.pool  # type: ignore[attr-defined]
    return int(pool.n_bytes)


@each("backend", ["reference", "cpu"])
def test_a_large_instance_leaves_little_behind(backend: str) -> None:
    sums = Sums()
    run = ab.batched(sums.loss, module=sums, backend=backend)
    expected = [sums.loss(n) for n in (3, LARGE)]
    for _ in range(3):
        assert run.value_and_grad([LARGE])[0] == pytest.approx(expected[1], rel=1e-4)
        assert n_logged(run) >= 8 * 3 * LARGE  # per call: its ref, its form, a word and a float
        assert n_bytes(run) > 4 * 16 * LARGE  # floats of all words
        for _ in range(FEW):
            assert run([3]) == pytest.approx(expected[:1], rel=1e-5)
        assert n_logged(run) <= 2**17
        assert n_bytes(run) <= 2**20 + 2**16


def test_instances_that_are_all_large_keep_their_memory() -> None:
    sums = Sums()
    run = ab.batched(sums.loss, module=sums, backend="reference")
    for _ in range(5):
        run([LARGE])
        run([LARGE // 3])
    before = n_logged(run)
    for _ in range(5):
        run([LARGE])
        assert run.last is not None
        assert run.last.allocations == 0
    assert n_logged(run) == before


def test_a_value_that_was_kept_is_no_value_of_a_later_recording() -> None:
    """Other calls have the same numbers by then."""
    sums, kept = Sums(), list[Any]()

    def loss(n: int) -> Any:
        words = [sums.word(i % 5) for i in range(abs(n))]
        kept.extend(words[5:7] if n == LARGE else [])
        return ab.sum(kept[0] if n < 0 else ab.sum_n(words))

    run = ab.batched(loss, module=sums, backend="reference")
    run([LARGE])
    for _ in range(2):
        for _ in range(FEW):
            run([3])
        with pytest.raises(GraphError, match="recorded values must be used within their own instance"):
            run([-3])
        run([LARGE + 1])


def test_async_programs_drop_handles_too() -> None:
    sums = Sums()

    async def waits(n: int) -> Any:
        total = ab.sum_n([sums.word(i % 5) for i in range(n)])
        await ab.value(ab.sum(total))
        return ab.sum(total + sums.word(1))

    run = ab.batched(waits, module=sums, backend="reference")
    run([LARGE])
    for _ in range(FEW):
        run([3])
    assert n_logged(run) <= 2**17
    assert run([3]) == pytest.approx([ab.eager(waits, 3)], rel=1e-5)
