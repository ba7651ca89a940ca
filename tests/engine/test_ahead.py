"""Test that mini-batches planned ahead give the same plans and results, and that the run raises their errors."""

from __future__ import annotations

import copy
import os
import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import autobatch as ab
from autobatch.engine import ahead as planning_ahead
from autobatch.engine.planning import Planning
from autobatch.graph.queued import QueuedBatch
from autobatch.plan.plan import Plan
from helpers.counters.jobs import CountedJobs
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.runs.planned import assert_same_plan

MANY = [pytest.param(range(12), id="some"), pytest.param(range(12, 120), id="many", marks=pytest.mark.slow)]
POLICIES = "depth", "agenda", "sufficient", "critical", "score", "score+both", "auto"
SIZE = 3


@pytest.fixture(autouse=True)
def two_cores() -> Iterator[None]:
    """Let the session plan ahead on any machine, whatever threads earlier tests have left to libraries."""
    with (
        patch("autobatch.engine.planning.usable_cores", return_value=2),
        patch("autobatch.blas.threads.most_threads", return_value=2),
    ):
        yield


class Net(ab.Module):
    """A chain whose loss reads a table."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.table, self.weight = ab.Parameter(rng.standard_normal((9, 4))), ab.Parameter(rng.standard_normal((4, 4)))

    @ab.cell
    def step(self, h: Any, word: int) -> Any:
        return ab.tanh(self.weight @ h + ab.lookup(self.table, word))

    @ab.cell
    def start(self, word: int) -> Any:
        return ab.lookup(self.table, word)

    @ab.cell
    def noisy(self, x: Any) -> Any:
        return x + ab.sum(ab.normal(4))

    def loss(self, words: list[int]) -> Any:
        h = self.start(words[0])
        for word in words[1:]:
            h = self.step(h, word)
        return ab.sum(h)

    def state(self, words: list[int]) -> Any:
        h = self.start(words[0])
        return h if len(words) > 5 else ab.sum(h)


def sentences(n: int = 12) -> list[list[int]]:
    rng = np.random.default_rng(1)
    return [rng.integers(9, size=int(rng.integers(1, 6))).tolist() for _ in range(n)]


@pytest.mark.parametrize("seeds", MANY)
def test_plans_and_results_are_those_of_planning_in_the_call(seeds: range) -> None:
    n_used = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        model = draw_model(rng, smooth=True)
        policy, trains = POLICIES[seed % len(POLICIES)], seed % 3 != 0
        options: dict[str, Any] = {
            "policy": policy,
            "backend": "reference",
            "seed": seed,
            "plan_cache": int(rng.integers(2)),
        }
        losses = [ab.batched(model.loss if trains else model.everything, **options) for _ in range(2)]
        instances = draw_instances(rng, model, n=11)
        found: list[list[Any]] = []
        with CountedJobs() as counted:
            for n, loss in zip((0, 1 + seed % 3), losses, strict=True):
                graphs, shuffled, results = loss.record_all(instances), np.random.default_rng(seed), []
                for batch in ab.minibatches(graphs, SIZE, shuffled, ahead=n):
                    plans: list[Plan] = []
                    with patch.object(loss.planning.backend, "prepare", noting(loss.planning.backend.prepare, plans)):
                        given = loss.value_and_grad(batch) if trains else loss(batch)
                    assert loss.last is not None
                    results.append((copy.deepcopy(given), plans, loss.last.batches))
                found.append(results)
        for (given, plans, n_batches), (expected, others, n_expected) in zip(*found, strict=True):
            assert n_batches == n_expected
            for one, other in zip(plans, others, strict=True):
                assert_same_plan(one, other)
            assert pickle.dumps(given) == pickle.dumps(expected)
        assert counted.used == counted.begun
        n_used += counted.used
    assert n_used > len(seeds)


def noting(prepare: Any, plans: list[Plan]) -> Any:
    def prepare_and_note(plan: Plan, *args: Any) -> Any:
        plans.append(plan)
        return prepare(plan, *args)

    return prepare_and_note


def test_every_mini_batch_but_the_first_is_planned_ahead() -> None:
    loss = ab.batched(Net().loss, policy="score", backend="reference")
    graphs = loss.record_all(sentences())
    with CountedJobs() as counted:
        for batch in ab.minibatches(graphs, SIZE, ahead=2):
            loss.value_and_grad(batch)
        assert (counted.begun, counted.used) == (3, 3)
        for batch in ab.minibatches(graphs, SIZE, ahead=2):  # their plans are cached
            loss.value_and_grad(batch)
        assert (counted.begun, counted.used) == (3, 3)


def test_several_functions_plan_the_same_mini_batches() -> None:
    model = Net()
    loss = ab.batched(model.loss, policy="score", backend="reference", plan_cache=0)
    graphs = loss.record_all(sentences())
    expected = [(loss(batch), loss.value_and_grad(batch)[0]) for batch in ab.minibatches(graphs, SIZE)]
    with CountedJobs() as counted:
        found = [(loss(batch), loss.value_and_grad(batch)[0]) for batch in ab.minibatches(graphs, SIZE, ahead=1)]
    np.testing.assert_equal(found, expected)
    assert counted.used == 6  # for inference and training


@pytest.mark.parametrize(
    "options",
    [{"policy": "unbatched"}, {"policy": "score", "threads": 2}, {"policy": "score", "max_bytes": 200}],
    ids=str,
)
def test_nothing_is_planned_ahead_where_that_is_impossible_or_takes_a_core(options: dict[str, Any]) -> None:
    loss = ab.batched(Net().loss, backend="reference", **options)
    graphs = loss.record_all(sentences())
    with CountedJobs() as counted:
        for batch in ab.minibatches(graphs, 1, ahead=2):
            loss(batch)
    assert counted.begun == 0


def test_waiting_plans_count_in_max_bytes() -> None:
    """A limit that has room for the run and one more plan allows fewer plans than one with room for two."""
    begun = []
    for spare in (0, 1.5, 2.5):
        loss = ab.batched(Net().loss, policy="score", backend="reference", plan_cache=0)
        graphs = loss.record_all([[1, 2, 3]] * 8)
        (part,) = loss.prepare(graphs[:2]).parts
        loss.max_bytes = int(part.n_bytes + spare * part.plan.host_bytes)
        batches = ab.minibatches(graphs, 2, ahead=3)
        with CountedJobs() as counted:
            loss(next(batches))
        begun.append(counted.begun)
    assert begun == [0, 1, 2]


def test_the_call_that_runs_a_mini_batch_raises_its_error() -> None:
    words = sentences()
    words[7] = [1] * 6  # `state` returns a vector for it
    model = Net()
    run = ab.batched(model.state, policy="score", backend="reference")
    graphs = run.record_all(words)
    batches = ab.minibatches(graphs, SIZE, ahead=3)
    for _ in range(2):
        run.value_and_grad(next(batches))
    third = next(batches)
    with pytest.raises(ab.GraphError, match="needs a scalar loss; for instance 1 the function returned a value of"):
        run.value_and_grad(third)
    run.value_and_grad(next(batches))


def test_changes_between_planning_and_running_are_followed() -> None:
    """Other options, frozen parameters, another policy, planner or instances: the plan made ahead is not used."""
    model, changes = Net(), list[Any]()

    def freeze(loss: Any, batch: list[Any]) -> None:
        model.weight.trainable = False

    def choose(loss: Any, batch: list[Any]) -> None:
        loss.policy = ab.policies.get("agenda")

    def rewrite(loss: Any, batch: list[Any]) -> None:
        loss.rewrites = ("share",)

    def replan(loss: Any, batch: list[Any]) -> None:
        loss.planner = ab.batched(model.loss).planner

    def swap(loss: Any, batch: list[Any]) -> None:
        batch[0] = loss.record_all([[8, 8]])[0]

    def shorten(loss: Any, batch: list[Any]) -> None:
        batch.pop()

    changes = [freeze, choose, rewrite, replan, swap, shorten]
    for change in changes:
        model.weight.trainable = True
        loss = ab.batched(model.loss, policy="score", backend="reference")
        graphs = loss.record_all(sentences())
        with CountedJobs() as counted:
            batches = ab.minibatches(graphs, SIZE, ahead=1)
            loss.value_and_grad(next(batches))
            second = next(batches)
            change(loss, second)
            value, grads = loss.value_and_grad(second)
        assert (counted.begun >= 1, counted.used) == (True, 0), change.__name__
        other = ab.batched(model.loss, policy=loss.policy, backend="reference", rewrites=loss.rewrites)
        np.testing.assert_allclose(value, loss([*second]).mean(), rtol=1e-6)
        assert grads.keys() == other.value_and_grad(other.record_all(sentences())[:1])[1].keys()


def test_equal_graphs_of_other_instances_keep_their_random_numbers() -> None:
    """An instance replaced by an equal one with another key draws the other one's numbers."""
    model = Net()
    noisy = ab.batched(lambda words: model.noisy(model.loss(words)), module=model, backend="reference", policy="score")
    graphs = noisy.record_all([[1, 2]] * 4)
    batches = ab.minibatches(graphs[:3], 1, ahead=2)
    noisy(next(batches))
    second = next(batches)
    second[0] = graphs[3]
    step = noisy.step
    found = noisy(second)
    noisy.step = step
    np.testing.assert_array_equal(found, noisy([graphs[3]]))


