"""Measure threads on a quiet machine and on one whose cores are busy, and check that auto notices.

A Tree-LSTM trains on recorded trees. Three variants take turns on the same mini-batches: one thread, as many threads as
cores (the default of BLAS libraries), and `threads="auto"`, which measures first. Then busy processes occupy the cores,
one each, and the variants take turns again; and once more after these processes have ended. A fourth variant, auto as
well, is created while the machine is busy. Decisions and measurements made earlier are not used.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.cli.racing import take_turns
from autobatch.cli.results import format_table
from autobatch.models.tree_lstm import TreeLSTM
from autobatch.system.processor import usable_cores
from harness import load_sst_or_listops, medians, name_of, run
from records import Findings, Settings

PHASES = ("quiet", "busy", "quiet again")
BURN = "while True: pass"


@dataclass(frozen=True)
class Config(Settings):
    """The mini-batches are the first ones of the file."""

    threads: int = usable_cores()
    backend: str = "reference"
    dims: tuple[int, ...] = (64, 256)
    batch_size: int = 64
    minibatches: int = 4
    rounds: int = 6
    """Rounds over all mini-batches, in each phase; the first one is not counted."""


def measure(config: Config) -> Findings:
    """Train with all variants in turn, in all phases, at all widths."""
    seconds: dict[str, list[float]] = {}
    rows, decided = [], dict[str, str]()
    data = load_sst_or_listops(config.seed)
    for dim in config.dims:
        model = TreeLSTM(dim=dim, rng=np.random.default_rng(config.seed), **data.sizes)
        batches = list(ab.minibatches(data.train[: config.minibatches * config.batch_size], config.batch_size))
        losses = {
            "one thread": make_loss(model, config, 1),
            f"{config.threads} threads": make_loss(model, config, config.threads),
            "auto": settle(make_loss(model, config, "auto"), batches),
        }
        for phase in PHASES:
            with burners(usable_cores() if phase == "busy" else 0):
                if phase == "busy":
                    losses["auto, made when busy"] = settle(make_loss(model, config, "auto"), batches)
                graphs = {way: [loss.record_all(batch) for batch in batches] for way, loss in losses.items()}
                steps = {way: partial(train, loss, graphs[way]) for way, loss in losses.items()}
                for way, timings in take_turns(steps, len(batches), config.rounds - 1).items():
                    seconds[f"dim {dim}, {phase}, {way}"] = [*chain(*timings)]
            for way in losses:
                if way.startswith("auto"):
                    decided[f"dim {dim}, {phase}, {way}"] = explain_threads(losses[way], batches[0])
        found = medians(seconds)
        for way in losses:
            ms = [1e3 * found.get(f"dim {dim}, {phase}, {way}", np.nan) for phase in PHASES]
            rows.append((f"dim {dim}, {way}", *("–" if np.isnan(one) else f"{one:.1f}" for one in ms)))
    title = f"{name_of(data)}, batch {config.batch_size}, training, {config.backend}; milliseconds per mini-batch\n\n"
    table = title + format_table(("way", *PHASES), rows)
    table += "\n\n" + "\n".join(f"{what}: {text}" for what, text in decided.items())
    ms_by_name = {name: round(1e3 * typical, 3) for name, typical in medians(seconds).items()}
    return Findings(seconds, {"data": name_of(data), "ms": ms_by_name, "decided": decided}, table)


def make_loss(model: TreeLSTM, config: Config, threads: int | str) -> ab.Batched:
    """Make a loss that plans every mini-batch."""
    return ab.batched(model.loss, policy="score", backend=config.backend, threads=threads, plan_cache=0)


def settle(loss: ab.Batched, batches: list[Any]) -> ab.Batched:
    """Train until the loss has decided."""
    graphs = [loss.record_all(batch) for batch in batches]
    is_settled = False
    while not is_settled:
        for batch in graphs:
            loss.value_and_grad(batch)
        is_settled = loss.settled
    return loss


def train(loss: ab.Batched, graphs: list[list[Any]], minibatch: int) -> None:
    """Train on a mini-batch by number."""
    loss.value_and_grad(graphs[minibatch])


def explain_threads(loss: ab.Batched, batch: list[Any]) -> str:
    """Return the line of `explain` about the decision."""
    lines = str(loss.explain(loss.record_all(batch), training=True)).splitlines()
    return next(line.removeprefix("threads for ") for line in lines if line.startswith("threads for "))


@contextmanager
def burners(count: int) -> Iterator[None]:
    """Run other processes that each keep a core busy."""
    started = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


if __name__ == "__main__":
    run(Config(), measure)
