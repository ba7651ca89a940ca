"""Claim 7: planning is linear in the nodes of a mini-batch, except for cache misses, and so is learning a policy.

*Planning*: trees are recorded, merged, rewritten, scheduled by the default rule of `auto` on the cpu backend, and
placed for training, in mini-batches of a thousand to two million nodes. A node is one of the merged graph: a call of a
cell. Recording is compared with the unavoidable cost of Python: the same recursion over the same trees, with empty
functions as cells. Sharing depends on the data, and trees have no sums to fold, so both are left out.

*Learning*: a state machine learns on random graphs of a few types, for a fixed number of episodes.

    python experiments/scale.py only=planning n_nodes=1000,10000
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import process_time
from typing import TYPE_CHECKING, Any

import numpy as np

from autobatch import policies
from autobatch.graph.build import merge_graphs, split_graph
from autobatch.graph.dag import to_dag
from autobatch.graph.graph import Graph
from autobatch.graph.rewrite import UNSHARED, rewrite
from autobatch.memplan.planner import MemoryPlanner
from autobatch.models.data.dag import draw_dags
from autobatch.models.data.tree import Tree
from autobatch.models.tree_lstm import TreeLSTM
from autobatch.plan.plan import PlannedTypes
from autobatch.policies.fsm.machine import Machine, TypeNames
from autobatch.policies.fsm.qlearning import learn_fsm
from autobatch.schedule.make import make_schedule
from autobatch.trace.record import Recorder
from charts import COLORS, entitle, panels, use_log, whiskers
from claims import Claim, Records, run_claim
from counted_plans import OURS
from digest import STEP
from harness import load_sst_or_listops, medians, name_of, take_turns
from records import Findings, Record, Settings
from table import Table
from workloads import make_random_graph

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUM = "sum: merge to place"
STAGES = ("recording", "merge", "rewrite", "schedule", "place")
BARE = "bare recursion"
PLANNING, LEARNING = "planning", "learning"
RECORDED = 200_000
"""Number of nodes to record, at most; for more, recorded trees are merged several times."""


@dataclass(frozen=True)
class Config(Settings):
    """Smaller mini-batches are timed more often."""

    n_nodes: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000, 2_000_000)
    policy: str = policies.AUTO["cpu"]
    dim: int = 64
    repeats: int = 11
    learning_nodes: tuple[int, ...] = (100, 1_000, 10_000, 100_000)
    n_types: tuple[int, ...] = (2, 4, 8, 16)
    episodes: int = 50
    learning_repeats: int = 3


class Bare:
    """The recursion of `TreeLSTM.loss`, with empty functions as cells."""

    def leaf(self, word: int) -> Any:
        """Take the cell's arguments."""

    def merge(self, left: Any, right: Any) -> Any:
        """Take the cell's arguments."""

    def node_loss(self, state: Any, label: int) -> Any:
        """Take the cell's arguments."""

    def loss(self, tree: Tree[int]) -> Any:
        """Visit all nodes as `TreeLSTM.loss` does."""
        losses = []

        def visit(t: Tree[int]) -> Any:
            state = self.leaf(t.word) if t.is_leaf else self.merge(visit(t.left), visit(t.right))
            losses.append(self.node_loss(state, t.label))
            return state

        visit(tree)
        return losses


def visit_all(trees: Sequence[Tree[int]]) -> None:
    """Visit trees without computing anything."""
    for tree in trees:
        Bare().loss(tree)


def measure(config: Config, part: str) -> Findings:
    """Time planning, or learning."""
    return time_planning(config) if part == PLANNING else time_learning(config)


