"""Time several implementations fairly on the same mini-batches.

The machine's speed drifts, so the implementations take turns on every mini-batch, and the median of the repetitions
counts. Their order is shuffled each time, so that no implementation is always slowed by the caches that another one
leaves behind. Compilation and the growth of buffers happen in an untimed first round; the number of threads is chosen
before it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.cli.results import Tally
from autobatch.cli.workload import Workload, record
from autobatch.schedule import Policy
from autobatch.system.background import wait_for_all, waiting_for_code

MODES = ("infer", "train")


@dataclass(frozen=True)
class Timing:
    """The times and counts of a policy, as means over the mini-batches."""

    policy: str
    backend: str
    ms: float
    """Per mini-batch: merging, scheduling, placing and running; in mode train also the optimizer step."""
    instances_per_s: float
    counts: dict[str, float]


def race(
    workload: Workload,
    policies: Sequence[str | Policy],
    backend: str,
    mode: str,
    batch_size: int,
    n_minibatches: int,
    n_repeats: int,
    step_done: Callable[[str], None] = lambda policy: None,
) -> list[Timing]:
    """Time the first mini-batches of the data under each policy.

    Args:
        workload: the model and its data; mode train changes the model's parameters.
        policies: the policies, or their names.
        backend: name of the backend.
        mode: "infer" computes losses; "train" losses, gradients and a step of Adam.
        batch_size: instances per mini-batch.
        n_minibatches: number of mini-batches, in file order.
        n_repeats: number of timed rounds over all of them.
        step_done: called with the policy's name after each of (n_repeats + 1) × policies × n_minibatches runs.

    Raises:
        DataError: the data has too few instances.
    """
    instances = workload.first(batch_size * n_minibatches)
    named = {policy if isinstance(policy, str) else policy.name: policy for policy in policies}
    runs = {name: _make_run(workload, policy, backend, mode, instances, batch_size) for name, policy in named.items()}
    tallies = {name: Tally() for name in named}

    def ran(policy: str, repeat: int) -> None:
        if repeat == 0:
            tallies[policy].add(runs[policy][0].last)
        step_done(policy)

    times = take_turns({policy: run for policy, (_, run) in runs.items()}, n_minibatches, n_repeats, ran)
    return [_summarise(runs[name][0], times[name], batch_size, tallies[name]) for name in named]


@waiting_for_code()
def take_turns(
    runs: Mapping[str, Callable[[int], object]],
    n_minibatches: int | Mapping[str, int],
    n_repeats: int,
    ran: Callable[[str, int], None] = lambda name, repeat: None,
) -> dict[str, list[list[float]]]:
    """Time several implementations in turn on each mini-batch, in every round.

    Args:
        runs: by name, a function that runs the mini-batch of a given number.
        n_minibatches: number of mini-batches, or by name the number of first ones to run.
        n_repeats: number of timed rounds, after an untimed one.
        ran: called after each run with its name and the number of the round, 0 for the untimed one.

    Returns:
        By name, for each mini-batch, the seconds of its timed runs.
    """
    wait_for_all()
    rng = np.random.default_rng(0)
    limits = dict.fromkeys(runs, n_minibatches) if isinstance(n_minibatches, int) else n_minibatches
    times: dict[str, list[list[float]]] = {name: [[] for _ in range(limits[name])] for name in runs}
    for repeat in range(n_repeats + 1):
        for minibatch in range(max(limits.values())):
            for name in rng.permutation([name for name in runs if minibatch < limits[name]]).tolist():
                start = time.perf_counter()
                runs[name](minibatch)
                seconds = time.perf_counter() - start
                if repeat:
                    times[name][minibatch].append(seconds)
                ran(name, repeat)
    return times


def time_ways(ways: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Time functions without mini-batches `repeats` times each, in turn; return the seconds by name."""
    timed = take_turns({name: partial(_ignore, way) for name, way in ways.items()}, 1, repeats)
    return {name: seconds for name, (seconds,) in timed.items()}


def _ignore(way: Callable[[], object], minibatch: int) -> None:
    way()


def _make_run(
    workload: Workload, policy: str | Policy, backend: str, mode: str, instances: Sequence[Any], batch_size: int
) -> tuple[Any, Callable[[int], None]]:
    """Record the instances for one policy; return the batched loss, and a function that plans and runs a mini-batch."""
    # Rounds repeat the mini-batches, and planning is part of the timed run, so plans must not be cached.
    loss = workload.batched("loss", policy, backend, plan_cache=0)
    graphs = record(loss, instances)
    minibatches = [graphs[start : start + batch_size] for start in range(0, len(graphs), batch_size)]
    optimizer = ab.optim.Adam(workload.model, lr=1e-3)

    def infer(number: int) -> None:
        loss(minibatches[number])

    def train(number: int) -> None:
        _, grads = loss.value_and_grad(minibatches[number])
        optimizer.step(grads)

    # The number of threads is measured on runs; it must be chosen before the first timed one.
    run, is_choosing = train if mode == "train" else infer, workload.threads == "auto"
    while is_choosing:
        for number in range(len(minibatches)):
            run(number)
        is_choosing = not loss.settled
    return loss, run


def _summarise(batched: Any, seconds: Sequence[Sequence[float]], batch_size: int, tally: Tally) -> Timing:
    mean = statistics.fmean(statistics.median(repeats) for repeats in seconds)
    return Timing(
        policy=batched.policy.name,
        backend=batched.backend.name,
        ms=1e3 * mean,
        instances_per_s=batch_size / mean,
        counts=tally.means(),
    )
