"""Measure whether the rule that decides which nodes to share is right, and what it costs.

Every model takes training steps, and runs forward only, on recorded graphs that are planned in each step: with nothing
shared, with all equal nodes shared, and by the rule. The variants take turns on every mini-batch, so that each round
has a time of each. `rule / better` is the rule's time relative to that of the variant with the better median: the
median over rounds. Three models read real data, if it exists beside the checkout, in the order of its files.

    python experiments/sharing.py models=tree-lstm,lstm-lm dims=64 batch_size=256
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import autobatch as ab
from autobatch.cli.racing import MODES
from autobatch.cli.workload import Workload, load_workload, record
from autobatch.graph.rewrite import UNSHARED as PASSES
from autobatch.models import MODELS
from harness import find_data, run, take_turns
from records import Findings, Settings
from table import Table
from throughput import sweep

DATA = {"tree-lstm": "sst", "bilstm-tagger": "wikiner", "lattice-lstm": "lattice"}
UNSHARED, SHARED, RULE = "nothing shared", "all shared", "by rule"
WAYS: Mapping[str, Any] = {UNSHARED: PASSES, SHARED: "all", RULE: "auto"}
HEADER = ("model", "width", "mode", "nodes", "shared", "by rule", "all / nothing", "rule / nothing", "rule / better")


@dataclass(frozen=True)
class Config(Settings):
    """The mini-batches are the first ones."""

    models: tuple[str, ...] = tuple(MODELS)
    dims: tuple[int, ...] = (64, 256)
    batch_size: int = 64
    minibatches: int = 2
    repeats: int = 9


def measure(config: Config) -> Findings:
    """Time every model at every width, in both modes."""
    seconds: dict[str, list[float]] = {}
    figures: dict[str, Any] = {}
    for model in config.models:
        for dim in config.dims:
            workload = load_workload(model, find_data(DATA.get(model, "none")), dim, config.seed)
            for mode in MODES:
                times, found = race(workload, mode, config)
                seconds |= {f"{model}, {dim}, {mode}: {way}": timings for way, timings in times.items()}
                figures[f"{model}, {dim}, {mode}"] = found
                print(*row_of(f"{model}, {dim}, {mode}", found), sep="  ", flush=True)
    return Findings(seconds, figures, table_of(figures).text())


def race(workload: Workload, mode: str, config: Config) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Time the three variants in turn; count nodes, and those that each variant shares."""
    instances = workload.first(config.batch_size * config.minibatches)
    optimizer = ab.optim.Adam(workload.model, lr=1e-3)
    calls: dict[str, Callable[[], None]] = {}
    shared: dict[str, int] = {}
    for way, rewrites in WAYS.items():
        loss = ab.batched(workload.model.loss, policy="score", backend="cpu", rewrites=rewrites, plan_cache=0)
        minibatches = list(ab.minibatches(record(loss, instances), config.batch_size))
        calls[way] = partial(sweep, loss, minibatches, optimizer if mode == "train" else None)
        calls[way]()
        shared[way] = sum(loss.explain(batch).nodes for batch in minibatches)
    times = take_turns(calls, config.repeats)
    typical = {way: median(timings) for way, timings in times.items()}
    better = min(UNSHARED, SHARED, key=lambda way: typical[way])
    found = {
        "nodes": shared[UNSHARED],
        "shared": shared[UNSHARED] - shared[SHARED],
        "by rule": shared[UNSHARED] - shared[RULE],
        "all / nothing": ratio(times, SHARED, UNSHARED),
        "rule / nothing": ratio(times, RULE, UNSHARED),
        "rule / better": ratio(times, RULE, better),
    }
    return times, found


def ratio(times: Mapping[str, Sequence[float]], way: str, other: str) -> float:
    """Return the median over rounds of one variant's time relative to another's in the same round."""
    return round(median(own / theirs for own, theirs in zip(times[way], times[other], strict=True)), 3)


def row_of(name: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    """Format a line of the table."""
    counts = (f"{found[column]:,}" for column in HEADER[3:6])
    return (*name.split(", "), *counts, *(f"{found[column]:.2f}" for column in HEADER[6:]))


def table_of(figures: Mapping[str, Any]) -> Table:
    """Show all models at all widths."""
    return Table("", HEADER, [row_of(name, found) for name, found in figures.items()])


if __name__ == "__main__":
    run(Config(), measure)
