"""Whenever a signal arrives, a run ends with the checkpoint of its last step."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from autobatch.cli.training import keeping
from autobatch.cli.training.fitting import Best
from autobatch.cli.training.keeping import Keeper, Stopped
from autobatch.cli.training.stored import BEST, LAST
from autobatch.distributed.group import Joined
from autobatch.distributed.wire import Alone
from autobatch.models import find_model

N_STEPS = 6


class Run:
    """Training of six steps in two epochs, with a checkpoint every third step and after each epoch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.position = SimpleNamespace(steps=0)
        self.written: list[int] = []
        monkeypatch.setattr(keeping, "store_run", lambda *run: self.written.append(self.position.steps))
        keeper_of: Any = Keeper
        workload = SimpleNamespace(spec=find_model("tree-lstm"))
        self.keeper: Keeper = keeper_of(Path(), None, workload, self, 3, Joined(Alone()))

    def train(self) -> None:
        with self.keeper.catch_signals():
            for step in range(1, N_STEPS + 1):
                self.position.steps = step
                self.keeper.after_step()
                if step % (N_STEPS // 2) == 0:
                    epoch: Any = SimpleNamespace(is_best=True)
                    self.keeper.after_epoch(epoch)


def at_line(number: int, act: Callable[[], None]) -> Callable[[FrameType, str, Any], Any]:
    """Return a trace function that calls `act` before line `number` of those that run in `keeping`."""
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_globals.get("__name__") != keeping.__name__:
            return None
        if event == "line":
            lines += 1
            if lines == number:
                act()
        return trace

    return trace


def test_a_signal_at_any_line_ends_the_run_with_the_checkpoint_of_its_last_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = [signal.getsignal(number) for number in keeping.SIGNALS]
    stopped_after = []
    for line in range(1, 1000):
        run, sent = Run(monkeypatch), list[int]()

        def send(run: Run = run, sent: list[int] = sent) -> None:
            if signal.getsignal(signal.SIGTERM) == run.keeper._note:
                sent.append(run.position.steps)
                signal.raise_signal(signal.SIGTERM)

        traced = sys.gettrace()
        sys.settrace(at_line(line, send))
        try:
            run.train()
            stopped = 0
        except Stopped as error:
            stopped = error.status
        finally:
            sys.settrace(traced)
        assert [signal.getsignal(number) for number in keeping.SIGNALS] == before
        assert run.written[-1] == run.position.steps, f"line {line}"
        assert (stopped == 128 + signal.SIGTERM) == bool(sent), f"line {line}"
        if sent:
            assert run.position.steps - sent[0] <= 1
            stopped_after.append(run.position.steps)
        elif run.position.steps == N_STEPS and stopped_after:
            break
    assert set(stopped_after) == set(range(1, N_STEPS + 1))


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="this system cannot hold signals back")
@pytest.mark.parametrize("first", keeping.SIGNALS)
@pytest.mark.parametrize("others", [(), (signal.SIGINT,), (signal.SIGTERM,), keeping.SIGNALS])
@pytest.mark.parametrize("step", [1, 3, N_STEPS])
def test_signals_that_come_together_count_as_one(
    first: signal.Signals, others: tuple[signal.Signals, ...], step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(monkeypatch)

    def send(at: int) -> None:
        if at == step:
            signal.pthread_sigmask(signal.SIG_BLOCK, keeping.SIGNALS)
            for number in (first, *others):
                signal.pthread_kill(threading.get_ident(), number)  # other threads of the process do not block it
            signal.pthread_sigmask(signal.SIG_UNBLOCK, keeping.SIGNALS)  # now all are pending, and no handler has run

    unraisable = list[object]()
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    before = [signal.getsignal(number) for number in keeping.SIGNALS]
    after_step = run.keeper.after_step

    def send_first() -> None:
        send(run.position.steps)
        after_step()

    monkeypatch.setattr(run.keeper, "after_step", send_first)
    with pytest.raises(Stopped) as caught:
        run.train()
    assert caught.value.status - 128 in (first, *others)
    assert [signal.getsignal(number) for number in keeping.SIGNALS] == before
    assert unraisable == []
    assert run.written[-1] == run.position.steps == step


@pytest.mark.parametrize("number", keeping.SIGNALS)
@pytest.mark.parametrize("first", keeping.SIGNALS)
def test_a_later_signal_acts_as_it_does_elsewhere(
    first: signal.Signals, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "TOGETHER", 0.0)
    run, acted = Run(monkeypatch), list[int]()
    before = signal.signal(number, lambda number, frame: acted.append(number))

    def send_both() -> None:
        with run.keeper.catch_signals():
            signal.raise_signal(first)
            assert acted == []
            signal.raise_signal(number)
            assert acted == [number]

    try:
        with pytest.raises(Stopped) as caught:
            send_both()
    finally:
        signal.signal(number, before)
    assert caught.value.status == 128 + first


@pytest.mark.parametrize(
    ("model", "names", "epochs", "best"),
    [
        ("bilstm-tagger", ["tag_accuracy"], [(0.5,), (0.4,), (0.6,), (0.7,), (0.7,)], [0, 2, 3]),
        ("lstm-lm", ["perplexity"], [(0.5,), (0.4,), (0.6,), (0.4,)], [0, 1]),
        ("tree-lstm", ["root", "nodes"], [(1.0, 0.5), (1.0, 0.4), (1.0, 0.6), (0.9, 0.9), (1.0, 0.6)], [0, 2]),
        ("tree-lstm", ["root", "nodes", "third"], [(1.0, 0.5, 0.1), (1.0, 0.5, 0.1), (1.0, 0.5, 0.2)], [0, 2]),
        ("lstm-lm", ["word_accuracy", "perplexity"], [(0.5, 8.0), (0.5, 9.0), (0.5, 7.0), (0.6, 9.0)], [0, 2, 3]),
        ("tree-lstm", [], [(), ()], []),
        ("lstm-lm", ["perplexity"], [(inf,), (5.0,), (nan,), (-inf,), (4.0,)], [1, 4]),
        ("tree-lstm", ["root", "nodes"], [(nan, 1.0), (0.5, nan), (0.5, 0.1), (0.5, inf), (0.4, 1.0)], [1, 2]),
    ],
)
def test_the_best_epoch_is_that_of_the_best_metrics_in_their_order(
    model: str,
    names: list[str],
    epochs: list[tuple[float, ...]],
    best: list[int],
) -> None:
    """For shares, higher is better; for perplexities, lower."""
    found, numbers = Best(), list[int]()
    for number, values in enumerate(epochs, start=1):
        metrics = dict(zip(names, values, strict=True))
        found = found.or_later(number, metrics, find_model(model))
        if found.epoch == number:
            assert found.metrics == metrics
            numbers.append(number)
    assert numbers == [i + 1 for i in best]


def test_only_the_best_epochs_have_a_checkpoint_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(keeping, "store_run", lambda path, *run: written.append(path.name))
    keeper_of: Any = Keeper
    keeper: Keeper = keeper_of(Path(), None, None, None, 3, Joined(Alone()))
    for is_best in (True, False, True):
        epoch: Any = SimpleNamespace(is_best=is_best)
        keeper.after_epoch(epoch)
    assert written == [BEST, LAST, LAST, BEST, LAST]
