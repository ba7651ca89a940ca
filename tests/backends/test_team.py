"""Test threads that run the calls of a stage together: each call once, tiles and parts in order."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest

from autobatch.backends.cpu.step import BOUND_STEP, Helper, Sweeps
from autobatch.backends.tables import CallList
from helpers.runs.interrupts import interrupts

N_RUNS = 60


class Notes:
    """A step that records the time of each call and how often it ran.

    Attributes:
        times, n_calls: indexed by call.
        record: the step, as in `BOUND_STEP`.
    """

    def __init__(self, calls: CallList) -> None:
        self.times, self.n_calls = np.zeros((2, len(calls.calls)), np.int64)
        self._clock: Iterator[int] = count()
        self._step = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(self._note)
        self.record = ctypes.cast(self._step, ctypes.c_void_p).value, 0, 0

    def _note(self, memory: int, descriptor: int, k: int) -> None:
        self.times[k] = next(self._clock)
        self.n_calls[k] += 1
        time.sleep(1e-5)  # lets another thread continue


def draw_calls(rng: np.random.Generator) -> CallList:
    """Draw parts with tiles of calls; call k has number k."""
    sizes = rng.integers(0, 6, rng.integers(1, 30))
    lengths = rng.integers(1, 4, sizes.sum())
    n = int(lengths.sum())
    calls = np.zeros((n, 2), np.int64)
    calls[:, 1] = np.arange(n)
    is_serial = rng.random(max(len(sizes) - 2, 0)) < 0.3
    return CallList(calls, np.cumsum([0, *lengths]), np.cumsum([0, *sizes]), is_serial)


def assert_in_order(calls: CallList, times: Any) -> None:
    """Check that the calls of a tile run in order, as do parts, and the tiles of single-threaded parts."""
    _, tile_ptr, ptr, is_serial = calls
    before = -1
    for part in range(len(ptr) - 1):
        found = [times[tile_ptr[p] : tile_ptr[p + 1]] for p in range(ptr[part], ptr[part + 1])]
        for one in found:
            assert np.all(np.diff(one) > 0)
            assert one[0] > before
        if 0 < part <= len(is_serial) and is_serial[part - 1] and found:
            assert np.all(np.diff(np.concatenate(found)) > 0)
        before = max((int(one[-1]) for one in found), default=before)


@pytest.mark.parametrize("n_threads", [1, 2, 4])
def test_calls_are_made_once_and_in_order(n_threads: int) -> None:
    rng = np.random.default_rng(n_threads)
    sweeps = Sweeps()
    for _ in range(N_RUNS):
        calls = draw_calls(rng)
        notes = Notes(calls)
        sweeps.run(np.array([[notes.record]] * n_threads, BOUND_STEP), calls, 0, len(calls.ptr) - 1)
        assert set(notes.n_calls.tolist()) <= {1}
        assert_in_order(calls, notes.times)


def test_an_interrupt_leaves_nobody_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that is interrupted before it starts waits for the others, and no calls follow."""
    sweeps, start = Sweeps(), Helper.start
    calls = draw_calls(np.random.default_rng(5))
    notes = Notes(calls)
    addresses = np.array([[notes.record]] * 3, BOUND_STEP)

    def start_first(helper: Helper, *work: Any) -> None:
        start(helper, *work)
        time.sleep(0.05)
        raise KeyboardInterrupt

    monkeypatch.setattr(Helper, "start", start_first)
    with pytest.raises(KeyboardInterrupt):
        sweeps.run(addresses, calls, 0, len(calls.ptr) - 1)
    made = notes.n_calls.copy()
    assert made.max() <= 1
    time.sleep(0.05)
    np.testing.assert_array_equal(notes.n_calls, made)
    monkeypatch.undo()
    sweeps.run(addresses, calls, 0, len(calls.ptr) - 1)
    np.testing.assert_array_equal(notes.n_calls, made + 1)


def test_an_interrupt_at_any_call_leaves_the_sweep_closed() -> None:
    sweeps = Sweeps()
    calls = draw_calls(np.random.default_rng(6))
    notes = Notes(calls)
    addresses = np.array([[notes.record]] * 2, BOUND_STEP)
    n_interrupted = 0
    for error in interrupts(Sweeps.run, lambda: sweeps.run(addresses, calls, 0, len(calls.ptr) - 1)):
        if error is not None:
            assert isinstance(error, KeyboardInterrupt)
            n_interrupted += 1
        notes.n_calls[:] = 0
        sweeps.run(addresses, calls, 0, len(calls.ptr) - 1)
        assert set(notes.n_calls.tolist()) == {1}
    assert n_interrupted >= 6


def test_several_at_once() -> None:
    """Sweeps of several Python threads do not affect each other's calls."""
    failed: list[BaseException] = []

    def run(seed: int) -> None:
        rng, sweeps = np.random.default_rng(seed), Sweeps()
        try:
            for _ in range(N_RUNS):
                calls = draw_calls(rng)
                notes = Notes(calls)
                sweeps.run(np.array([[notes.record]] * 3, BOUND_STEP), calls, 0, len(calls.ptr) - 1)
                assert set(notes.n_calls.tolist()) <= {1}
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks need a POSIX system")
def test_a_forked_child_makes_calls_although_a_sweep_was_open() -> None:
    """The child lacks the threads of the sweep, which are all inside at the fork."""
    is_inside, may_end, sweeps = threading.Barrier(4), threading.Event(), Sweeps()
    tiles = np.arange(4)
    calls = CallList(np.zeros((3, 2), np.int64), tiles, np.array([0, 3]), np.zeros(0, bool))

    def wait(memory: int, descriptor: int, k: int) -> None:
        is_inside.wait(60)
        may_end.wait(60)

    step = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(wait)
    addresses = np.array([[(ctypes.cast(step, ctypes.c_void_p).value, 0, 0)]] * 3, BOUND_STEP)
    thread = threading.Thread(target=sweeps.run, args=(addresses, calls, 0, 1))
    thread.start()
    is_inside.wait(60)
    child = os.fork()
    if child == 0:
        try:
            drawn = draw_calls(np.random.default_rng(0))
            notes = Notes(drawn)
            sweeps.run(np.array([[notes.record]] * 3, BOUND_STEP), drawn, 0, len(drawn.ptr) - 1)
            os._exit(0 if set(notes.n_calls.tolist()) == {1} else 1)
        except BaseException:
            os._exit(2)
    may_end.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
