"""Claim: planning grows linearly with the nodes of a mini-batch, and takes a tenth of a training step at most.

Recorded Tree-LSTM graphs are merged, rewritten, scheduled by the rule that `auto` starts with on the cpu backend, and
placed, in mini-batches of ten thousand to two million nodes. A node is one of the merged graph, a call of a cell.
Sharing is off by default: it is timed by itself, on the rewritten graph, and the later stages do without it. Trees have
no sums to fold, so folding is timed on lattices, after the other passes. The share is that of whole training steps,
forward, backward and Adam, of mini-batches that are all planned anew, with the caches as the rest of a step leaves
them. Also counted: the nodes that sharing leaves of 256 trees, and folding of 32 lattices.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np

import autobatch as ab
from autobatch import policies
from autobatch.cli.results import format_table
from autobatch.graph.build import merge_graphs, split_graph
from autobatch.graph.graph import Graph
from autobatch.graph.rewrite.passes import DEFAULT, rewrite
from autobatch.memplan.planner import MemoryPlanner
from autobatch.models.data.dataset import load_lattices
from autobatch.models.lattice_lstm import LatticeLSTM
from autobatch.models.tree_lstm import TreeLSTM
from autobatch.plan.plan import PlannedTypes
from autobatch.schedule.make import make_schedule
from autobatch.schedule.schedule import min_batches
from autobatch.trace.record import Recorder
from harness import Findings, Settings, find_data, load_sst_or_listops, medians, name_of, run, take_turns

PLANNING = ("merge", "rewrite", "schedule", "place")
ALONE = ("share", "fold")
LIMIT_SHARE = 0.1
N_SHARED = 256
N_FOLDED = 32
UNFOLDED = tuple(name for name in DEFAULT if name != "fold")


@dataclass(frozen=True)
class Config(Settings):
    """Places are those of training, for states of width `dim`; smaller mini-batches are timed more often."""

    n_nodes: tuple[int, ...] = (10_000, 100_000, 1_000_000, 2_000_000)
    policy: str = policies.Auto("cpu").make_rule().name
    dim: int = 64
    batch_sizes: tuple[int, ...] = (64, 256)
    repeats: int = 21


def measure(config: Config) -> Findings:
    """Time each stage on mini-batches of each size, and training steps."""
    data = load_sst_or_listops(config.seed)
    model = TreeLSTM(dim=config.dim, rng=np.random.default_rng(config.seed), **data.sizes)
    recorder = Recorder(model.loss, model)
    graphs = split_graph(recorder.record(data.train[:2000]))
    planned = plan_types(recorder)
    lattices = record_lattices(config)
    seconds: dict[str, list[float]] = {}
    rows, figures = [], []
    for wanted in config.n_nodes:
        batch = take_nodes(graphs, wanted)
        n_nodes = sum(graph.n_nodes for graph in batch)
        repeats = config.repeats * max(1, math.isqrt(1_000_000 // n_nodes))
        timed = take_turns(stages(batch, config.policy, planned), repeats)
        folding, n_in_lattices = time_folding(take_nodes(lattices, wanted), repeats)
        seconds |= {f"{stage}, {n_nodes} nodes": times for stage, times in timed.items()}
        seconds |= {f"fold, {n_in_lattices} nodes": folding}
        ns = {stage: 1e9 * middle / n_nodes for stage, middle in medians(timed).items()}
        ns |= {"all four": sum(ns[stage] for stage in PLANNING), "fold": 1e9 * median(folding) / n_in_lattices}
        figures.append({"nodes": n_nodes, "graphs": len(batch), "ns_per_node": ns})
        rows.append((f"{n_nodes:,}", *(f"{ns[stage]:.1f}" for stage in (*PLANNING, "all four", *ALONE))))
    table = f"{name_of(data)}, {config.policy}; median ns per node\n\n"
    table += format_table(("nodes", *PLANNING, "all four", *ALONE), rows)
    shares = {size: time_steps(config, size, seconds) for size in config.batch_sizes}
    for size, (planning_ms, step_ms) in shares.items():
        table += f"\n\ntraining steps of {size} trees, dim {config.dim}: planning {planning_ms:.2f} of {step_ms:.2f} ms"
        table += f", {planning_ms / step_ms:.1%} (limit {LIMIT_SHARE:.0%})"
    left = count_shared(graphs[:N_SHARED])
    table += f"\n\n{N_SHARED} trees have {left['nodes']:,} nodes, after sharing {left['after sharing']:,}"
    folded = count_folded(lattices[:N_FOLDED])
    table += "\n" + "; ".join(f"{N_FOLDED} lattices, {what}: {n} nodes, bound {b}" for what, (n, b) in folded.items())
    found = {"data": name_of(data), "sizes": figures, "planning and step ms": shares, f"first {N_SHARED}": left}
    return Findings(seconds, found | {f"first {N_FOLDED} lattices, nodes and bound": folded}, table)


def time_steps(config: Config, batch_size: int, seconds: dict[str, list[float]]) -> tuple[float, float]:
    """Train over some mini-batches; median milliseconds that planning took, and whole steps."""
    data = load_sst_or_listops(config.seed)
    model = TreeLSTM(dim=config.dim, rng=np.random.default_rng(config.seed), **data.sizes)
    loss = ab.batched(model.loss, backend="cpu", plan_cache=0)
    adam = ab.optim.Adam(model, lr=1e-4)
    batches = list(ab.minibatches(loss.record_all(data.train[: 6 * batch_size]), batch_size))
    planning, steps = [], []
    for again in range(1 + config.repeats):
        for batch in batches:
            start = time.perf_counter()
            _, grads = loss.value_and_grad(batch)
            adam.step(grads)
            end = time.perf_counter()
            if again and loss.last is not None:  # the first time around compiles
                planning.append((loss.last.record_ms + loss.last.schedule_ms + loss.last.place_ms) / 1e3)
                steps.append(end - start)
    seconds |= {f"planning, {batch_size} trees": planning, f"step, {batch_size} trees": steps}
    return 1e3 * median(planning), 1e3 * median(steps)


def record_lattices(config: Config) -> list[Graph]:
    """Record the lattices of the training data, or drawn ones, one graph each."""
    rng = np.random.default_rng(config.seed)
    data = load_lattices(find_data("lattice") or "lattices", rng)
    model = LatticeLSTM(dim=config.dim, rng=rng, **data.sizes)
    return split_graph(Recorder(model.loss, model).record(data.train[:2000]))


def time_folding(batch: Sequence[Graph], repeats: int) -> tuple[list[float], int]:
    """Time folding a mini-batch, in seconds, and count the nodes of the merged graph."""
    merged = merge_graphs(batch)
    fold = partial(rewrite, rewrite(merged, UNFOLDED)[0], ("fold",))
    return take_turns({"fold": fold}, repeats)["fold"], merged.n_nodes


def count_folded(batch: Sequence[Graph]) -> dict[str, tuple[int, int]]:
    """Count the nodes of a mini-batch, and bound its batches, without and with folding."""
    merged = merge_graphs(batch)
    graphs = {what: rewrite(merged, passes)[0] for what, passes in (("sums kept", UNFOLDED), ("folded", DEFAULT))}
    return {what: (graph.n_nodes, min_batches(graph)) for what, graph in graphs.items()}


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
    cells = [MemoryPlanner().plan_cell(kind, training=True) for kind in recorder.types.types]
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
        "place": partial(MemoryPlanner().place, rewritten, schedule, planned),
    }


if __name__ == "__main__":
    run(Config(), measure)