def test_any_iterable_of_mini_batches_can_be_planned_ahead() -> None:
    fetched = []

    def batches() -> Iterator[Any]:
        for k in range(5):
            fetched.append(k)
            yield (k, k)

    found = ab.plan_ahead(batches(), 2)
    assert (next(found), fetched) == ([0, 0], [0, 1, 2])
    assert (next(found), fetched) == ([1, 1], [0, 1, 2, 3])
    assert [*found] == [[2, 2], [3, 3], [4, 4]]
    assert [*ab.plan_ahead([])] == []
    assert [*ab.plan_ahead([[1]], 0)] == [[1]]
    for n in (-1, -7):
        with pytest.raises(ab.DataError, match=f"to plan ahead must be at least 0, got {n}"):
            next(ab.plan_ahead([[1]], n))
        with pytest.raises(ab.DataError, match=f"to plan ahead must be at least 0, got {n}"):
            next(ab.minibatches([1], 1, ahead=n))


def test_instances_without_graphs_run_as_without_planning_ahead() -> None:
    loss = ab.batched(Net().loss, policy="score", backend="reference")
    with CountedJobs() as counted:
        found = [loss(batch) for batch in ab.minibatches(sentences(), SIZE, ahead=2)]
    np.testing.assert_equal(found, [loss(batch) for batch in ab.minibatches(sentences(), SIZE)])
    assert counted.begun == 0


