"""Test that the best number of threads is chosen with a fake clock, monitored, and dropped on a busy machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import autobatch as ab
from autobatch.blas.threads import limit_threads
from autobatch.cli.main import commands
from autobatch.engine import threads
from autobatch.engine.threads import MARGIN, ROUNDS, SizeClass
from autobatch.errors import BackendError
from helpers.fakes.clockwork import Chain, Clockwork, make, set_clock, train


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clockwork:
    """Return a machine with four cores and known times."""
    return set_clock(monkeypatch)


def chosen(loss: ab.Batched) -> str:
    """Return the choice that `explain` reports for mini-batches of `train`."""
    return next(line for line in str(loss.explain([2, 3, 4, 5], True)).splitlines() if "train up to" in line)


def run_trial(seconds: Callable[[int, int], float]) -> tuple[SizeClass, list[int]]:
    """Run a class until it is settled; `seconds` maps the number of threads and the run to a time."""
    found, turns = SizeClass(), list[int]()
    while not found.is_settled:
        turns.append(found.next())
        found.add(turns[-1], seconds(turns[-1], turns.count(turns[-1])))
    return found, turns[1:]  # the first mini-batch is not part of a trial


@pytest.mark.usefixtures("clock")
def test_numbers_take_turns_and_their_first_runs_do_not_count() -> None:
    found, turns = run_trial(lambda n, k: 100.0 if k <= 1 + (n == 1) else {1: 1.0, 2: 0.9, 4: 1.1}[n])
    rounds = [turns[first : first + 3] for first in range(0, len(turns), 3)]
    assert [sorted(one) for one in rounds] == [[1, 2, 4]] * (ROUNDS + 1)
    assert {one[0] for one in rounds} == {1, 2, 4}
    assert found.threads == 2


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("seconds", "expected"), [(1.01 - MARGIN, 1), (1.0, 1), (0.99 - MARGIN, 2), (1.4, 1)])
def test_more_threads_must_be_clearly_faster(seconds: float, expected: int) -> None:
    assert run_trial(lambda n, k: {1: 1.0, 2: seconds, 4: 1.2}[n])[0].threads == expected


@pytest.mark.usefixtures("clock")
def test_more_threads_must_win_most_rounds() -> None:
    """The median is lower, but two of seven rounds are lost."""
    assert run_trial(lambda n, k: {1: 1.0, 2: 1.1 if k in (3, 5) else 0.9, 4: 1.2}[n])[0].threads == 1
    assert run_trial(lambda n, k: {1: 1.0, 2: 1.1 if k == 3 else 0.9, 4: 1.2}[n])[0].threads == 2


@pytest.mark.usefixtures("clock")
def test_what_is_much_slower_runs_three_times() -> None:
    found, turns = run_trial(lambda n, k: 20.0 if n == 4 else 1.0 / n)
    assert (turns.count(4), turns.count(2), found.threads) == (3, ROUNDS + 1, 2)


@pytest.mark.usefixtures("clock")
def test_a_turn_lasts_until_its_time_is_known() -> None:
    found = SizeClass()
    found.add(1, 1.0)
    assert found.next() == found.next() == 1
    found.add(2, 1.0)
    assert found.next() == 1


@pytest.mark.usefixtures("clock")
def test_chance_alone_rarely_chooses_more() -> None:
    """With equal times and 10% noise, few of 400 trials choose more than one thread."""
    rng = np.random.default_rng(0)
    found = [run_trial(lambda n, k: float(rng.lognormal(0.0, 0.1)))[0].threads for _ in range(400)]
    assert 0 < sum(n > 1 for n in found) < 100


def test_a_given_number_is_not_measured(clock: Clockwork) -> None:
    clock.slower = 40.0
    loss, _ = make(clock, threads=3)
    values = train(loss, 50)
    assert (len(set(values)), set(clock.asked), loss.settled, loss.threads) == (1, {3}, True, 3)
    assert "train up to" not in str(loss.explain([2, 3], True))


def test_threads_are_measured_per_class_of_sizes(clock: Clockwork) -> None:
    """Four threads are twice as fast as two. Every mini-batch runs once."""
    loss, backend = make(clock, threads="auto")
    values = train(loss, 61)
    assert ("4 threads (ns per node: 1 thread " in chosen(loss), loss.settled) == (True, True)
    assert (len(backend.ran), set(clock.asked), loss.threads) == (62, {1, 2, 4}, "auto")
    np.testing.assert_allclose(values, values[0], rtol=1e-12)
    train(loss, 1, size=20)
    assert not loss.settled
    assert "(not measured yet)" in str(loss.explain([2, 3, 4, 5]))


def test_recorded_mini_batches_have_classes_by_nodes(clock: Clockwork) -> None:
    loss, _ = make(clock, threads="auto")
    graphs = loss.record_all([2, 3, 4, 5])
    for _ in range(60):
        loss.value_and_grad(graphs)
    assert "train up to 32 nodes: 4 threads" in str(loss.explain(graphs, True))


def test_a_busy_machine_gets_one_thread_and_is_tried_again(clock: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PAUSE", 20)
    loss, _ = make(clock, threads="auto")
    train(loss, 60)
    clock.slower = 40.0
    train(loss, 5)
    assert "1 thread (back to one thread: recent mini-batches took 10.0 times as long with 4" in chosen(loss)
    clock.asked.clear()
    train(loss, 20)
    assert set(clock.asked) == {1}
    train(loss, 30)
    assert clock.asked.count(4) == 3
    assert "1 thread (ns per node" in chosen(loss)
    clock.slower = 1.0
    train(loss, 20)
    assert "1 thread (ns per node" in chosen(loss)
    train(loss, 60)
    assert "4 threads (ns per node" in chosen(loss)


def test_a_few_slow_mini_batches_are_forgiven(clock: Clockwork) -> None:
    loss, _ = make(clock, threads="auto")
    train(loss, 60)
    for clock.slower in [1.0, 40.0, 1.0, 40.0, 1.0, 1.0, 40.0, 1.0, 1.0]:
        train(loss, 1)
    assert "4 threads" in chosen(loss)


def test_a_limit_around_a_call_holds_for_what_was_chosen(clock: Clockwork) -> None:
    loss, _ = make(clock, threads="auto")
    train(loss, 60)
    clock.asked.clear()
    with limit_threads(1):
        train(loss, 1)
    train(loss, 1)
    assert clock.asked == [1, 4]


def test_a_mini_batch_that_fails_takes_no_turn(clock: Clockwork) -> None:
    loss, _ = make(clock, threads="auto")
    train(loss, 3)
    clock.asked.clear()
    with pytest.raises(ab.errors.ShapeError, match="weights"):
        loss.value_and_grad([2, 3, 4, 5], reduce=[1.0])
    train(loss, 2)
    assert clock.asked == [4, 2]


def test_one_core_has_nothing_to_measure(clock: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autobatch.blas.threads.usable_cores", lambda: 1)
    loss, _ = make(clock, threads="auto")
    train(loss, 20)
    assert (set(clock.asked), loss.settled) == ({1}, True)


@pytest.mark.parametrize("n_threads", [0, -1, 1.5, "many", None, True])
def test_what_is_no_number_of_threads_is_refused(n_threads: Any) -> None:
    with pytest.raises(BackendError, match=r"threads must be an int of at least 1 or 'auto', got .*\."):
        ab.batched(Chain().loss, threads=n_threads)


# The command line.


def call(*arguments: str) -> tuple[int, str]:
    told = CliRunner().invoke(commands, arguments)
    return told.exit_code, told.output


@pytest.mark.parametrize("command", ["train", "eval", "predict", "bench", "explain"])
def test_every_command_that_runs_a_model_takes_threads(command: str) -> None:
    assert "--threads" in call(command, "--help")[1]


def test_bench_chooses_before_it_measures() -> None:
    small = "--dim", "4", "--batch-size", "8", "--minibatches", "1", "--repeats", "1"
    status, told = call("bench", "tree-lstm", *small, "--policy", "score", "--threads", "auto")
    assert status == 0, told
    assert "BLAS threads: auto" in told


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["tree-lstm", "--threads", "0"], "must be an int of at least 1, or auto, got '0'"),
        (["tree-lstm", "--threads", "many"], "or auto, got 'many'"),
        (["--baselines", "--threads", "auto"], "--threads must be a number with --baselines, got auto."),
    ],
)
def test_what_is_no_number_is_refused_at_the_command_line(arguments: list[str], why: str) -> None:
    status, told = call("bench", *arguments)
    assert status == 2
    assert why in told
