"""Loops that run in Python compute what compiled ones do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest

from autobatch.jit.arrays import IntArray
from autobatch.jit.in_python import run_in_python
from autobatch.jit.loops import Compiled

VALUES = np.arange(100, dtype=np.int32)


class Pair(NamedTuple):
    total: Any
    rest: Any


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


@pytest.fixture(autouse=True)
def _compiled_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))


def n_compiled(loop: Compiled[..., int]) -> int:
    """How often a loop was compiled, or loaded."""
    return len(loop.called.signatures)


def test_loops_within_others_run_in_python_too_unless_it_cannot_run_them() -> None:
    inner, hard = Compiled(add_up), Compiled(add_up, waits=False)
    assert run_in_python(lambda: inner(VALUES) + hard(VALUES)) == 2 * VALUES.sum()
    assert [n_compiled(loop) for loop in (inner, hard)] == [0, 1]
    assert inner(VALUES) == VALUES.sum()
    assert n_compiled(inner) == 1


def test_ints_wrap_around_without_a_warning() -> None:
    loop = Compiled(multiply)
    found = run_in_python(multiply, VALUES)
    assert found == loop(VALUES) == pow(0x9E3779B97F4A7C15, 100, 2**64)


def test_numbers_are_those_of_python() -> None:
    found = run_in_python(lambda: Pair(np.int32(3), (np.float64(0.5), np.bool_(True), VALUES)))
    assert isinstance(found, Pair)
    assert [type(x) for x in (found.total, *found.rest)] == [int, float, bool, np.ndarray]
    assert type(run_in_python(add_up, VALUES)) is int


def test_after_an_error_loops_are_compiled_again() -> None:
    loop = Compiled(add_up)
    with pytest.raises(ZeroDivisionError):
        run_in_python(lambda: 1 // 0)
    loop(VALUES)
    assert n_compiled(loop) == 1
