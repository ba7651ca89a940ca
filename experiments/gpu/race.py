"""Time steps compared with PyTorch on the same GPU, and measure the host's part of them.

Our mini-batches are recorded in each step, planned in each step, planned while the step before runs, or have cached
plans. They take turns with the models
that are batched by hand in `baselines`: merged in each step, merged ahead, and replayed as a CUDA graph. Training ends
with a step of Adam. Parameters are on the GPU; the host waits for it once after several steps.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import repeat
from typing import Any, NamedTuple

import autobatch as ab
from autobatch.cli.gpu.check import Check, Result
from autobatch.cli.racing import take_turns
from autobatch.cli.workload import Workload, load_workload, record

MODES = ("infer", "train")
PARTS = ("record", "schedule", "place", "execute")  # of `loss.last`
SETTINGS = [
    ("tree-lstm", 256, 256),
    ("lattice-lstm", 256, 256),
    ("tree-lstm", 64, 256),
    ("bilstm-tagger", 256, 256),
    ("tree-lstm", 1024, 256),
    ("tree-lstm", 256, 1),
    ("tree-lstm", 256, 4096),
    ("tree-lstm", 256, 16),
    ("lattice-lstm", 64, 64),
    ("tree-lstm", 64, 4096),
    ("tree-lstm", 64, 1),
    ("lattice-lstm", 1024, 64),
    ("tree-lstm", 1024, 1),
    ("tree-lstm", 1024, 4096),
]
"""Model, dim and instances of a mini-batch, the most important first."""
N_MINIBATCHES = 2
SMALL = 256  # instances; mini-batches up to this size are also recorded in each step, and timed more often
LR = 1e-4
N_AHEAD = 2  # mini-batches that are planned while one runs
IN_A_ROW = 4  # steps until the host waits for the device: it may prepare a step while the last one runs
AHEAD = ("merged ahead", "CUDA graph")
"""PyTorch variants whose mini-batches are prepared ahead of time; the others merge prepared instances in each step."""


class Way(NamedTuple):
    """Functions that infer and train on a mini-batch by number; and the batched loss, if it is autobatch's."""

    infer: Callable[[int], object]
    train: Callable[[int], object]
    loss: Any = None


def race(check: Check) -> Result:
    """Time as many settings as there is time for."""
    columns = ("model", "dim", "mini-batch", "mode", "way", "ms", "x merging", "x merged ahead", *PARTS)
    title = "ms per step; how many times as fast as the fastest of PyTorch; of autobatch, ms of the parts of a step"
    result = Result(title, columns)
    settings = check.choose(SETTINGS, [(model, 5, 3) for model in ("tree-lstm", "lattice-lstm", "bilstm-tagger")])
    check.measure_each(result, settings, partial(race_setting, check, result))
    return result


def race_setting(check: Check, result: Result, model: str, dim: int, size: int) -> None:
    """Time all implementations of one model at one size."""
    workload = load_workload(model, None, dim, check.seed)
    instances = draw(workload, size * N_MINIBATCHES)
    theirs = their_ways(check, workload, instances, size, result)
    workload.model.to(check.device)
    ways = our_ways(check, workload, instances, size) | theirs
    for mode in MODES:
        time_ways(check, result, (model, dim, size, mode), ways)


def in_a_row(check: Check, run: Callable[[int], object]) -> Callable[[int], None]:
    """Run a mini-batch several times, and wait once."""

    def run_and_wait(number: int) -> None:
        for _ in range(IN_A_ROW):
            run(number)
        check.wait()

    return run_and_wait


def draw(workload: Workload, n_instances: int) -> list[Any]:
    """Return the first instances; if there are fewer, they are repeated."""
    items = workload.up_to(n_instances)
    return [items[number % len(items)] for number in range(n_instances)]