def test_copies_and_pickles_are_plain_lists() -> None:
    batch = next(ab.minibatches([[1], [2]], 1, ahead=1))
    assert type(batch) is QueuedBatch
    for one in (copy.copy(batch), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch)), batch[:]):
        assert type(one) is list
        assert one == [[1]]


def test_jobs_that_nobody_waits_for_are_not_run() -> None:
    planner, ran = planning_ahead._Planner(), threading.Event()

    class Job:
        def __init__(self, run: Any) -> None:
            self.run = run

    hold, dropped = threading.Event(), list[int]()
    first, last = Job(hold.wait), Job(ran.set)
    planner.begin(first)  # type: ignore[arg-type]
    planner.begin(Job(lambda: dropped.append(1)))  # type: ignore[arg-type]
    planner.begin(last)  # type: ignore[arg-type]
    hold.set()
    assert ran.wait(10)
    assert not dropped


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks need a POSIX system")
def test_a_forked_child_plans_anew() -> None:
    loss = ab.batched(Net().loss, policy="score", backend="reference", plan_cache=0)
    graphs = loss.record_all(sentences())
    expected = [loss(batch).tolist() for batch in ab.minibatches(graphs, SIZE)]
    batches = ab.minibatches(graphs, SIZE, ahead=3)
    loss(next(batches))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, repr([loss(batch).tolist() for batch in batches]).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as result:
        assert eval(result.read()) == expected[1:]
    os.waitpid(child, 0)
    assert [loss(batch).tolist() for batch in batches] == expected[1:]


def test_waiting_for_a_plan_is_not_counted_as_execution() -> None:
    model = Net()
    loss = ab.batched(model.loss)
    graphs, take = loss.record_all([[1, 2], [3], [4, 5, 6], [7]]), Planning._take

    def take_slowly(*args: Any) -> Any:
        time.sleep(0.1)
        return take(*args)

    with patch.object(Planning, "_take", take_slowly):
        for batch in ab.minibatches(graphs, 2, np.random.default_rng(0), ahead=1):
            loss.value_and_grad(batch)
            assert loss.last is not None
            assert loss.last.ms["lookup"] >= 100
