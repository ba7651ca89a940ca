"""Measure the cost of a known schedule, compared with searching for it and with a rule.

The first mini-batches of each workload are scheduled forward by `Search()`, which searches for the best schedule; by
`Recurring`, which has read the results of that search from its file; and by the rule `Score`. The three take turns on
the same graphs. Batches do not depend on the machine; times are those of the policy only, without recording, rewriting
and placing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import autobatch as ab
from autobatch.cli.results import format_table
from autobatch.graph.graph import Graph
from digest import STRUCTURE
from harness import medians, run, take_turns
from records import Findings, Settings
from workloads import WORKLOADS

WAYS = "searched", "known", "by rule"


@dataclass(frozen=True)
class Config(Settings):
    """`n_batches` mini-batches of each size and workload."""

    workloads: tuple[str, ...] = ("tree-lstm", "bilstm-tagger", "lattice-lstm-arity", "random-dag-4")
    batch_sizes: tuple[int, ...] = (64, 256)
    n_batches: int = 4
    repeats: int = 5


def measure(config: Config) -> Findings:
    """Schedule with all policies in turn, at all sizes."""
    seconds: dict[str, list[float]] = {}
    figures: dict[str, dict[str, Any]] = {}
    for workload in config.workloads:
        for size in config.batch_sizes:
            data, graphs = WORKLOADS[workload].minibatches(size, config.n_batches, config.seed)
            policies = make_policies(graphs)
            name = f"{workload}, batch {size}"
            ways = {f"{name}, {way}": sweep(policy, graphs) for way, policy in policies.items()}
            seconds |= take_turns(ways, config.repeats)
            batches = {way: mean([p.schedule(graph).n_batches for graph in graphs]) for way, p in policies.items()}
            assert batches["known"] == batches["searched"]
            figures[name] = {
                "data": data,
                "nodes": mean([graph.n_nodes for graph in graphs]),
                "batches": batches,
                "ms": {way: 1e3 * medians(seconds)[f"{name}, {way}"] / len(graphs) for way in WAYS},
            }
    rows = [
        (
            name, f"{f['nodes']:,.0f}", *(f"{f['batches'][way]:,.1f}" for way in ("searched", "by rule")),
            *(f"{f['ms'][way]:,.2f}" for way in WAYS),
        )
        for name, f in figures.items()
    ]  # fmt: skip
    header = ("workload", "nodes", "batches, searched", "batches, by rule", *(f"ms, {way}" for way in WAYS))
    return Findings(seconds, {"workloads": figures}, "per mini-batch, forward\n\n" + format_table(header, rows))


def make_policies(graphs: Sequence[Graph]) -> dict[str, Any]:
    """Make the three policies."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.json"
        ab.policies.Recurring.of(graphs).save(path)
        return {"searched": ab.policies.Search(), "known": ab.policies.load(path), "by rule": ab.policies.Score()}


def sweep(policy: Any, graphs: Sequence[Graph]) -> Callable[[], None]:
    """Make a function that schedules all graphs."""

    def schedule() -> None:
        for graph in graphs:
            policy.schedule(graph)

    return schedule


def mean(numbers: Sequence[float]) -> float:
    """Return the mean of some numbers."""
    return sum(numbers) / len(numbers)


if __name__ == "__main__":
    run(Config(), measure, modules=STRUCTURE)
