"""Check that the core schedules 20 million nodes per second by the agenda, several times as many as a loop in Python.

One graph is a mini-batch; many graphs are its instances, one after the other. Each is scheduled from start to end, by
the agenda and by the rule `score`, which also reads the chains ahead. They are compared with an obvious loop over lists
in Python, which draws a ready type at random.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from autobatch.cli.results import format_table
from autobatch.graph.dag import Dag, to_dag
from autobatch.models.data.dataset import Dataset
from autobatch.models.shapes import make_two_type_tree_graph
from autobatch.policies.rules.rules import Agenda, Score
from harness import load_sst_or_listops, medians, name_of, run, take_turns
from records import Findings, Settings

TARGET_NODES_PER_S = 20_000_000


@dataclass(frozen=True)
class Config(Settings):
    """The graphs are two-type trees, the first ones of the file."""

    n_trees: int = 256
    repeats: int = 21


class Obvious:
    """One graph as lists: ready nodes by type, and the number of inputs that each node still waits for."""

    def __init__(self, dag: Dag) -> None:
        ptr, sources = dag.edge_ptr.tolist(), dag.edge_src.tolist()
        self.type_id, self.n_types = dag.type_id.tolist(), dag.n_types
        self.n_inputs = np.diff(dag.edge_ptr).tolist()
        self.readers: list[list[int]] = [[] for _ in self.type_id]
        for node in range(len(self.type_id)):
            for source in sources[ptr[node] : ptr[node + 1]]:
                self.readers[source].append(node)
        self.restart()

    def restart(self) -> None:
        """Return to the state in which nothing has run."""
        self.waiting = self.n_inputs.copy()
        self.ready: list[list[int]] = [[] for _ in range(self.n_types)]
        for node, kind in enumerate(self.type_id):
            if self.waiting[node] == 0:
                self.ready[kind].append(node)

    def run(self, draw: Callable[[Sequence[int]], int]) -> None:
        """Run ready types until nothing is left."""
        self.restart()
        while kinds := [kind for kind, nodes in enumerate(self.ready) if nodes]:
            kind = draw(kinds)
            batch, self.ready[kind] = self.ready[kind], []
            for node in batch:
                for reader in self.readers[node]:
                    self.waiting[reader] -= 1
                    if self.waiting[reader] == 0:
                        self.ready[self.type_id[reader]].append(reader)


def measure(config: Config) -> Findings:
    """Schedule one graph and many, by rules and in Python."""
    rng = np.random.default_rng(config.seed)
    data: Dataset = load_sst_or_listops(config.seed)
    trees: Sequence[Any] = data.train[: config.n_trees]
    cases = {
        "one graph": [to_dag(make_two_type_tree_graph(trees, rng))],
        "many graphs": [to_dag(make_two_type_tree_graph([tree], rng)) for tree in trees],
    }
    seconds: dict[str, list[float]] = {}
    n_nodes = {case: sum(dag.type_id.size for dag in dags) for case, dags in cases.items()}
    for case, dags in cases.items():
        for way, times in take_turns(make_ways(dags, config), config.repeats).items():
            seconds[f"{case}, {way}"] = times
    rates = {way: n_nodes[way.partition(",")[0]] / median(times) for way, times in seconds.items()}
    rows = []
    for way, rate in rates.items():
        case = way.partition(",")[0]
        rows.append((way, f"{rate / 1e6:.2f}", f"{rate / rates[f'{case}, in Python']:.1f}"))
    title = f"{name_of(data)}, {len(trees)} trees; target {TARGET_NODES_PER_S / 1e6:.0f}\n\n"
    figures = {
        "nodes": n_nodes,
        "graphs": {case: len(dags) for case, dags in cases.items()},
        "nodes_per_s": {way: round(rate) for way, rate in rates.items()},
        "median_s": medians(seconds),
    }
    return Findings(seconds, figures, title + format_table(("one core", "million nodes/s", "times Python"), rows))


def make_ways(dags: Sequence[Dag], config: Config) -> dict[str, Callable[[], object]]:
    """Make functions that schedule all graphs, by name."""
    obvious, draw = [Obvious(dag) for dag in dags], random.Random(config.seed).choice

    def in_python() -> None:
        for one in obvious:
            one.run(draw)

    return {
        "agenda": lambda: [Agenda().plan(dag) for dag in dags],
        "score": lambda: [Score().plan(dag) for dag in dags],
        "in Python": in_python,
    }


if __name__ == "__main__":
    run(Config(), measure)
