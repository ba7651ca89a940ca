"""Claim 2: a state machine is learned in seconds from one mini-batch, and plans other mini-batches as well.

Machines learn on the first mini-batch of a workload, forward, with several seeds; every few episodes, one rollout
without exploration is counted. Learning ends when the chain bound is reached or the episodes are used up. The machine
then plans mini-batches that it has not seen, and its batches are compared with the better bound of each. Parts are
workloads:

    python experiments/learned_policies.py only=lattice-lstm-arity episodes=2000
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import process_time
from typing import TYPE_CHECKING, Any

import numpy as np

from autobatch.graph.dag import Dag, to_dag
from autobatch.graph.graph import Graph
from autobatch.policies.fsm.machine import Fsm, Machine, TypeNames
from autobatch.policies.fsm.qlearning import QLearning, learn_fsm
from autobatch.policies.search.bounds import pair_bound
from charts import COLORS, entitle, legend_below, panels
from claims import Claim, Published, Records, in_list, run_claim
from counted_plans import OURS
from digest import STRUCTURE
from records import Findings, Settings
from table import Table
from workloads import WORKLOADS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THEIRS, CHOSEN = "published", "sort, critical"
"""The machines that sentences and the title of the figure compare."""
MACHINES = {
    THEIRS: (Machine("sort"), QLearning()),
    CHOSEN: (Machine("sort", critical=True, mask=True), OURS),
    "base, critical": (Machine("base", critical=True, mask=True), OURS),
    "sort, critical, no mask": (Machine("sort", critical=True), OURS),
}
PARTS = ("tree-lstm-2type", "lattice-lstm-folded", "lattice-lstm-arity", "random-dag-8")
HEADER = (
    "", "episodes", "seconds", "states", "batches, first", "above bound, first", "above bound, held-out", "least, most"
)  # fmt: skip


@dataclass(frozen=True)
class Config(Settings):
    """Seeds of learning are `seed` and those that follow."""

    size: int = 32
    """Size of mini-batches."""
    held_out: int = 16
    seeds: int = 5
    episodes: int = 1000
    evaluate_every: int = 25
    bound_states: int = 400_000


def measure(config: Config, workload: str) -> Findings:
    """Learn each machine with each seed."""
    data, graphs = WORKLOADS[workload].minibatches(config.size, 1 + config.held_out, config.seed)
    dags = [to_dag(graph) for graph in graphs]
    bounds = [float(np.ceil(pair_bound(dag, config.bound_states).value - 1e-6)) for dag in dags]
    learned = {
        name: learn_seeds(graphs, dags, bounds, machine, how, config) for name, (machine, how) in MACHINES.items()
    }
    seconds = {name: found.pop("seconds") for name, found in learned.items()}
    figures = {"data": data, "bounds": bounds, "nodes": dags[0].type_id.size, "machines": learned}
    rows = [to_row(name, found) for name, found in learned.items()]
    return Findings(seconds, figures, Table(f"{workload}, mini-batches of {config.size}", HEADER, rows).text())


def learn_seeds(
    graphs: list[Graph], dags: list[Dag], bounds: list[float], machine: Machine, how: QLearning, config: Config
) -> dict[str, Any]:
    """Learn a machine with several seeds, and plan all mini-batches with each."""
    settings = replace(how, episodes=config.episodes, evaluate_every=config.evaluate_every, tolerance=0.0)
    found: dict[str, Any] = {what: [] for what in ("seconds", "curves", "states", "above_first", "above_held_out")}
    for seed in range(config.seed, config.seed + config.seeds):
        start = process_time()
        fsm = learn_fsm(dags[:1], TypeNames.of(graphs[0].types), machine, settings, seed=seed)
        found["seconds"].append(process_time() - start)
        (curve,) = fsm.about["curves"].values()
        found["curves"].append([[point["episodes"], point["batches"]] for point in curve])
        found["states"].append(int(fsm.tables["forward"].n_states[0]))
        above = [plan_length(fsm, graph) / bound - 1 for graph, bound in zip(graphs, bounds, strict=True)]
        found["above_first"].append(round(above[0], 6))
        found["above_held_out"].append(round(statistics.fmean(above[1:]), 6))
    return found | {"learning_s": round(statistics.median(found["seconds"]), 4)}


def plan_length(fsm: Fsm, graph: Graph) -> int:
    """Return the number of batches that a machine plans."""
    return fsm.plan_best(fsm.to_known(graph)).n_batches


def to_row(name: str, found: Any) -> list[str]:
    """Format medians over seeds."""
    last = [curve[-1] for curve in found["curves"]]
    held_out = found["above_held_out"]
    return [
        name,
        f"{statistics.median(episodes for episodes, _ in last):g}",
        f"{found['learning_s']:.2f}",
        f"{statistics.median(found['states']):g}",
        f"{statistics.median(min(batches for _, batches in curve) for curve in found['curves']):g}",
        *(f"{100 * statistics.median(above):.1f}%" for above in (found["above_first"], held_out)),
        f"{100 * min(held_out):.1f}% to {100 * max(held_out):.1f}%",
    ]


def tabulate(records: Records) -> list[Table]:
    """Show each workload."""
    return [
        Table(
            f"{name}, mini-batches of {one.settings['size']} ({one.figures['nodes']:,} nodes), medians of "
            f"{one.settings['seeds']} seeds",
            HEADER,
            [to_row(machine, found) for machine, found in one.figures["machines"].items()],
        )
        for name, one in records.items()
    ]


def draw(records: Records, figure: Figure) -> None:
    """Draw learning curves: medians over seeds, and the range from least to most; lines differ in width where they
    meet.
    """
    axes = panels(figure, 2, 2, 2.3)
    for ax, (workload, record) in zip(axes, records.items(), strict=False):
        bound, machines = record.figures["bounds"][0], record.figures["machines"]
        episodes = sorted({at for found in machines.values() for curve in found["curves"] for at, _ in curve})
        for k, (name, found) in enumerate(machines.items()):
            by_time = [[best_until(curve, n) / bound for curve in found["curves"]] for n in episodes]
            median = [*map(statistics.median, by_time)]
            ax.plot(episodes, median, color=COLORS[k], label=name, lw=1.2 + len(machines) - 1 - k)
            ax.fill_between(episodes, [*map(min, by_time)], [*map(max, by_time)], color=COLORS[k], alpha=0.15, lw=0)
        ax.axhline(1, color="black", lw=1, ls="--", zorder=1)
        ax.set_title(workload, loc="left")
    for ax in axes[len(records) :]:
        ax.set_visible(False)
    for ax in axes:
        ax.set(xlabel="episode", ylabel="fewest batches so far\n(multiple of better bound;\nmedian, range of seeds)")
    legend_below(figure, axes[0])
    entitle(figure, message_of(records))


def best_until(curve: list[list[float]], episodes: float) -> float:
    """Return the fewest batches within a number of episodes; after learning has ended, they no longer change."""
    return min((batches for at, batches in curve if at <= episodes), default=curve[0][1])


def fewest_of(found: Any) -> float:
    """Return the fewest batches for the mini-batch learned on: the median over seeds."""
    fewest: list[float] = [min(batches for _, batches in curve) for curve in found["curves"]]
    return statistics.median(fewest)


def above_of(found: Any) -> tuple[float, float]:
    """Return how far above the bound, in percent, on the mini-batch learned on and on others: medians over seeds."""
    first, others = (100 * statistics.median(found[f"above_{where}"]) for where in ("first", "held_out"))
    return first, others


def message_of(records: Records) -> str:
    """State where a machine that marks critical types learns to use fewer batches than the published one."""
    fewer, equal, more = compare_with_theirs(records, fewest_of)
    rest = "".join(f", {word} on {in_list(some)}" for word, some in (("as near", equal), ("farther", more)) if some)
    where = f"on {len(fewer)} of {len(records)} workloads"
    return f"The machine “{CHOSEN}” is learned nearer to the bound than the published one {where}{rest}"


def compare_with_theirs(records: Records, figure_of: Callable[[Any], float]) -> tuple[list[str], list[str], list[str]]:
    """Sort workloads by whether a figure of our machine is below, at or above that of the published one."""
    sorted_: tuple[list[str], list[str], list[str]] = ([], [], [])
    for workload, record in records.items():
        ours, theirs = (figure_of(record.figures["machines"][name]) for name in (CHOSEN, THEIRS))
        sorted_[1 + (ours > theirs) - (ours < theirs)].append(workload)
    return sorted_


def see(records: Records) -> str:
    """State how long learning takes, how good its machines are, and how much worse one is on other mini-batches."""
    every = [found for record in records.values() for found in record.figures["machines"].values()]
    episodes = [statistics.median(curve[-1][0] for curve in found["curves"]) for found in every]
    states = [statistics.median(found["states"]) for found in every]
    seconds = [found["learning_s"] for found in every]
    above = {workload: above_of(record.figures["machines"][CHOSEN]) for workload, record in records.items()}
    excess = "; ".join(f"{workload} {first:.1f}% and {others:.1f}%" for workload, (first, others) in above.items())
    lost = {workload: others - first for workload, (first, others) in above.items()}
    worst = max(lost, key=lost.__getitem__)
    gains = [workload for workload, points in lost.items() if points < 0]
    most = f"The gap grows most on {worst}, by {lost[worst]:.1f} points" if lost[worst] > 0 else "The gap grows on none"
    besides = f", and shrinks on {in_list(gains)}" if gains else ""
    return (
        f"Learning ends after {min(episodes):,g} to {max(episodes):,g} episodes, which take "
        f"{min(seconds):.2f} to {max(seconds):.2f} s, and leaves {min(states):g} to {max(states):,g} states, "
        f"depending on the machine. The raw forward plans of machine “{CHOSEN}” are this far above the bound on the "
        f"training mini-batch and on others: {excess}. {most}{besides}. Compared with the published machine, it needs, "
        f"on the training mini-batch, {in_words(compare_with_theirs(records, fewest_of))}. On others, it needs "
        f"{in_words(compare_with_theirs(records, lambda found: above_of(found)[1]))}."
    )


def in_words(compared: tuple[list[str], list[str], list[str]]) -> str:
    """State where ours needs fewer batches, as many and more."""
    words = zip(("fewer batches", "as many", "more"), compared, strict=True)
    return "; ".join(f"{word} on {in_list(some)}" for word, some in words if some)


def batches_of_machine(records: Records) -> str:
    """State what the published machine reaches here on lattices."""
    if "lattice-lstm-arity" not in records or records["lattice-lstm-arity"].settings["size"] != 32:
        return ""
    found = records["lattice-lstm-arity"].figures["machines"]
    fewest = {name: statistics.median(min(b for _, b in curve) for curve in found[name]["curves"]) for name in found}
    return ", ".join(f"{fewest[name]:g} ({name})" for name in ("published", "sort, critical"))


CLAIM = Claim(
    name="learned_policies",
    heading="A state machine is learned in seconds from one mini-batch, and plans others as well",
    claimed=(
        "Tabular Q-learning schedules one mini-batch repeatedly, until its machine needs as few batches as the chain "
        "bound, or the episodes are used up. The machine then plans unseen mini-batches of the same kind. The machines "
        "are the published one and some that mark critical types; with a mask, they run only critical types while one "
        "is ready."
    ),
    settings=Config(),
    quick=Config(size=8, held_out=2, seeds=2, episodes=100, bound_states=20_000),
    parts=PARTS,
    quick_parts=PARTS,
    measure=measure,
    tabulate=tabulate,
    draw=draw,
    see=see,
    published=[
        Published(
            "batches of the learned machine, 32 lattices, a type per arity", "314", "ED-Batch (arXiv:2302.03851)",
            batches_of_machine,
        ),
    ],
    disagreement=(
        "The state machine, its reward and its settings are the published ones in the row “published”; critical types "
        "are ours. The counts are those of raw forward plans, without compaction."
    ),
    modules=STRUCTURE,
    needs=("scipy",),
)  # fmt: skip

if __name__ == "__main__":
    run_claim(CLAIM)
