"""Question: what does recording cost a node, beside the same Python with empty functions in the place of cells?

The functions walk through trees, lattices and sentences, and call cells. In the first way these are recorded, as one
graph of the mini-batch; in the second `record_all` makes a graph of each instance. In the third every cell is a Python
function that returns an object made before: what is left is the user's own Python. Nanoseconds a node, by medians of
rounds in which all ways take turns.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.cli.results import format_table
from autobatch.models import find_model
from autobatch.trace.entries import patches_in
from harness import find_data, run, take_turns
from records import Findings, Settings

MODELS = {"tree-lstm": "sst", "lattice-lstm": "lattice", "bilstm-tagger": "wikiner"}
RECORDED, EACH, EMPTY = "recorded", "recorded, a graph each", "empty functions"
TITLES = ("", "nodes", RECORDED, EACH, EMPTY, "recorded / empty", "a graph each / empty")


@dataclass(frozen=True)
class Config(Settings):
    """Models have width `dim`, and mini-batches of `batch` instances."""

    dim: int = 64
    batch: int = 64
    repeats: int = 51


def measure(config: Config) -> Iterator[Findings]:
    """Time the ways for each model."""
    for name, folder in MODELS.items():
        spec, rng = find_model(name), np.random.default_rng(config.seed)
        data = spec.load(find_data(folder) or spec.default_data, rng)
        model, instances = spec.build(data, config.dim, rng), data.items[: config.batch]
        loss = ab.batched(model.loss)
        n_nodes = loss.recorder.record(instances).n_nodes
        ways: dict[str, Callable[[], Any]] = {
            RECORDED: lambda loss=loss, xs=instances: loss.recorder.record(xs),
            EACH: lambda loss=loss, xs=instances: loss.record_all(xs),
            EMPTY: lambda model=model, xs=instances: walk(model, xs),
        }
        results = results_of(model, instances)
        with replaced(model, results):
            walk(model, instances)
        gc.collect()
        with replaced(model, results, only=False):
            seconds = take_turns({**ways, EMPTY: lambda: timed_walk(model, instances, results)}, config.repeats)
        typical = {way: median(found) / n_nodes * 1e9 for way, found in seconds.items()}
        row = [name, n_nodes, *(f"{typical[way]:.0f}" for way in ways)]
        row += [f"{typical[RECORDED] / typical[EMPTY]:.2f}", f"{typical[EACH] / typical[EMPTY]:.2f}"]
        yield Findings(seconds, {"nodes": n_nodes, "ns": typical}, format_table(TITLES, [row]), part=name)


if __name__ == "__main__":
    run(Config(), measure)
