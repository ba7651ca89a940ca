"""Do schedules with fewer batches take less time on the device? The same mini-batches under several policies."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import autobatch as ab
from autobatch.cli.measuring.racing import take_turns
from autobatch.cli.workload import Workload, load_workload, record
from gpu.check import Check, Result

POLICIES = ("agenda", "score", "learned")
MODELS = ("lattice-lstm", "tree-lstm-2type", "tree-lstm")
N_MINIBATCHES = 2
EPISODES = 300  # of learning, in place of 1000: as good on these within a batch


def time_policies(check: Check) -> Result:
    """Time inference and training, planning included, and the part of it that the backend takes."""
    columns = ("model", "dim", "mini-batch", "mode", "policy", "batches", "bound", "ms", "ms running")
    result = Result("policies in time", columns)
    sizes = check.choose([(dim, size) for size in (256, 16) for dim in (256, 64)], [(5, 3)])
    models = check.choose(MODELS, MODELS[:1])
    settings = [(model, *size) for size in sizes for model in models]
    check.measure_each(result, settings, partial(time_setting, check, result))
    return result


def time_setting(check: Check, result: Result, model: str, dim: int, size: int) -> None:
    """Time all policies on the mini-batches of a model."""
    workload = load_workload(model, None, dim, check.seed)
    losses = {policy: prepare(check, workload, policy, size) for policy in POLICIES}
    for mode in ("inference", "training"):
        time_mode(check, result, (model, dim, size, mode), losses)


def prepare(check: Check, workload: Workload, policy: str, size: int) -> tuple[Any, Sequence[Any]]:
    """A batched loss under a policy, and its recorded mini-batches; what is learned is learned on other instances."""
    loss = ab.batched(workload.model.loss, policy="agenda", backend=check.backend(), plan_cache=0)
    graphs = list(ab.minibatches(record(loss, workload.first(size * (N_MINIBATCHES + 1))), size))
    if policy == "learned":
        loss.learn_policy(graphs[N_MINIBATCHES:], seed=check.seed, episodes=check.choose(EPISODES, 5))
    else:
        loss.policy = ab.policies.get(policy)
    return loss, graphs[:N_MINIBATCHES]


def time_mode(check: Check, result: Result, about: tuple[Any, ...], losses: Mapping[str, tuple[Any, Any]]) -> None:
    """Let the policies take turns, and note what each took."""
    lasts: defaultdict[str, list[Any]] = defaultdict(list)
    runs = {policy: step(loss, graphs, about[-1]) for policy, (loss, graphs) in losses.items()}

    def ran(policy: str, repeat: int) -> None:
        if repeat:
            lasts[policy].append(losses[policy][0].last)

    times = take_turns(runs, N_MINIBATCHES, check.choose(9, 1), ran)
    for policy, by_minibatch in times.items():
        result.seconds[", ".join(map(str, (*about, policy)))] = [lap for laps in by_minibatch for lap in laps]
        ms = 1e3 * statistics.fmean(map(statistics.median, by_minibatch))
        batches, bound = (
            statistics.fmean(getattr(last, n) for last in lasts[policy]) for n in ("batches", "lower_bound")
        )
        result.add(*about, policy, batches, bound, ms, statistics.median(last.execute_ms for last in lasts[policy]))


def step(loss: Any, graphs: Sequence[Any], mode: str) -> Callable[[int], object]:
    """What runs the mini-batch of a number; parameters stay as they are."""
    if mode == "inference":
        return lambda number: loss(graphs[number])
    return lambda number: loss.value_and_grad(graphs[number])
