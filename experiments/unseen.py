"""Measure mini-batches that are recorded in the call, compared with graphs that were recorded ahead.

Each call has other instances, drawn at random, so schedules and plans are not cached either. The models are our own
Tree-LSTM, lattices and a tagger, in inference and training, and the Tree-LSTM as PyTorch modules. Results are instances
per second, from medians of rounds in which all variants take turns on the same mini-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import median
from typing import Any

import numpy as np
import torch

import autobatch as ab
import autobatch.torch as abt
from autobatch.cli.results import format_table
from autobatch.models import find_model
from autobatch.models.tree_lstm import TreeLSTM
from harness import find_data, load_sst_or_listops, run, take_turns
from modules_of_torch import make_modules, step_of
from recording import MODELS
from records import Findings, Settings

INFERENCE, TRAINING = "inference", "training"
NOW, AHEAD = "recorded in the call", "recorded ahead"
TITLES = ("", "", NOW, AHEAD, "ratio")


@dataclass(frozen=True)
class Config(Settings):
    """Models have width `dim`; mini-batches of `batch_size` are drawn from the first `n_instances`."""

    dim: int = 64
    batch_size: int = 64
    n_instances: int = 640
    repeats: int = 48


def measure(config: Config) -> Iterator[Findings]:
    """Time the variants for each model, and for the modules."""
    torch.set_num_threads(config.threads)
    for name, folder in MODELS.items():
        spec, rng = find_model(name), np.random.default_rng(config.seed)
        data = spec.load(find_data(folder) or spec.default_data, rng)
        model: Any = spec.build(data, config.dim, rng)
        loss = ab.batched(model.loss, threads=config.threads)
        yield time(config, name, loss, data.train, {INFERENCE: loss, TRAINING: loss.value_and_grad})
    yield time_modules(config)


def time_modules(config: Config) -> Findings:
    """Time the PyTorch modules."""
    data = load_sst_or_listops(config.seed)
    own = TreeLSTM(dim=config.dim, rng=np.random.default_rng(config.seed), **data.sizes)
    model = make_modules(own.state_dict(), data.sizes, config.dim, "autobatch")
    loss = abt.batched(model.loss, threads=config.threads)

    def infer(batch: Any) -> None:
        with torch.no_grad():
            loss(batch)

    steps = {INFERENCE: infer, TRAINING: lambda batch: step_of(model, loss, batch)()}
    return time(config, "tree-lstm-of-modules", loss, data.train, steps)


def time(
    config: Config, name: str, loss: Any, instances: Sequence[Any], steps: dict[str, Callable[[Any], Any]]
) -> Findings:
    """Time each step on instances, and on their graphs."""
    given = list(instances[: config.n_instances])
    graphs, rng = loss.record_all(given), np.random.default_rng(config.seed)
    drawn = [rng.permutation(len(given))[: config.batch_size] for _ in range(config.repeats)]

    def way(step: Callable[[Any], Any], things: Sequence[Any]) -> Callable[[], Any]:
        left = cycle(drawn)
        return lambda: step([things[k] for k in next(left)])

    ways = {
        f"{name}, {of}": way(step, things)
        for name, step in steps.items()
        for of, things in ((NOW, given), (AHEAD, graphs))
    }
    seconds = take_turns(ways, config.repeats)
    rate = {name: config.batch_size / median(found) for name, found in seconds.items()}
    rows = []
    for step in steps:
        now, ahead = rate[f"{step}, {NOW}"], rate[f"{step}, {AHEAD}"]
        rows.append([name, step, f"{now:,.0f}", f"{ahead:,.0f}", f"{now / ahead:.2f}"])
    return Findings(seconds, {"a second": rate}, format_table(TITLES, rows), part=name)


if __name__ == "__main__":
    run(Config(), measure)