def our_ways(check: Check, workload: Workload, instances: Sequence[Any], size: int) -> dict[str, Way]:
    """Make autobatch's variants: planned in each step or ahead of it, with cached plans and, for small mini-batches,
    recorded in each step.
    """
    planned, cached, crowded = (
        ab.batched(workload.model.loss, backend=check.backend(blocks=blocks), plan_cache=n_plans)
        for n_plans, blocks in ((0, 1), (2 * N_MINIBATCHES, 1), (2 * N_MINIBATCHES, 2))
    )
    ways = {
        "recorded graphs": our_way(workload, planned, record(planned, instances), size),
        "planned ahead": our_way(workload, planned, record(planned, instances), size, ahead=N_AHEAD),
        "cached plans": our_way(workload, cached, record(cached, instances), size),
        "cached plans, two blocks": our_way(workload, crowded, record(crowded, instances), size),
    }
    if size <= SMALL:
        ways["recorded afresh"] = our_way(workload, planned, instances, size)
    return {f"autobatch, {name}": way for name, way in ways.items()}


def our_way(workload: Workload, loss: Any, instances: Sequence[Any], size: int, ahead: int = 0) -> Way:
    """Run autobatch on instances or graphs; training returns nothing to the host, as in PyTorch's variants.

    With `ahead`, every row of steps (`IN_A_ROW`) plans its own mini-batches: none is planned before the first step.
    """
    minibatches, optimizer = list(ab.minibatches(instances, size)), ab.optim.Adam(workload.model, lr=LR)
    row: Iterator[Any] = iter(())

    def take(number: int) -> Any:
        nonlocal row
        if not ahead:
            return minibatches[number]
        found = next(row, None)
        if found is None:
            row = ab.plan_ahead(repeat(minibatches[number], IN_A_ROW), ahead)
            found = next(row)
        return found

    def train(number: int) -> None:
        _, gradients = loss.value_and_grad(take(number))
        optimizer.step(gradients)

    return Way(lambda number: loss(take(number)), train, loss)


def their_ways(check: Check, workload: Workload, instances: Sequence[Any], size: int, result: Result) -> dict[str, Way]:
    """Make all variants of PyTorch that run here; notes explain why others do not."""
    if find_spec("torch") is None:
        result.note("PyTorch is left out, because it is not installed")
        return {}
    from gpu import torch_ways

    if check.is_gpu and not torch_ways.has_gpu():
        result.note("PyTorch is left out, because it finds no GPU: torch.cuda.is_available() is false")
        return {}
    if difference := torch_ways.find_difference(workload, instances, check.is_gpu):
        result.failures.append(f"{workload.spec.name}, dim {workload.dim}: {difference}")
    runs, reasons = torch_ways.make_ways(workload, instances, size, LR, check.is_gpu)
    for reason in reasons:
        result.note(reason)
    return {f"PyTorch, {name}": Way(*modes) for name, modes in runs.items()}


def time_ways(check: Check, result: Result, about: tuple[Any, ...], ways: Mapping[str, Way]) -> None:
    """Let all implementations take turns, and report their times."""
    *_, size, mode = about
    parts: dict[str, list[tuple[float, ...]]] = {name: [] for name in ways}

    def ran(name: str, repeat: int) -> None:
        loss = ways[name].loss
        if repeat and loss is not None:
            parts[name].append(tuple(getattr(loss.last, f"{part}_ms") for part in PARTS))

    runs = {name: in_a_row(check, getattr(way, mode)) for name, way in ways.items()}
    times = take_turns(runs, N_MINIBATCHES, check.choose(9 if size <= SMALL else 3, 1), ran)
    ms = {name: 1e3 / IN_A_ROW * statistics.fmean(map(statistics.median, timings)) for name, timings in times.items()}
    theirs = {name: took for name, took in ms.items() if ways[name].loss is None}
    merging = min((took for name, took in theirs.items() if not name.endswith(AHEAD)), default=None)
    ahead = min((took for name, took in theirs.items() if name.endswith(AHEAD)), default=None)
    for name, by_minibatch in times.items():
        result.seconds[", ".join(map(str, (*about, name)))] = [timing for timings in by_minibatch for timing in timings]
        speeds = (None if fastest is None else fastest / ms[name] for fastest in (merging, ahead))
        medians = map(statistics.median, zip(*parts[name], strict=True)) if parts[name] else [None] * len(PARTS)
        result.add(*about, name, ms[name], *speeds, *medians)
