"""Question: which variants are faster here, by how much, and does a switch that is never tried ever pay?

Each model trains, and infers, on recorded instances until `tune="auto"` has decided; what it measured is printed. Then
mini-batches run in turn as given and with each switch off that the tuner leaves alone: beside it stands the median of
the times that these take, over that of the first. Decisions of earlier runs are not used.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from functools import partial
from typing import Any

import autobatch as ab
from autobatch.cli.results import format_table
from autobatch.cli.workload import Workload, load_workload, record
from autobatch.system.cache import VARIABLE
from harness import find_data, medians, run, take_turns
from records import Findings, Settings

DATA = {"tree-lstm": "sst", "bilstm-tagger": "wikiner", "lattice-lstm": "lattice"}
NOT_TRIED: dict[str, dict[str, Any]] = {
    "joins off": {"joins": False, "sums": False}, "stacks off": {"stacks": False, "sums": False},
    "sums off": {"sums": False},
}  # fmt: skip


@dataclass(frozen=True)
class Config(Settings):
    """Mini-batches are the first ones, in file order."""

    backend: str = "cpu"
    models: tuple[str, ...] = tuple(DATA)
    dims: tuple[int, ...] = (64, 256)
    batch_size: int = 64
    minibatches: int = 8
    repeats: int = 15


def measure(config: Config) -> Findings:
    """Decide for each model, width and mode, and try the other switches."""
    seconds: dict[str, list[float]] = {}
    decided: dict[str, str] = {}
    ratios: dict[str, dict[str, float]] = {}
    for name in config.models:
        for dim in config.dims:
            workload = load_workload(name, find_data(DATA[name]), dim, config.seed)
            for training in (False, True):
                what = f"{name}, dim {dim}, {'train' if training else 'infer'}"
                loss, call = prepare(workload, config, training, threads="auto", tune="auto")
                decided[what] = decide(loss, call)
                ways: dict[str, Any] = {"as given": "off", **NOT_TRIED}
                calls = {way: prepare(workload, config, training, tune=tune)[1] for way, tune in ways.items()}
                times = take_turns(calls, config.repeats)
                seconds |= {f"{what}, {way}": one for way, one in times.items()}
                middle = medians(times)
                ratios[what] = {way: round(middle[way] / middle["as given"], 3) for way in NOT_TRIED}
    rows = [(what, *(f"{ratio:.2f}" for ratio in ratios[what].values()), decided[what]) for what in decided]
    table = format_table(("what", *NOT_TRIED, "decided"), rows)
    return Findings(seconds, {"decided": decided, "ratios": ratios}, table)


def prepare(workload: Workload, config: Config, training: bool, **options: Any) -> tuple[ab.Batched, partial[None]]:
    """Make a loss with these options, and what runs it on all mini-batches."""
    loss = ab.batched(workload.model.loss, backend=config.backend, **options)
    graphs = record(loss, workload.first(config.batch_size * config.minibatches))
    return loss, partial(run_all, loss, list(ab.minibatches(graphs, config.batch_size)), training)


def run_all(loss: ab.Batched, batches: list[Any], training: bool) -> None:
    """Run each mini-batch once."""
    for batch in batches:
        _ = loss.value_and_grad(batch) if training else loss(batch)


def decide(loss: ab.Batched, call: partial[None]) -> str:
    """Run until the loss has decided; say what, and why."""
    call()
    while not loss.settled:
        call()
    _, batches, training = call.args
    lines = str(loss.explain(batches[0], training)).splitlines()
    return next(line for line in lines if line.startswith("decided for ")).removeprefix("decided for ")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ[VARIABLE] = folder
        run(Config(), measure)
