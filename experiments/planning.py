"""Claim: merging and scheduling cost at most 80 ns per node together, and sharing equal nodes at most 100.

Recorded Tree-LSTM graphs are merged, rewritten, scheduled by agenda and placed, in mini-batches of a thousand to a
million nodes. A node is one of the merged graph, a call of a cell. Sharing is off by default: it is timed by itself, on
the rewritten graph, and the later stages do without it. Also counted: the nodes that it leaves of the first 256 trees.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from autobatch import policies
from autobatch.autodiff import differentiate
from autobatch.cli.results import format_table
from autobatch.graph import Graph, merge_graphs, split_graph
from autobatch.memplan.placement import WriteToReaders
from autobatch.models.tree_lstm import TreeLSTM
from autobatch.plan import PlannedCell, PlannedTypes
from autobatch.record import Recorder
from autobatch.rewrite import rewrite
from autobatch.schedule import make_schedule
from harness import Findings, Settings, load_sst_or_listops, medians, name_of, run, take_turns

STAGES = ("merge", "rewrite", "share", "schedule", "place")
LIMIT_NS = 80
SHARE_LIMIT_NS = 100
N_SHARED = 256


@dataclass(frozen=True)
class Config(Settings):
    """Places are those of training, for states of width `dim`; smaller mini-batches are timed more often."""

    n_nodes: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    policy: str = "agenda"
    dim: int = 64
    repeats: int = 21


def measure(config: Config) -> Findings:
    """Time each stage on mini-batches of each size."""
    data = load_sst_or_listops(config.seed)
    model = TreeLSTM(dim=config.dim, rng=np.random.default_rng(config.seed), **data.sizes)
    recorder = Recorder(model.loss, model)
    graphs = split_graph(recorder.record(data.train[:2000]))
    planned = plan_types(recorder)
    seconds: dict[str, list[float]] = {}
    rows, figures = [], []
    for wanted in config.n_nodes:
        batch = take_nodes(graphs, wanted)
        n_nodes = sum(graph.n_nodes for graph in batch)
        repeats = config.repeats * max(1, math.isqrt(1_000_000 // n_nodes))
        timed = take_turns(stages(batch, config.policy, planned), repeats)
        seconds |= {f"{stage}, {n_nodes} nodes": times for stage, times in timed.items()}
        ns = {stage: round(1e9 * median / n_nodes, 2) for stage, median in medians(timed).items()}
        ns["merge + schedule"] = round(ns["merge"] + ns["schedule"], 2)
        figures.append({"nodes": n_nodes, "graphs": len(batch), "ns_per_node": ns})
        rows.append((f"{n_nodes:,}", *(f"{figure:.1f}" for figure in ns.values())))
    limits = {"merge + schedule": LIMIT_NS, "share": SHARE_LIMIT_NS}
    limited = " and ".join(f"{limit} for {stage}" for stage, limit in limits.items())
    title = f"{name_of(data)}, {config.policy}; median ns per node, limit {limited}\n\n"
    table = title + format_table(("nodes", *STAGES, "merge + schedule"), rows)
    left = count_shared(graphs[:N_SHARED])
    table += f"\n\n{N_SHARED} trees have {left['nodes']:,} nodes, after sharing {left['after sharing']:,}"
    figures_found = {"data": name_of(data), "sizes": figures, "limits_ns": limits, f"first {N_SHARED}": left}
    return Findings(seconds, figures_found, table)


def take_nodes(graphs: Sequence[Graph], n_nodes: int) -> list[Graph]:
    """Take graphs, from the first again after the last, until they hold `n_nodes` nodes."""
    taken: list[Graph] = []
    total = 0
    for graph in itertools.cycle(graphs):
        if total >= n_nodes:
            return taken
        taken.append(graph)
        total += graph.n_nodes
    raise ValueError("no graphs to take nodes from")


def count_shared(batch: Sequence[Graph]) -> dict[str, int]:
    """Count the nodes of a mini-batch without and with sharing, the other rewrites done."""
    merged = merge_graphs(batch)
    return {"nodes": rewrite(merged)[0].n_nodes, "after sharing": rewrite(merged, "all")[0].n_nodes}


def plan_types(recorder: Recorder) -> PlannedTypes:
    """Lay out all types for training."""
    planner, cells = WriteToReaders(), []
    for kind in recorder.types.types:
        derivative = differentiate(kind.program)
        cells.append(PlannedCell(kind, derivative, planner.layout(kind.program, derivative)))
    return PlannedTypes(cells, recorder.slots.shapes, training=True)


def stages(batch: list[Graph], policy: str, planned: PlannedTypes) -> dict[str, Callable[[], object]]:
    """What each stage does, on what the stage before it gave."""
    merged = merge_graphs(batch)
    rewritten, _ = rewrite(merged)
    chosen = policies.get(policy)
    schedule = make_schedule(rewritten, chosen)
    return {
        "merge": partial(merge_graphs, batch),
        "rewrite": partial(rewrite, merged),
        "share": partial(rewrite, rewritten, ("share",)),
        "schedule": partial(make_schedule, rewritten, chosen),
        "place": partial(WriteToReaders().place, rewritten, schedule, planned),
    }


if __name__ == "__main__":
    run(Config(), measure)
