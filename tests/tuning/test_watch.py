"""Threads that were chosen are watched: on a busy machine there is one, until more are faster again."""

from __future__ import annotations

from pathlib import Path

import pytest

from autobatch.tuning import Variant, Watch, tuner
from clockwork import Clockwork, decided, make, set_clock, train


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clockwork:
    """A machine of four cores whose time is known."""
    return set_clock(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own."""
    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tuning"


def test_a_watch_tells_what_is_much_slower_and_forgives_a_few() -> None:
    watch = Watch(1.0)
    assert not any(watch.add(seconds) for seconds in [0.6, 0.6, 9.0, 0.6, 9.0, 0.6, 0.6, 9.0, 1.4, 1.4, 9.0])
    assert any(watch.add(9.0) for _ in range(3))
    assert watch.ratio == 9.0


def test_a_busy_machine_gets_one_thread_and_is_tried_again(clock: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "PAUSE", 20)
    loss, _ = make(clock, threads="auto")
    train(loss, 60)
    assert decided(loss) == {"threads": 4}
    clock.slower = 40.0
    train(loss, 5)
    assert decided(loss) == {}
    assert "back to one thread: the last mini-batches took 10.0 times as long" in str(loss.explain(range(2, 6), True))
    clock.asked.clear()
    train(loss, tuner.PAUSE)
    assert set(clock.asked) == {1}
    train(loss, 10)
    assert clock.asked.count(4) == 3
    assert decided(loss) == {}
    clock.slower = 1.0
    train(loss, 2 * tuner.PAUSE)
    assert decided(loss) == {}
    train(loss, 20)
    assert decided(loss) == {"threads": 4}


def test_threads_that_are_given_are_not_taken_back(clock: Clockwork) -> None:
    clock.slower = 40.0
    loss, _ = make(clock, threads=4, tune="auto")
    train(loss, 100)
    assert loss.settled
    assert {one.threads for one in Variant(threads=4).neighbours(tuner.TRIED, 0)} == {4}
    assert [one.threads for one in Variant(threads=4).neighbours((), 6)] == [1, 2, 6]
    assert set(clock.asked) == {4}


def test_what_a_busy_machine_decides_is_not_kept(clock: Clockwork, folder: Path) -> None:
    clock.slower = 40.0
    loss, _ = make(clock, threads="auto")
    train(loss, 60)
    assert decided(loss) == {}
    assert not folder.exists()