def time_planning(config: Config) -> Findings:
    """Time each stage on mini-batches of each size."""
    data = load_sst_or_listops(config.seed)
    model = TreeLSTM(dim=config.dim, rng=np.random.default_rng(config.seed), **data.sizes)
    recorder = Recorder(model.loss, model)
    graphs = split_graph(recorder.record(data.train))
    cells = [MemoryPlanner().plan_cell(kind, training=True) for kind in recorder.types.types]
    planned = PlannedTypes(cells, recorder.slots.shapes, training=True)
    seconds: dict[str, list[float]] = {}
    sizes = []
    for wanted in config.n_nodes:
        taken = take_nodes(graphs, wanted)
        batch = [graphs[number] for number in taken]
        n_nodes = sum(graph.n_nodes for graph in batch)
        ways = stages(batch, config.policy, planned)
        if n_nodes <= RECORDED:
            trees = [data.train[number] for number in taken]
            ways |= {"recording": partial(recorder.record, trees), BARE: partial(visit_all, trees)}
        timed = take_turns(ways, config.repeats * max(1, math.isqrt(1_000_000 // n_nodes)))
        seconds |= {f"{stage}, {n_nodes} nodes": times for stage, times in timed.items()}
        ns = {stage: 1e9 * middle / n_nodes for stage, middle in medians(timed).items()}
        sizes.append({"nodes": n_nodes, "graphs": len(batch), "ns_per_node": ns})
    figures = {"data": name_of(data), "sizes": sizes}
    return Findings(seconds, figures, table_of_planning(figures).text())


def take_nodes(graphs: Sequence[Graph], n_nodes: int) -> list[int]:
    """Return numbers of graphs that have `n_nodes` nodes together, starting again with the first after the last."""
    taken: list[int] = []
    total = 0
    for number in itertools.cycle(range(len(graphs))):
        taken.append(number)
        total += graphs[number].n_nodes
        if total >= n_nodes:
            break
    return taken


def stages(batch: list[Graph], policy: str, planned: PlannedTypes) -> dict[str, Callable[[], object]]:
    """Make a function for each stage, which runs on the result of the stage before it."""
    merged = merge_graphs(batch)
    rewritten, _ = rewrite(merged, UNSHARED)
    chosen = policies.get(policy)
    schedule = make_schedule(rewritten, chosen)
    return {
        "merge": partial(merge_graphs, batch),
        "rewrite": partial(rewrite, merged, UNSHARED),
        "schedule": partial(make_schedule, rewritten, chosen),
        "place": partial(MemoryPlanner().place, rewritten, schedule, planned),
    }


def time_learning(config: Config) -> Findings:
    """Learn a machine on random graphs of several sizes and numbers of types."""
    seconds: dict[str, list[float]] = {}
    sizes = []
    for n_types, wanted in itertools.product(config.n_types, config.learning_nodes):
        rng = np.random.default_rng([config.seed, n_types, wanted])
        dag = to_dag(make_random_graph(draw_dags(max(1, wanted // 9), rng), rng, n_types))
        names = tuple(map(str, range(dag.n_types)))
        settings = replace(OURS, episodes=config.episodes, tolerance=0.0)
        machine, timings = Machine("sort", critical=True, mask=True), []
        for seed in range(config.seed, config.seed + config.learning_repeats + 1):
            start = process_time()
            fsm = learn_fsm([dag], TypeNames(names, names), machine, settings, seed=seed)
            timings.append((process_time() - start) / fsm.about["curves"]["forward"][-1]["episodes"])
        seconds[f"an episode, {n_types} types, {dag.type_id.size} nodes"] = timings[1:]
        states = int(fsm.tables["forward"].n_states[0])
        sizes.append({
            "types": n_types, "nodes": dag.type_id.size, "states": states, "ms": 1e3 * float(np.median(timings[1:]))
        })  # fmt: skip
    return Findings(seconds, {"sizes": sizes}, table_of_learning({"sizes": sizes}).text())


def table_of_planning(figures: Any) -> Table:
    """Show nanoseconds of each stage; recording was not timed for the largest."""
    rows = []
    for one in figures["sizes"]:
        ns = one["ns_per_node"]
        rows.append((f"{one['nodes']:,}", *(f"{ns[stage]:.0f}" if stage in ns else "–" for stage in (BARE, *STAGES))))
    return Table("", ("nodes", BARE, *STAGES), rows)


def table_of_learning(figures: Any) -> Table:
    """Show milliseconds per episode."""
    rows = []
    for one in figures["sizes"]:
        costs = f"{one['ms']:.3f}", f"{1e6 * one['ms'] / one['nodes']:.0f}"
        rows.append((f"{one['types']}", f"{one['nodes']:,}", f"{one['states']:,}", *costs))
    return Table("", ("types", "nodes", "states", "ms per episode", "ns per node and episode"), rows)


def tabulate(records: Records) -> list[Table]:
    """Show both parts."""
    titles = {PLANNING: "Planning, ns per node", LEARNING: "Learning, random graphs"}
    shown = {PLANNING: table_of_planning, LEARNING: table_of_learning}
    tables = {part: shown[part](record.figures) for part, record in records.items()}
    return [Table(titles[part], table.header, table.rows) for part, table in tables.items()]


def draw(records: Records, figure: Figure) -> None:
    """Draw the cost of a node by stage, and of an episode of learning by number of types."""
    axes = panels(figure, 1, len(records), 3)
    message = "Learning takes time in proportion to the nodes"
    for ax, (part, record) in zip(axes, records.items(), strict=True):
        if part == PLANNING:
            draw_planning(record, ax)
            message = f"Merging, rewriting, scheduling and placing together take {planning_ns(record)}"
        else:
            draw_learning(record, ax)
        use_log(ax, "x", "y")
        ax.set_xlabel("mini-batch size (nodes)")
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, fontsize=7)
    entitle(figure, message)


def draw_planning(record: Record, axes: Axes) -> None:
    """Draw a line for each stage."""
    for k, stage in enumerate((BARE, *STAGES)):
        known = [one for one in record.figures["sizes"] if stage in one["ns_per_node"]]
        nodes, ns = [one["nodes"] for one in known], [one["ns_per_node"][stage] for one in known]
        timings = [np.array(record.seconds[f"{stage}, {n} nodes"]) / n for n in nodes]
        spread = [[1e9 * float(np.percentile(timing, percent)) for timing in timings] for percent in (25, 75)]
        axes.errorbar(nodes, ns, yerr=whiskers(ns, *spread), fmt="o-", color=COLORS[k], label=stage)
    sizes = record.figures["sizes"]
    axes.plot([one["nodes"] for one in sizes], sums_of(sizes), "s--", color="black", lw=2, label=SUM)
    axes.set_ylabel("time per node (ns; median, quartiles)")


def draw_learning(record: Record, axes: Axes) -> None:
    """Draw a line for each number of types."""
    sizes = record.figures["sizes"]
    for k, n_types in enumerate(sorted({one["types"] for one in sizes})):
        known = [one for one in sizes if one["types"] == n_types]
        nodes, ms = [one["nodes"] for one in known], [one["ms"] for one in known]
        timings = [record.seconds[f"an episode, {n_types} types, {n} nodes"] for n in nodes]
        spread = [[1e3 * end(timing) for timing in timings] for end in (min, max)]
        axes.errorbar(nodes, ms, yerr=whiskers(ms, *spread), fmt="o-", color=COLORS[k], label=f"{n_types} types")
    axes.set_ylabel("time per episode (ms; median, range)")


def sums_of(sizes: Sequence[Any]) -> list[float]:
    """Return the total of the stages after recording, at each size: nanoseconds per node, the sum of the medians."""
    return [sum(one["ns_per_node"][stage] for stage in STAGES[1:]) for one in sizes]


def planning_ns(record: Record) -> str:
    """State the cost of planning a recorded graph, in the smallest and the largest mini-batch."""
    sizes = record.figures["sizes"]
    totals = sums_of(sizes)
    nodes = f"{sizes[0]['nodes']:,} to {sizes[-1]['nodes']:,}"
    return f"{min(totals):.0f} to {max(totals):.0f} ns per node, in mini-batches of {nodes} nodes"


def see(records: Records) -> str:
    """State the cost of a node."""
    parts = []
    if PLANNING in records:
        sizes = records[PLANNING].figures["sizes"]
        taken = [ns["recording"] for one in sizes if "recording" in (ns := one["ns_per_node"])]
        recording = f" Recording it, once, takes {min(taken):.0f} to {max(taken):.0f} ns per node." if taken else ""
        parts.append(
            f"Planning a recorded graph, which is merging, rewriting, scheduling and placing it, takes "
            f"{planning_ns(records[PLANNING])}.{recording}"
        )
    if LEARNING in records:
        largest = {one["types"]: one for one in records[LEARNING].figures["sizes"]}
        per_node = ", ".join(f"{1e6 * one['ms'] / one['nodes']:.0f} ns ({n} types)" for n, one in largest.items())
        parts.append(f"An episode of learning takes, per node of the largest graphs: {per_node}.")
    return " ".join(parts)


CLAIM = Claim(
    name="scale",
    heading="Apart from cache misses, planning and learning a policy are linear in the nodes of a mini-batch",
    claimed=(
        "The time of recording, merging, rewriting, scheduling and placing is linear in the nodes of a mini-batch, "
        "except that the share of cache misses grows. An episode of learning visits every node once."
    ),
    settings=Config(),
    quick=Config(
        n_nodes=(1_000, 10_000), repeats=2, learning_nodes=(100, 1_000), n_types=(2, 8), episodes=10, learning_repeats=2
    ),
    parts=(PLANNING, LEARNING),
    quick_parts=(PLANNING, LEARNING),
    measure=measure,
    tabulate=tabulate,
    draw=draw,
    see=see,
    modules=STEP,
)

if __name__ == "__main__":
    run_claim(CLAIM)
