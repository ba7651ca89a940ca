"""Claim: the simulator runs 20 million nodes per second on one core, 100 times as many as the same loop in Python.

A step runs every ready node of one type. Types are drawn at random among those that are ready, which makes small
batches, or chosen by the rule `score`, which reads the chains ahead as well. One graph is a mini-batch; many graphs are
its instances, stacked, each of them at its own step; finished graphs start again. Beside it stand the same loop over
arrays without a compiler, and the loop over lists that one would write in Python.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autobatch.cli.results import format_table
from autobatch.graph.dag import Dag, to_dag
from autobatch.jit.arrays import IntArray
from autobatch.jit.loops import compiled
from autobatch.models.data.dataset import Dataset
from autobatch.models.shapes import make_two_type_tree_graph
from autobatch.policies.rules.rules import LEARNED, Weights, highest_score
from autobatch.schedule import simulator
from autobatch.schedule.chains import Chains, follow, restart_chains, start_chains
from autobatch.schedule.simulator import Simulator, restart, step
from harness import load_sst_or_listops, medians, name_of, run, take_turns
from records import Findings, Settings

TARGET_NODES_PER_S, TARGET_RATIO = 20_000_000, 100


@dataclass(frozen=True)
class Config(Settings):
    """Graphs are two-type trees, the first ones in file order."""

    n_trees: int = 256
    steps: int = 1000
    """Of every graph, per call of compiled code."""
    python_steps: int = 20
    repeats: int = 21


class Obvious:
    """One graph as lists: what is ready by type, and what each node still waits for."""

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
        """Go back to where nothing has run."""
        self.waiting = self.n_inputs.copy()
        self.ready: list[list[int]] = [[] for _ in range(self.n_types)]
        for node, kind in enumerate(self.type_id):
            if self.waiting[node] == 0:
                self.ready[kind].append(node)

    def step(self, draw: Callable[[Sequence[int]], int]) -> int:
        """Run a ready type; the nodes that ran."""
        kinds = [kind for kind, nodes in enumerate(self.ready) if nodes]
        if not kinds:
            self.restart()
            kinds = [kind for kind, nodes in enumerate(self.ready) if nodes]
        kind = draw(kinds)
        batch, self.ready[kind] = self.ready[kind], []
        for node in batch:
            for reader in self.readers[node]:
                self.waiting[reader] -= 1
                if self.waiting[reader] == 0:
                    self.ready[self.type_id[reader]].append(reader)
        return len(batch)


def measure(config: Config) -> Findings:
    """Step one graph and many, drawn and scored, compiled and plain."""
    rng = np.random.default_rng(config.seed)
    data: Dataset = load_sst_or_listops(config.seed)
    trees: Sequence[Any] = data.train[: config.n_trees]
    cases = {
        "one graph": [to_dag(make_two_type_tree_graph(trees, rng))],
        "many graphs": [to_dag(make_two_type_tree_graph([tree], rng)) for tree in trees],
    }
    seconds: dict[str, list[float]] = {}
    n_nodes: dict[str, int] = {}
    for case, dags in cases.items():
        ways, ran = make_ways(dags, config)
        for way, times in take_turns(ways, config.repeats).items():
            seconds[f"{case}, {way}"] = times
            n_nodes[f"{case}, {way}"] = sum(ran[way][1:])
    rates = {way: n_nodes[way] / sum(times) for way, times in seconds.items()}
    rows = []
    for way, rate in rates.items():
        case = way.partition(",")[0]
        times_arrays, times_lists = (rate / rates[f"{case}, {kind} in Python"] for kind in ("arrays", "lists"))
        rows.append((way, f"{rate / 1e6:.2f}", f"{times_arrays:.1f}", f"{times_lists:.1f}"))
    title = f"{name_of(data)}, {len(trees)} trees; targets {TARGET_NODES_PER_S / 1e6:.0f} and {TARGET_RATIO}\n\n"
    figures = {
        "nodes": {case: sum(dag.type_id.size for dag in dags) for case, dags in cases.items()},
        "graphs": {case: len(dags) for case, dags in cases.items()},
        "nodes_per_s": {way: round(rate) for way, rate in rates.items()},
        "median_s": medians(seconds),
        "nodes_ran": n_nodes,
    }
    return Findings(
        seconds, figures, title + format_table(("one core", "million nodes/s", "times arrays", "times lists"), rows)
    )


def make_ways(dags: Sequence[Dag], config: Config) -> tuple[dict[str, Callable[[], object]], dict[str, list[int]]]:
    """Make what is timed; and lists that each call adds the nodes it ran to."""
    dag, node_ptr = simulator.stack(dags)
    drawn, scored, plain = (simulator.start_all(dag, node_ptr) for _ in range(3))
    chains = start_chains(dag, scored)
    obvious = [Obvious(one) for one in dags]
    rng, draw = np.random.default_rng(config.seed), random.Random(config.seed).choice
    calls: dict[str, Callable[[], int]] = {
        "drawn": lambda: step_at_random(drawn, dag, config.steps, rng),
        "by score": lambda: step_by_score(scored, chains, dag, config.steps, LEARNED),
        "lists in Python": lambda: sum(o.step(draw) for o in obvious for _ in range(config.python_steps)),
        "arrays in Python": lambda: step_plain(plain, dag, config.python_steps, rng),
    }
    ran: dict[str, list[int]] = {way: [] for way in calls}
    return {way: lambda way=way, call=call: ran[way].append(call()) for way, call in calls.items()}, ran  # type: ignore[misc]


def step_plain(sim: Simulator, dag: Dag, n_steps: int, rng: np.random.Generator) -> int:
    """Do what `step_at_random` does, with nothing compiled."""
    n_graphs, n_nodes = sim.n_batches.size, 0
    n_types = sim.head.size // n_graphs
    for g in range(n_graphs):
        mine = slice(g * n_types, (g + 1) * n_types)
        for _ in range(n_steps):
            kinds = np.flatnonzero(sim.head[mine] < sim.tail[mine])
            if kinds.size == 0:
                restart.python(sim, dag, g)
                kinds = np.flatnonzero(sim.head[mine] < sim.tail[mine])
            n_nodes += step.python(sim, g * n_types + int(rng.choice(kinds))).size
    return n_nodes


@compiled
def step_at_random(sim: Simulator, dag: Dag, n_steps: int, rng: np.random.Generator) -> int:
    """Take `n_steps` steps of every dag, each of a ready type drawn with equal chance; give the nodes that ran."""
    n_graphs = sim.n_batches.size
    n_types = sim.head.size // n_graphs
    n_nodes = 0
    for g in range(n_graphs):
        for _ in range(n_steps):
            kind = _any_ready(sim.head, sim.tail, g * n_types, (g + 1) * n_types, rng)
            if kind < 0:
                restart(sim, dag, g)
                kind = _any_ready(sim.head, sim.tail, g * n_types, (g + 1) * n_types, rng)
            if kind >= 0:
                n_nodes += step(sim, kind).size
    return n_nodes


@compiled
def step_by_score(sim: Simulator, chains: Chains, dag: Dag, n_steps: int, weights: Weights) -> int:
    """Take `n_steps` steps of every dag, each of the type that `Score` names; give the nodes that ran."""
    n_graphs = sim.n_batches.size
    n_types = sim.head.size // n_graphs
    n_nodes = 0
    for g in range(n_graphs):
        for _ in range(n_steps):
            kind = highest_score(sim, chains, g * n_types, (g + 1) * n_types, weights)
            if kind < 0:
                restart(sim, dag, g)
                restart_chains(chains, sim, g)
                kind = highest_score(sim, chains, g * n_types, (g + 1) * n_types, weights)
            if kind >= 0:
                batch = step(sim, kind)
                follow(chains, sim, batch)
                n_nodes += batch.size
    return n_nodes


@compiled
def _any_ready(head: IntArray, tail: IntArray, first: int, end: int, rng: np.random.Generator) -> int:
    """Draw one of the ready types among `first` to `end`; -1 if there is none."""
    n_ready = 0
    for kind in range(first, end):
        n_ready += head[kind] < tail[kind]
    left = int(rng.random() * n_ready) if n_ready > 1 else 0
    for kind in range(first, end):
        if head[kind] < tail[kind]:
            if left == 0:
                return kind
            left -= 1
    return -1


if __name__ == "__main__":
    run(Config(), measure)
