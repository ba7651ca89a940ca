"""Claim: on the reference backend, at dim 64 and batch 64, agenda is at least 5 times as fast as unbatched.

All policies run the same mini-batches of recorded trees in turn. Inference computes the losses; training computes
losses and gradients and takes a step of Adam. Merging, scheduling and placing are part of every run; recording is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.cli.results import format_table
from autobatch.models.tree_lstm import TreeLSTM
from harness import Findings, Settings, load_sst_or_listops, medians, name_of, run, take_turns

REQUIRED = 5.0


@dataclass(frozen=True)
class Config(Settings):
    """Mini-batches are the first ones, in file order."""

    policies: tuple[str, ...] = ("unbatched", "depth", "agenda")
    dim: int = 64
    batch_size: int = 64
    n_minibatches: int = 4
    repeats: int = 11


def measure(config: Config) -> Findings:
    """Time all policies on all mini-batches, in both modes."""
    data = load_sst_or_listops(config.seed)
    model = TreeLSTM(dim=config.dim, rng=np.random.default_rng(config.seed), **data.sizes)
    optimizer = ab.optim.Adam(model, lr=1e-3)
    trees = data.train[: config.batch_size * config.n_minibatches]
    seconds: dict[str, list[float]] = {}
    counts: dict[str, dict[str, int]] = {}
    for mode in ("inference", "training"):
        ways: dict[str, Callable[[], object]] = {}
        for policy in config.policies:
            loss = ab.batched(model.loss, policy=policy, backend="reference", plan_cache=0)
            minibatches = list(ab.minibatches(loss.record_all(trees), config.batch_size))
            ways[f"{policy}, {mode}"] = sweep(loss, minibatches, optimizer if mode == "training" else None)
        seconds |= take_turns(ways, config.repeats)
    for policy in config.policies:
        report = ab.batched(model.loss, policy=policy).explain(trees[: config.batch_size])
        counts[policy] = {name: getattr(report, name) for name in ("nodes", "batches", "lower_bound", "launches")}
    return summarise(config, name_of(data), seconds, counts)


def sweep(loss: ab.Batched, minibatches: list[Any], optimizer: ab.optim.Adam | None) -> Callable[[], None]:
    """What runs all mini-batches once; with an optimizer, trains on them."""

    def infer() -> None:
        for batch in minibatches:
            loss(batch)

    def train() -> None:
        for batch in minibatches:
            _, grads = loss.value_and_grad(batch)
            assert optimizer is not None
            optimizer.step(grads)

    return train if optimizer else infer


def summarise(
    config: Config, data: str, seconds: dict[str, list[float]], counts: dict[str, dict[str, int]]
) -> Findings:
    """Turn seconds into trees per second, and compare with the first policy."""
    n_trees = config.batch_size * config.n_minibatches
    rate = {way: n_trees / median for way, median in medians(seconds).items()}
    rows = []
    for policy in config.policies:
        row = [policy, *(f"{counts[policy][name]:,}" for name in ("batches", "lower_bound", "launches"))]
        for mode in ("inference", "training"):
            own, first = rate[f"{policy}, {mode}"], rate[f"{config.policies[0]}, {mode}"]
            row += [f"{own:,.0f}", f"{own / first:.1f}x"]
        rows.append(row)
    header = ("policy", "batches", "bound", "launches", "trees/s, inference", "", "trees/s, training", "")
    title = (
        f"{data}, dim {config.dim}, mini-batches of {config.batch_size}, {config.threads} BLAS threads; counts are "
        f"those of inference on the first mini-batch; agenda is required to reach {REQUIRED}x\n\n"
    )
    figures = {
        "data": data,
        "trees_per_s": {way: round(r, 1) for way, r in rate.items()},
        "counts": counts,
        "required": REQUIRED,
    }
    return Findings(seconds, figures, title + format_table(header, rows))


if __name__ == "__main__":
    run(Config(), measure)
