"""Measure how much faster several processes train, and whether shares of equal cost keep all of them busy.

Processes of one thread each train together on the first mini-batches of recorded graphs: a group of each size stays
alive, and the groups take turns on all mini-batches. A step divides a mini-batch, plans and runs the process's share,
adds up the gradients over all processes and takes a step of Adam. A Tree-LSTM of PyTorch modules batched by autobatch
does the same under DistributedDataParallel, where each process has every n-th instance.

The part `shares` divides mini-batches among more processes than there are, by count (in the order of the instances) and
by predicted cost (`ab.distributed.spread`). It reports the slowest share divided by the mean, for the predicted cost
over an epoch, and for the measured time of each share, run alone by one process.

    python experiments/data_parallel.py parts=tree-lstm,shares processes=1,2,4 dim=64 turns=3
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

import autobatch as ab
from autobatch.errors import AutobatchError
from digest import STEP
from harness import run
from records import Findings, Settings
from table import Table
from teams import Step, Team, TorchTrainer, Trainer, race, stage_seconds, step_seconds

TORCH, SHARES = "torch", "shares"
TRAINED = ("tree-lstm", "lattice-lstm")
DIVIDED = ("tree-lstm", "lattice-lstm", "graph-network")
NAMES = {
    "tree-lstm": "trees", "lattice-lstm": "lattices", "graph-network": "molecules",
    TORCH: "trees, modules of PyTorch",
}  # fmt: skip
COUNT, COST = "by count", "by cost"
MODULES = (*STEP, "autobatch.distributed", "autobatch.models.graph_network", "autobatch.torch")
N_DRAWN = 2000  # instances to divide, at most


@dataclass(frozen=True)
class Config(Settings):
    """Training uses the first mini-batches; those that are divided into shares are drawn."""

    parts: tuple[str, ...] = (*TRAINED, TORCH, SHARES)
    processes: tuple[int, ...] = (1, 2)
    dim: int = 256
    batch_size: int = 256
    minibatches: int = 4
    turns: int = 21
    share_processes: tuple[int, ...] = (2, 4, 8, 16)
    share_minibatches: int = 2
    """Number of mini-batches whose shares are run."""
    share_repeats: int = 5


def measure(config: Config) -> Iterator[Findings]:
    """Measure every part.

    Raises:
        AutobatchError: a part is unknown.
    """
    if unknown := [part for part in config.parts if part not in (*TRAINED, TORCH, SHARES)]:
        raise AutobatchError(f"parts must be some of {', '.join((*TRAINED, TORCH, SHARES))}, got {unknown[0]!r}.")
    for part in config.parts:
        yield measure_shares(config) if part == SHARES else measure_steps(config, part)


def measure_steps(config: Config, part: str) -> Findings:
    """Let groups of every size train by turns."""
    sizes = config.dim, config.batch_size, config.minibatches, config.seed
    with ExitStack() as stack:
        teams = {}
        for n in config.processes:
            team = Team(n, TorchTrainer, *sizes) if part == TORCH else Team(n, Trainer, part, *sizes)
            teams[str(n)] = stack.enter_context(team)
        turns = race(teams, config.turns)
    figures = {"model": part, "dim": config.dim, "processes": compare(turns, config.batch_size)}
    seconds = {
        f"{n} processes, process {rank}": [step["step"] for turn in found for step in turn[rank]]
        for n, found in turns.items()
        for rank in range(int(n))
    }
    return Findings(seconds, figures, table_of_steps({part: figures}).text(), part)


def compare(turns: Mapping[str, Sequence[Sequence[Sequence[Step]]]], size: int) -> dict[str, Any]:
    """Return figures by number of processes; the speed-up is the median over turns, relative to the first number."""
    steps = {n: [step_seconds(turn) for turn in found] for n, found in turns.items()}
    first = next(iter(steps.values()))
    return {
        n: {
            "step_ms": 1e3 * median(timings),
            "instances_per_s": size / median(timings),
            "speed_up": median(one / own for one, own in zip(first, timings, strict=True)),
            "stages_ms": {stage: 1e3 * seconds for stage, seconds in stage_seconds(turns[n]).items()},
        }
        for n, timings in steps.items()
    }


def measure_shares(config: Config) -> Findings:
    """Divide mini-batches of every model, and run the shares."""
    seconds: dict[str, list[float]] = {}
    figures: dict[str, Any] = {}
    for model in DIVIDED:
        trainer = Trainer(0, 1, model, config.dim, config.batch_size, -(-N_DRAWN // config.batch_size), config.seed)
        size, rng = min(config.batch_size, len(trainer.graphs)), np.random.default_rng(config.seed)
        drawn = list(ab.minibatches(range(len(trainer.graphs)), size, rng))
        batches = [np.array(batch) for batch in drawn if len(batch) == size]
        for n in config.share_processes:
            found = {}
            for way in (COUNT, COST):
                divided = [divide(trainer.costs[batch], n, way) for batch in batches]
                loads = [
                    [float(trainer.costs[batch[own]].sum()) for own in some]
                    for batch, some in zip(batches, divided, strict=True)
                ]
                few = list(zip(batches, divided, strict=True))[: config.share_minibatches]
                timings = [time_shares(trainer, [batch[own].tolist() for own in some], config.share_repeats)
                        for batch, some in few]  # fmt: skip
                found[way] = {"predicted": fmean(map(unevenness, loads)), "measured": fmean(map(unevenness, timings))}
                seconds |= {f"{model}, {n} processes, {way}, mini-batch {k}": one for k, one in enumerate(timings)}
            figures[f"{model}, {n}"] = found
    return Findings(seconds, figures, table_of_shares(figures).text(), SHARES)


def divide(costs: NDArray[np.float64], n: int, way: str) -> list[list[int]]:
    """Divide the positions of a mini-batch among n processes, by count or by cost.

    >>> divide(np.array([5.0, 1.0, 1.0, 1.0, 4.0, 0.0]), 2, "by count")
    [[0, 1, 2], [3, 4, 5]]
    """
    if way == COST:
        return ab.distributed.spread(costs, n)
    return [part.tolist() for part in np.array_split(np.arange(len(costs)), n)]


def unevenness(loads: Sequence[float]) -> float:
    """Return the largest load divided by the mean: 1 if all are equal.

    >>> unevenness([3.0, 1.0])
    1.5
    """
    return max(loads) / fmean(loads)


def time_shares(trainer: Trainer, shares: Sequence[Sequence[int]], repeats: int) -> list[float]:
    """Return the median seconds of each share, run alone; a first round is not counted."""
    rounds = [trainer.time_alone(shares) for _ in range(repeats + 1)][1:]
    return [median(timings) for timings in zip(*rounds, strict=True)]


def table_of_steps(figures: Mapping[str, Mapping[str, Any]]) -> Table:
    """Show a line for each model and number of processes."""
    stages = list(dict.fromkeys(
        stage for found in figures.values() for one in found["processes"].values() for stage in one["stages_ms"]
    ))  # fmt: skip
    rows = []
    for part, found in figures.items():
        for n, one in found["processes"].items():
            ms = (f"{one['stages_ms'][stage]:.1f}" if stage in one["stages_ms"] else "–" for stage in stages)
            rates = f"{one['instances_per_s']:,.0f}", f"{one['speed_up']:.2f}", f"{one['step_ms']:.1f}"
            rows.append((NAMES[part], n, *rates, *ms))
    return Table("", ("", "processes", "instances/s", "speed-up", "step, ms", *stages), rows)


def table_of_shares(figures: Mapping[str, Any]) -> Table:
    """Show a line for each model and number of processes."""
    rows = []
    for name, found in figures.items():
        model, n = name.split(", ")
        rows.append((
            NAMES[model], n, *(f"{found[way][what]:.2f}" for what in ("predicted", "measured") for way in (COUNT, COST))
        ))  # fmt: skip
    header = [f"{what}, {way}" for what in ("predicted cost", "measured time") for way in (COUNT, COST)]
    return Table("", ("", "processes", *header), rows)


if __name__ == "__main__":
    run(Config(), measure, modules=MODULES)
