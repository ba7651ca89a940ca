"""Measure shuffled epochs whose mini-batches are planned while others run (`ahead=2`), on one core and on two.

Every mini-batch is new, so its plan is not cached. Results are milliseconds per mini-batch of an epoch of
`ab.minibatches`, including the optimizer in training, from medians of rounds in which the variants take turns; and the
part of the time of planning that is hidden. The kernels use one thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.cli.results import format_table
from autobatch.models import find_model
from harness import find_data, run, take_turns
from recording import MODELS
from records import Findings, Settings

AHEAD = 2
CORES = (1, 2)
INFERENCE, TRAINING = "inference", "training"
TITLES = ("", "", "cores", "planning, ms", "in the call, ms", "ahead, ms", "ratio", "hidden")


@dataclass(frozen=True)
class Config(Settings):
    """Models have width `dim`; an epoch has `n_batches` mini-batches of `batch_size`."""

    dim: int = 64
    batch_size: int = 64
    n_batches: int = 16
    repeats: int = 11


def measure(config: Config) -> Iterator[Findings]:
    """Time the epochs of each model."""
    usable = sorted(os.sched_getaffinity(0))
    for name, folder in MODELS.items():
        spec, rng = find_model(name), np.random.default_rng(config.seed)
        data = spec.load(find_data(folder) or spec.default_data, rng)
        epochs = Epochs(spec.build(data, config.dim, rng), data.train, config)
        variants = {f"{v[0]}, {v[1]} cores, {v[2]} ahead": v for v in product((INFERENCE, TRAINING), CORES, (0, AHEAD))}
        seconds = take_turns({n: partial(epochs.run, usable, *v) for n, v in variants.items()}, config.repeats)
        os.sched_setaffinity(0, usable)
        ms = {variants[n]: 1e3 * median(found) / config.n_batches for n, found in seconds.items()}
        rows, figures = [], dict[str, dict[str, float]]()
        for kind, cores in product((INFERENCE, TRAINING), CORES):
            plan, now, ahead = median(epochs.planning[kind]), ms[kind, cores, 0], ms[kind, cores, AHEAD]
            shares = f"{now / ahead:.2f}", f"{(now - ahead) / plan:.0%}"
            rows.append([name, kind, str(cores), *(f"{x:.2f}" for x in (plan, now, ahead)), *shares])
            figures[f"{kind}, {cores} cores"] = {"planning": plan, "in the call": now, "ahead": ahead}
        yield Findings(seconds, {"ms": figures}, format_table(TITLES, rows), part=name)


class Epochs:
    """Epochs of a model over the first mini-batches of its data.

    Attributes:
        planning: the milliseconds of planning in each call that plans its mini-batch itself, by mode.
    """

    def __init__(self, model: Any, instances: Sequence[Any], config: Config) -> None:
        self._loss = ab.batched(model.loss, threads=config.threads, plan_cache=0)
        self._graphs = self._loss.record_all(instances[: config.batch_size * config.n_batches])
        self._optimizer, self._config = ab.optim.Adam(model, lr=1e-4), config
        self._rng = np.random.default_rng(config.seed)
        self.planning: dict[str, list[float]] = {INFERENCE: [], TRAINING: []}

    def run(self, usable: Sequence[int], kind: str, cores: int, ahead: int) -> None:
        """Run a shuffled epoch on some of the usable cores."""
        os.sched_setaffinity(0, usable[:cores])
        for batch in ab.minibatches(self._graphs, self._config.batch_size, self._rng, ahead=ahead):
            if kind == TRAINING:
                self._optimizer.step(self._loss.value_and_grad(batch)[1])
            else:
                self._loss(batch)
            if not ahead:
                last = self._loss.last
                assert last is not None
                self.planning[kind].append(sum(last.ms[stage] for stage in ("merge", "rewrite", "schedule", "place")))


if __name__ == "__main__":
    run(Config(), measure)
