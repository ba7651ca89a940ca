"""Measure whether schedules of fewer batches take less time on the device: several policies on the same mini-batches.

The table has the number of batches of each policy, their time by the device's clock, and the time of the whole step.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import autobatch as ab
from autobatch.cli.gpu.check import Check, Result
from autobatch.cli.racing import take_turns
from autobatch.cli.workload import Workload, load_workload, record

RULE = "score+both+compact"
POLICIES = ("agenda", "score", RULE, "learned")
MODELS = ("lattice-lstm", "tree-lstm-2type", "tree-lstm")
N_MINIBATCHES = 2
EPISODES = 300  # of learning, instead of 1000: within a batch as good here


class Planned(NamedTuple):
    """A batched loss with a policy, and the number of batches for each mini-batch in training."""

    loss: Any
    graphs: Sequence[Any]
    n_batches: list[int]


def time_policies(check: Check) -> Result:
    """Time schedules, planning included."""
    columns = (
        "model", "dim", "mini-batch", "mode", "policy", "batches", "bound", "ms of batches", "ms running",
        "ms",
    )  # fmt: skip
    result = Result("policies in time", columns)
    models = check.choose(MODELS, MODELS[:1])
    settings = [(model, dim) for dim in check.choose((256, 64), (5,)) for model in models]
    check.measure_each(result, settings, partial(time_model, check, result))
    return result


def time_model(check: Check, result: Result, model: str, dim: int) -> None:
    """Time all policies on the mini-batches of a model."""
    workload = load_workload(model, None, dim, check.seed)
    for size in check.choose((256, 16), (3,)):
        planned = {policy: prepare(check, workload, policy, size) for policy in POLICIES}
        for mode in ("training", "inference"):
            time_mode(check, result, (model, dim, size, mode), planned)


def prepare(check: Check, workload: Workload, policy: str, size: int) -> Planned:
    """Make a policy and plan the mini-batches with it; a learned policy learns on other instances."""
    loss = ab.batched(workload.model.loss, policy="agenda", backend=check.backend(), plan_cache=0)
    graphs = list(ab.minibatches(record(loss, workload.first(size * (N_MINIBATCHES + 1))), size))
    lesson, graphs = graphs[N_MINIBATCHES:], graphs[:N_MINIBATCHES]
    if policy == "learned":
        loss.learn_policy(lesson, seed=check.seed, episodes=check.choose(EPISODES, 5))
    else:
        loss.policy = ab.policies.get(policy)
    steps = [loss.prepare(graph, training=True) for graph in graphs]
    return Planned(loss, graphs, [sum(part.figures.n_batches for part in step.parts) for step in steps])


def time_mode(check: Check, result: Result, about: tuple[Any, ...], planned: Mapping[str, Planned]) -> None:
    """Let the policies take turns, and report their times; in training, also how these agree with the numbers of
    batches.
    """
    lasts: defaultdict[str, list[Any]] = defaultdict(list)
    runs = {policy: step(*one[:2], about[-1]) for policy, one in planned.items()}
    n_repeats = check.choose(9, 1)

    def ran(policy: str, repeat: int) -> None:
        if repeat:
            lasts[policy].append(planned[policy].loss.last)

    times = take_turns(runs, N_MINIBATCHES, n_repeats, ran)
    clocked = {policy: clock_batches(planned[policy].loss, run, n_repeats) for policy, run in runs.items()}
    for policy, by_minibatch in times.items():
        result.seconds[", ".join(map(str, (*about, policy)))] = [
            timing for timings in by_minibatch for timing in timings
        ]
        ms = 1e3 * statistics.fmean(map(statistics.median, by_minibatch))
        batches, bound = (
            statistics.fmean(getattr(last, n) for last in lasts[policy]) for n in ("batches", "lower_bound")
        )
        running = statistics.median(last.execute_ms for last in lasts[policy])
        result.add(*about, policy, batches, bound, statistics.fmean(clocked[policy]), running, ms)
    if about[-1] == "training":
        n_batches = np.array([planned[policy].n_batches for policy in runs])
        result.note(f"{', '.join(map(str, about))}: {judge(n_batches, np.array([*clocked.values()]))}")


def step(loss: Any, graphs: Sequence[Any], mode: str) -> Callable[[int], object]:
    """Make a function that runs a mini-batch by number; parameters do not change."""
    if mode == "inference":
        return lambda number: loss(graphs[number])
    return lambda number: loss.value_and_grad(graphs[number])


def clock_batches(loss: Any, run: Callable[[int], object], n_repeats: int) -> list[float]:
    """Return the total time of each mini-batch's batches, by the device's clock, in milliseconds.

    The median of each batch over the repeats is used, so that delays of single batches do not count.
    """
    found = []
    for number in range(N_MINIBATCHES):
        with loss.profile() as profile:
            for _ in range(n_repeats):
                run(number)
        ms = [[span.ms for span in call.batches if span.stage != "weights"] for call in profile.calls]
        found.append(float(np.median(ms, axis=0).sum()))
    return found


def judge(n_batches: Any, took: Any) -> str:
    """State how numbers of batches agree with times; both are [policies, mini-batches].

    >>> judge(np.array([[10], [20], [30]]), np.array([[1.1], [2.2], [3.3]]))
    'rank correlation of batches and measured times 1.00 over policies'
    """
    ranks = [
        rank_correlation(*columns) for columns in zip(n_batches.T, took.T, strict=True) if min(map(np.ptp, columns))
    ]
    if not ranks:
        return "all schedules have equally many batches"
    return f"rank correlation of batches and measured times {statistics.fmean(ranks):.2f} over policies"


def rank_correlation(one: Any, other: Any) -> float:
    """Return Spearman's coefficient; equal numbers share a rank, and not all may be equal.

    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0]))
    0.5
    """
    ranks = [(x[:, None] > x).sum(axis=1) + (x[:, None] == x).sum(axis=1) / 2 for x in (one, other)]
    return round(float(np.corrcoef(*ranks)[0, 1]), 12)
