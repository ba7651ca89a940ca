"""Measure what a cached plan saves, what an unused cache entry costs, and what a profile costs.

A Tree-LSTM trains on recorded trees, on the reference backend. Four variants take turns on the same mini-batches, after
an untimed round: plan each mini-batch; find each plan in the cache; look up and cache each plan, but evict it before it
is needed again, as with shuffled mini-batches; and the first variant under a profile. Planning is everything before the
run: merging or cache lookup, rewriting, scheduling and placing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.cli.results import format_table
from autobatch.models.tree_lstm import TreeLSTM
from harness import load_sst_or_listops, medians, name_of, run
from records import Findings, Settings

WAYS = ("planned", "found", "kept in vain", "profiled")


@dataclass(frozen=True)
class Config(Settings):
    """The mini-batches are the first ones of the file."""

    dim: int = 64
    batch_sizes: tuple[int, ...] = (64, 256)
    n_trees: int = 2048
    policy: str = "score"
    repeats: int = 5


def measure(config: Config) -> Findings:
    """Train with all variants in turn, at all sizes."""
    data = load_sst_or_listops(config.seed)
    model = TreeLSTM(dim=config.dim, rng=np.random.default_rng(config.seed), **data.sizes)
    seconds: dict[str, list[float]] = {}
    rows, figures = [], dict[str, Any]()
    for size in config.batch_sizes:
        batches = list(ab.minibatches(data.train[: config.n_trees], size))
        sizes = {"planned": 0, "found": len(batches), "kept in vain": len(batches) - 1, "profiled": 0}
        runs = {way: make_run(model, config.policy, sizes[way], batches, way == "profiled") for way in WAYS}
        found: dict[str, list[float]] = {f"{what}, {way}": [] for way in WAYS for what in ("planning", "step")}
        for repeat in range(config.repeats + 1):
            for way, train in runs.items():
                planning, steps = train()
                if repeat:
                    found[f"planning, {way}"].append(planning)
                    found[f"step, {way}"].append(steps)
        seconds |= {f"batch {size}, {what}": times for what, times in found.items()}
        ms = {what: round(1e3 * typical, 4) for what, typical in medians(found).items()}
        figures[f"batch {size}"] = ms
        rows += [(f"batch {size}, {w}", f"{ms[f'planning, {w}']:.3f}", f"{ms[f'step, {w}']:.2f}") for w in WAYS]
    title = f"{name_of(data)}, dim {config.dim}, training; milliseconds per mini-batch\n\n"
    table = title + format_table(("way", "planning", "step"), rows)
    return Findings(seconds, {"data": name_of(data), "ms": figures}, table)


def make_run(
    model: TreeLSTM, policy: str, size: int, batches: list[Any], profiled: bool
) -> Callable[[], tuple[float, float]]:
    """Make a function that trains on all mini-batches once. It returns the mean seconds of planning, and of a step."""
    loss = ab.batched(model.loss, policy=policy, backend="reference", plan_cache=size)
    graphs = [loss.record_all(batch) for batch in batches]

    def train() -> tuple[float, float]:
        planning, start = 0.0, time.perf_counter()
        taken: AbstractContextManager[Any] = loss.profile() if profiled else nullcontext()
        with taken:
            for batch in graphs:
                loss.value_and_grad(batch)
                assert loss.last is not None
                planning += loss.last.record_ms + loss.last.schedule_ms + loss.last.place_ms
        return planning / 1e3 / len(graphs), (time.perf_counter() - start) / len(graphs)

    return train


if __name__ == "__main__":
    run(Config(), measure)
