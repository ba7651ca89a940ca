"""Question: which variants are faster here, by how much, and does the cost model foresee it?

Each model trains, and infers, on recorded instances until `tune="auto"` has decided; what it measured is printed. Then
the cost model is fitted to all of that, and compared with it: the median of predicted over measured times, either way
up. Decisions and measurements of earlier runs are not used.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.cli.results import format_table
from autobatch.cli.workload import load_workload, record
from autobatch.system.cache import VARIABLE
from autobatch.tuning import CostModel, store
from harness import Findings, Settings, find_data, run

DATA = {"tree-lstm": "sst", "bilstm-tagger": "wikiner", "lattice-lstm": "lattice"}


@dataclass(frozen=True)
class Config(Settings):
    """Mini-batches are the first ones, in file order."""

    backend: str = "cpu"
    models: tuple[str, ...] = tuple(DATA)
    dims: tuple[int, ...] = (64, 256)
    batch_size: int = 64
    minibatches: int = 8


def measure(config: Config) -> Findings:
    """Decide for each model, width and mode."""
    decided: dict[str, Any] = {}
    rows = []
    for name in config.models:
        for dim in config.dims:
            workload = load_workload(name, find_data(DATA[name]), dim, config.seed)
            loss = ab.batched(workload.model.loss, backend=config.backend, threads="auto", tune="auto")
            graphs = record(loss, workload.first(config.batch_size * config.minibatches))
            batches = list(ab.minibatches(graphs, config.batch_size))
            for training in (False, True):
                settle(loss, batches, training)
                lines = str(loss.explain(batches[0], training)).splitlines()
                why = next(line for line in lines if line.startswith("decided for "))
                what = f"{name}, dim {dim}, {'train' if training else 'infer'}"
                decided[what] = why.removeprefix("decided for ")
                rows.append((what, decided[what]))
    measured = store.find_measured(config.backend)
    model = CostModel.of(config.backend, measured)
    figures: dict[str, Any] = {
        "decided": decided,
        "weights": model.weights,
        "start": CostModel.of(config.backend).weights,
    }
    table = format_table(("what", "decided"), rows)
    for name, one in (("fitted here", model), ("as it starts", CostModel.of(config.backend))):
        ratios = [sum(w * x for w, x in zip(one.weights, f, strict=True)) / seconds for f, seconds in measured]
        off = float(np.median([max(ratio, 1 / ratio) for ratio in ratios])) if ratios else 1.0
        figures[f"off, {name}"] = round(off, 3)
        a, b, c = one.weights
        table += f"\ncost model {name}: a {a:.2f}, b {1e6 * b:.2f} us, c {1e9 * c:.3f} ns; off by a factor of {off:.2f}"
    return Findings({}, figures, table)


def settle(loss: ab.Batched, batches: list[Any], training: bool) -> None:
    """Run until the loss has decided."""
    while True:
        for batch in batches:
            _ = loss.value_and_grad(batch) if training else loss(batch)
        if loss.settled:
            return


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ[VARIABLE] = folder
        run(Config(), measure)
