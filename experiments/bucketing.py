"""Measure what bucketing by node count saves, and at which width it stops mattering.

A Tree-LSTM trains for an epoch on recorded trees in mini-batches that are shuffled, or bucketed by node count within
windows. Batches and launches do not depend on the machine. Speed is relative to shuffled mini-batches, from medians of
rounds in which all variants take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.cli.results import format_table
from autobatch.models.tree_lstm import TreeLSTM
from harness import load_sst_or_listops, medians, name_of, run, take_turns
from records import Findings, Settings


@dataclass(frozen=True)
class Config(Settings):
    """The trees are the first ones of the file; `windows` counts mini-batches, and 0 means shuffled."""

    dims: tuple[int, ...] = (64, 256)
    batch_sizes: tuple[int, ...] = (64, 256)
    windows: tuple[int, ...] = (0, 10, 100)
    n_trees: int = 2048
    repeats: int = 5


def measure(config: Config) -> Findings:
    """Train an epoch with all variants in turn, at all sizes."""
    data = load_sst_or_listops(config.seed)
    seconds: dict[str, list[float]] = {}
    figures: dict[str, dict[str, float]] = {}
    for dim in config.dims:
        model = TreeLSTM(dim=dim, rng=np.random.default_rng(config.seed), **data.sizes)
        loss, optimizer = ab.batched(model.loss, plan_cache=0), ab.optim.Adam(model, lr=1e-3)
        graphs = loss.record_all(data.train[: config.n_trees])
        for size in config.batch_sizes:
            epochs = {window: cut(graphs, size, window, config.seed) for window in config.windows}
            names = {window: f"dim {dim}, batch {size}, {describe(window)}" for window in config.windows}
            times = take_turns(
                {names[window]: sweep(loss, optimizer, epochs[window]) for window in config.windows}, config.repeats
            )
            seconds |= times
            typical = medians(times)
            for window in config.windows:
                figures[names[window]] = {
                    **count(loss, epochs[window]),
                    "speed": round(typical[names[0]] / typical[names[window]], 3),
                }
    rows = [(what, f"{f['batches']:,.1f}", f"{f['launches']:,.0f}", f"{f['speed']:.2f}") for what, f in figures.items()]
    title = f"{name_of(data)}, {config.n_trees} trees an epoch; per mini-batch, forward\n\n"
    table = format_table(("training", "batches", "launches", "speed"), rows)
    return Findings(seconds, {"data": name_of(data), "ways": figures}, title + table)


def describe(window: int) -> str:
    """Name a way of dividing an epoch."""
    return f"bucketed, window {window}" if window else "shuffled"


def cut(graphs: list[ab.Graph], size: int, window: int, seed: int) -> list[list[ab.Graph]]:
    """Return the mini-batches of an epoch."""
    rng = np.random.default_rng(seed)
    if not window:
        return list(ab.minibatches(graphs, size, rng))
    return list(ab.minibatches(graphs, size, rng, bucket_by="nodes", window=window))


def sweep(loss: ab.Batched, optimizer: Any, batches: list[list[ab.Graph]]) -> Callable[[], None]:
    """Make a function that trains on all mini-batches."""

    def train() -> None:
        for batch in batches:
            _, grads = loss.value_and_grad(batch)
            optimizer.step(grads)

    return train


def count(loss: ab.Batched, batches: list[list[ab.Graph]]) -> dict[str, float]:
    """Return the mean number of batches and launches per mini-batch, forward."""
    reports = [loss.explain(batch) for batch in batches]
    return {name: float(np.mean([getattr(r, name) for r in reports])) for name in ("batches", "launches")}


if __name__ == "__main__":
    run(Config(), measure)
