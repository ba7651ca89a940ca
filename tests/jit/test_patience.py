"""Loops that run in Python until compiling them pays: which are compiled, and when, counted by their signatures."""

from __future__ import annotations

from pathlib import Path

import numba
import numpy as np
import pytest

from autobatch.jit.arrays import IntArray
from autobatch.jit.loops import Compiled
from autobatch.jit.patience import ALWAYS, PATIENCE, Tally, patiently

CALL = np.ones(100_000, np.int32)
"""Arguments of a hundred thousand elements."""
N_CALLS = PATIENCE // 100


def add_up(values: IntArray) -> int:
    total = 0
    for value in values:
        total += value
    return total


def multiply(values: IntArray) -> int:
    key = np.uint64(1)
    for _ in values:
        key *= np.uint64(0x9E3779B97F4A7C15)
    return int(key)


def n_compiled(loop: Compiled[..., int]) -> int:
    """How often a loop was compiled, or loaded."""
    return len(loop.called.signatures)


@pytest.fixture(autouse=True)
def _compiled_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))


def test_a_loop_is_compiled_when_its_patience_is_spent() -> None:
    loop = Compiled(add_up)
    with patiently():
        for _ in range(N_CALLS):
            assert loop(CALL) == CALL.size
            assert n_compiled(loop) == 0
        assert loop(CALL) == CALL.size
        assert n_compiled(loop) == 1


def test_processes_count_together() -> None:
    """Each makes loops of its own."""
    for call in range(N_CALLS + 2):
        loop = Compiled(add_up)
        with patiently():
            assert loop(CALL) == CALL.size
        assert n_compiled(loop) == (call >= N_CALLS)


def test_what_was_compiled_does_not_wait() -> None:
    Compiled(add_up)(CALL[:1])
    loop = Compiled(add_up)
    with patiently():
        loop(CALL[:1])
    assert n_compiled(loop) == 1


def test_effort_counts() -> None:
    loop = Compiled(add_up, effort=N_CALLS)
    with patiently():
        for n in (0, 1):
            loop(CALL)
            assert n_compiled(loop) == n


def test_only_where_it_is_asked_for() -> None:
    loop = Compiled(add_up)
    with patiently():
        loop(CALL)
    loop(CALL)
    assert n_compiled(loop) == 1


def test_laborious_loops_are_compiled_within_others(monkeypatch: pytest.MonkeyPatch) -> None:
    inner, hard = Compiled(add_up), Compiled(add_up, effort=ALWAYS)

    def both(values: IntArray) -> int:
        return sum(inner(values) for _ in range(N_CALLS + 2)) + hard(values)

    outer = Compiled(both)
    monkeypatch.setitem(vars(outer), "called", Compiled(add_up).called)  # closures are not compiled
    with patiently():
        assert outer(CALL) == (N_CALLS + 3) * CALL.size
    assert [n_compiled(loop) for loop in (inner, hard)] == [0, 1]


def test_ints_wrap_around_in_python_too() -> None:
    """Without a warning, which is an error here."""
    loop = Compiled(multiply)
    with patiently():
        found = loop(CALL[:100])
        assert n_compiled(loop) == 0
    assert found == loop(CALL[:100]) == pow(0x9E3779B97F4A7C15, 100, 2**64)


def test_a_folder_that_is_not_there_leaves_the_work_of_this_process(tmp_path: Path) -> None:
    tally = Tally(tmp_path / "none" / "loop.work")
    assert [tally.add(2), tally.add(3)] == [2, 5]
