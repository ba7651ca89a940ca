"""Question: how many batches does each policy need, how far is that from the fewest, and what does planning cost?

Every policy plans the first mini-batch of a workload, on which machines learn, and held-out ones, the next. Each plan
is counted raw and compacted, from the inputs, from the outputs, and the shorter of both. Bounds say what no policy can
go below; search, and exact search within a budget of states, what can be reached. Counts of machines are medians over
seeds of learning. Times are process times, of the first mini-batch.

One table, record and picture for each workload; counts do not depend on the machine:

    python experiments/batching_policies.py workloads=tree-lstm-2type,lattice-lstm-variadic sizes=32,256
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any, TypeAlias

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from autobatch import policies
from autobatch.cli.results import format_table
from autobatch.graph.dag import Dag, to_dag
from autobatch.graph.graph import Graph
from autobatch.policies.fsm.machine import WAYS, Fsm, Machine, TypeNames, Way
from autobatch.policies.fsm.qlearning import QLearning, learn_fsm
from autobatch.policies.rules.directed import Directed
from autobatch.policies.rules.rules import LEARNED
from autobatch.policies.search.bounds import certify, pair_bound
from autobatch.policies.search.exact import find_shortest
from autobatch.policies.search.search import Search
from autobatch.policies.sequences.compaction import compact
from harness import Findings, Settings, run
from workloads import WORKLOADS

RULES = ("depth", "agenda", "sufficient", "critical", "score", "network")
PUBLISHED, DEFAULT = "published fsm", "fsm"
OURS = QLearning(reward="critical", optimism=False)
MACHINES = {
    PUBLISHED: (Machine("sort"), QLearning()),
    "fsm base+critical": (Machine("base", critical=True, mask=True), OURS),
    "fsm sort+critical": (Machine("sort", critical=True, mask=True), OURS),
}
DEFAULT_OF = ("fsm sort+critical", PUBLISHED)
"""What `learn` learns by default: a machine and its rival, of which it keeps the shorter plan."""
PLANS = ("raw", "raw back", "raw both", "compact", "compact back", "compact both")
RAW, BOTH = PLANS.index("raw"), PLANS.index("compact both")
ALLOWED = {"tree-lstm-2type": 0.05, **{f"lattice-lstm-{form}": 0.12 for form in ("arity", "variadic", "folded")}}
"""How far `score`, both directions, compacted, may be above the better bound on held-out mini-batches."""
ALLOWED_WORSE = 0.02
"""How far above any other policy that does not search."""
TIMED_NODES = 20_000  # planned at least in a timed run
REACHED = ("chain bound", "better bound", "search", "fewest")
COLORS = 64  # of a picture, which takes a quarter of the bytes of one with all
ABOVE = (0, 1, 3, 10, 30, 100, 300)  # ticks, in per cent

Figures: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Config(Settings):
    """Settings of learning are `MACHINES`; `bound_states` and `exact_states` are those made for one mini-batch."""

    workloads: str = ",".join(WORKLOADS)
    sizes: tuple[int, ...] = (1, 8, 32, 64, 256)
    held_out: int = 24
    learning_seeds: int = 5
    search_steps: int = 5000
    bound_states: int = 400_000
    exact_states: int = 200_000
    repeats: int = 5


def measure(config: Config) -> Iterator[Findings]:
    """Compare the policies on each workload."""
    sizes = config.sizes if isinstance(config.sizes, tuple) else (config.sizes,)
    names = config.workloads.split(",")
    if unknown := [name for name in names if name not in WORKLOADS]:
        sys.exit(f"{unknown[0]!r} is no workload; give some of {', '.join(WORKLOADS)}")
    warm_up(config)
    for name in names:
        seconds: dict[str, list[float]] = {}
        by_size = {}
        for size in sizes:
            data, graphs = WORKLOADS[name].minibatches(size, 1 + config.held_out, config.seed)
            by_size[size] = compare(graphs, config, partial(seconds.__setitem__), size)
            by_size[size]["checked"] = check(name, by_size[size])
        figures = {"workload": name, "data": data, "plans": PLANS, "weights": LEARNED._asdict(), "sizes": by_size}
        table = "\n\n".join(describe(name, data, size, found) for size, found in by_size.items())
        yield Findings(seconds, figures, table, name, partial(draw, name, by_size))


def warm_up(config: Config) -> None:
    """Compile, or load what was compiled, before anything is timed."""
    _, graphs = WORKLOADS["random-dag-2"].minibatches(8, 2, config.seed)
    small = replace(config, learning_seeds=1, search_steps=10, repeats=1)
    compare(graphs, small, lambda name, times: None, 8)


def compare(graphs: Sequence[Graph], config: Config, keep: Callable[[str, list[float]], None], size: int) -> Figures:
    """Count, bound and time everything on mini-batches, the first of which is learned on.

    Args:
        graphs: at least one held-out one.
        config: how much to do.
        keep: takes the name of what was timed, and its raw seconds.
        size: of the mini-batches, for those names.
    """
    each = [reach(graph, config) for graph in graphs]
    keep(f"search, {size}", [one.pop("search s") for one in each])
    reached = {what: [one[what] for one in each] for what in each[0]}
    found: Figures = {"nodes": [graph.n_nodes for graph in graphs], "reached": reached, "policies": {}}
    better = np.array(reached["better bound"], np.float64)
    for name, (learned, costs) in candidates(graphs[0], config):
        timed = time_plans(learned[0], graphs[0], config.repeats)
        for what, times in {**costs.pop("seconds", {}), **timed}.items():
            keep(f"{name}, {what}, {size}", times)
        counts = np.array([[count(policy, graph) for graph in graphs] for policy in learned])  # [S, M, plans]
        found["policies"][name] = {
            "first": np.median(counts[:, 0], axis=0).tolist(),
            "held-out": np.median(counts[:, 1:].mean(axis=1), axis=0).round(6).tolist(),
            "most above bound": (counts - better[:, None]).max(axis=(0, 1)).tolist(),
            "ns/node": {what: round(1e9 * min(times) / graphs[0].n_nodes, 1) for what, times in timed.items()},
            **costs,
        }
    return found


def reach(graph: Graph, config: Config) -> Figures:
    """Bound a mini-batch, and find how few batches can be reached."""
    dag = to_dag(graph)
    start = process_time()
    sequence = Search(config.search_steps, seed=config.seed).sequence(dag)
    seconds = process_time() - start
    bound = pair_bound(dag, config.bound_states, known=sequence)
    better = int(np.ceil(bound.value - 1e-6))
    certify(dag, sequence, better)
    exact = find_shortest(dag, config.exact_states, least=bound.value)
    fewest = min(sequence.size, exact.sequence.size)
    return {
        "chain bound": int(bound.chain),
        "better bound": better,
        "search": int(sequence.size),
        "exact": int(exact.sequence.size) if exact.proven else None,
        "fewest": int(fewest),
        "optimal": bool(max(better, exact.lower_bound) > fewest - 1e-6),
        "search s": seconds,
    }


def candidates(first: Graph, config: Config) -> Iterator[tuple[str, tuple[Sequence[Directed], Figures]]]:
    """Make every policy that does not search; machines learn on the first mini-batch, once for each seed."""
    for rule in RULES:
        policy = policies.get(f"{rule}+both+compact")
        assert isinstance(policy, Directed)
        yield rule, ([policy], {})
    learned = {name: learn_machines(first, machine, settings, config) for name, (machine, settings) in MACHINES.items()}
    yield from learned.items()
    yield DEFAULT, pair(*(learned[name] for name in DEFAULT_OF))


def learn_machines(
    first: Graph, machine: Machine, settings: QLearning, config: Config
) -> tuple[Sequence[Fsm], Figures]:
    """Learn each direction with each seed: the machines, and what it took."""
    dag, types = to_dag(first), TypeNames.of(first.types)
    seconds: dict[str, list[float]] = {f"learning {way}": [] for way in WAYS}
    machines, episodes, states = [], [], []
    for seed in range(config.seed, config.seed + config.learning_seeds):
        learned = {}
        for way in WAYS:
            start = process_time()
            learned[way] = learn_fsm([dag], types, machine, settings, direction=way, seed=seed)
            seconds[f"learning {way}"].append(process_time() - start)
            episodes.append(learned[way].about["curves"][way][-1]["episodes"])
            states.append(int(learned[way].tables[way].n_states[0]))
        tables: dict[Way, Any] = {way: learned[way].tables[way] for way in WAYS}
        machines.append(Fsm(machine, types, tables, "both", compact=True))
    costs = {
        "learning s": {way: round(statistics.median(seconds[f"learning {way}"]), 4) for way in WAYS},
        "episodes": statistics.median(episodes),
        "states": statistics.median(states),
        "settings": asdict(settings),
        "seconds": seconds,
    }
    return machines, costs


def pair(one: tuple[Sequence[Fsm], Figures], other: tuple[Sequence[Fsm], Figures]) -> tuple[Sequence[Fsm], Figures]:
    """Make the policies that plan with a machine and its rival, learned with the same seed: with what both took."""
    costs = {
        "learning s": {way: round(one[1]["learning s"][way] + other[1]["learning s"][way], 4) for way in WAYS},
        **{what: one[1][what] + other[1][what] for what in ("episodes", "states")},
    }
    return [first.with_rival(second) for first, second in zip(one[0], other[0], strict=True)], costs


def count(policy: Directed, graph: Graph) -> list[int]:
    """Count the batches of each of `PLANS`."""
    dag = known_dag(policy, graph)
    raw, compacted = [], []
    for way in WAYS:
        sequences = [plan[0] for plan in towards(policy, way).plans(dag)]
        raw.append(min(sequence.size for sequence in sequences))
        compacted.append(min(compact(dag, sequence).size for sequence in sequences))
    return [*raw, min(raw), *compacted, min(compacted)]


def towards(policy: Directed, way: Way) -> Directed:
    """Give the policy as it plans in one direction, without compaction."""
    turned = copy(policy)
    turned.direction, turned.compact = way, False
    return turned


def time_plans(policy: Directed, graph: Graph, repeats: int) -> dict[str, list[float]]:
    """Time planning in one direction, and in both with compaction: raw seconds of one plan."""
    dag = known_dag(policy, graph)
    loops = 1 + TIMED_NODES // graph.n_nodes
    ways = {"one direction": towards(policy, "forward").plan_best, "both, compact": policy.plan_best}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, plan in ways.items():
            start = process_time()
            for _ in range(loops):
                plan(dag)
            seconds[name].append((process_time() - start) / loops)
    return seconds


def known_dag(policy: Directed, graph: Graph) -> Dag:
    """The dag of a graph; machines have numbers of their own for its types."""
    return policy.to_known(graph) if isinstance(policy, Fsm) else to_dag(graph)


def check(workload: str, found: Figures) -> Figures:
    """Compare, on held-out mini-batches, what is claimed of `score` and of machines with what was counted."""
    means = {name: counted["held-out"] for name, counted in found["policies"].items()}
    bound = statistics.fmean(found["reached"]["better bound"][1:])
    own = means["score"][BOTH]
    others = {name: plans[BOTH] for name, plans in means.items() if name != "score"}
    best = min(others, key=others.__getitem__)
    checked: Figures = {
        "score above better bound": above(own, bound),
        "score above best other": above(own, others[best]),
        "best other": best,
        "machines above published": {
            name: above(means[name][BOTH], means[PUBLISHED][BOTH]) for name in (*MACHINES, DEFAULT) if name != PUBLISHED
        },
    }
    checked["holds"] = {
        "score near bound": checked["score above better bound"] <= ALLOWED[workload] if workload in ALLOWED else None,
        "score near best": checked["score above best other"] <= ALLOWED_WORSE,
        f"{DEFAULT} not above published": checked["machines above published"][DEFAULT] <= 0,
    }
    if workload == "tree-lstm":
        checked["most above bound, raw"] = {
            name: counted["most above bound"][RAW] for name, counted in found["policies"].items()
        }
    return checked


def above(batches: float, fewer: float) -> float:
    """How far one number of batches is above another, as a fraction of it."""
    return round(batches / fewer - 1, 6) + 0.0  # which makes -0.0 of rounding 0.0


def describe(workload: str, data: str, size: int, found: Figures) -> str:
    """Write the table of one size."""
    reached = found["reached"]
    lines = [
        f"{workload}, {data}, mini-batches of {size}: the first ({found['nodes'][0]:,} nodes), and the mean of "
        f"{len(found['nodes']) - 1} held-out ones"
    ]
    for where, some in (("first", slice(1)), ("held-out", slice(1, None))):
        means = [f"{what} {statistics.fmean(reached[what][some]):.1f}" for what in REACHED]
        exact, optimal = reached["exact"][some], reached["optimal"][some]
        lines.append(
            f"{where}: {', '.join(means)}; exact search ended for {sum(n is not None for n in exact)} of {len(exact)}, "
            f"{sum(optimal)} proven optimal"
        )
    header = ("", *PLANS, *(f"held-out: {PLANS[0]}", *PLANS[1:]), "ns/node", "both", "learning s", "episodes", "states")
    rows = []
    for name, counted in found["policies"].items():
        counts_text = [f"{n:.0f}" for n in counted["first"]] + [f"{n:.1f}" for n in counted["held-out"]]
        costs = [f"{ns:.0f}" for ns in counted["ns/node"].values()]
        learning = "-", "-", "-"
        if "learning s" in counted:
            learning = f"{sum(counted['learning s'].values()):.2f}", f"{counted['episodes']}", f"{counted['states']}"
        rows.append((name, *counts_text, *costs, *learning))
    return "\n".join([*lines, "", format_table(header, rows), "", describe_check(found["checked"])])


def describe_check(checked: Figures) -> str:
    """Write what was claimed, and whether it holds."""
    holds = checked["holds"]
    near = {None: "nothing claimed", True: "as claimed", False: "more than claimed"}[holds["score near bound"]]
    lines = [
        f"score, both, compact: {checked['score above better bound']:+.1%} against the better bound ({near}), "
        f"{checked['score above best other']:+.1%} against the best other, {checked['best other']} "
        f"({'as claimed' if holds['score near best'] else 'more than claimed'})"
    ]
    for name, more in checked["machines above published"].items():
        lines.append(f"{name} against the published machine, both, compact: {more:+.1%}")
    if "most above bound, raw" in checked:
        most = ", ".join(f"{name} {more:.0f}" for name, more in checked["most above bound, raw"].items())
        lines.append(f"raw, most above the bound on any mini-batch: {most}")
    return "\n".join(lines)


def draw(workload: str, by_size: Mapping[int, Figures], path: Path) -> None:
    """Draw held-out batches over the better bound, raw and compacted, and the time of planning, by mini-batch size."""
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    raw, compacted, cost = figure.subplots(1, 3)
    sizes = [str(size) for size in by_size]
    bounds, fewest = (
        [statistics.fmean(found["reached"][what][1:]) for found in by_size.values()]
        for what in ("better bound", "fewest")
    )
    raw.sharey(compacted)
    for i, name in enumerate(next(iter(by_size.values()))["policies"]):
        counted = [found["policies"][name] for found in by_size.values()]
        for axes, plan in ((raw, RAW), (compacted, BOTH)):
            percent = [100 * above(one["held-out"][plan], bound) for one, bound in zip(counted, bounds, strict=True)]
            axes.plot(sizes, percent, "o-", color=f"C{i}", label=name)
        cost.semilogy(sizes, [one["ns/node"]["both, compact"] for one in counted], "o-", color=f"C{i}", label=name)
    percent = [100 * above(few, bound) for few, bound in zip(fewest, bounds, strict=True)]
    for axes in (raw, compacted):
        axes.plot(sizes, percent, "k--", label="fewest known")
        axes.set(xlabel="mini-batch", ylabel="batches above the better bound, held-out, %")
        axes.set_yscale("symlog", linthresh=1)
        axes.set_yticks(ABOVE, map(str, ABOVE))
        axes.set_ylim(bottom=-0.2)
    raw.set_title(f"{workload}: from the inputs, raw", fontsize="medium")
    compacted.set_title("both directions, compacted", fontsize="medium")
    cost.set_title("planning in both directions, compacted", fontsize="medium")
    cost.set(xlabel="mini-batch", ylabel="ns per node")
    cost.legend(fontsize="small")
    figure.savefig(path, dpi=64)
    Image.open(path).convert("RGB").quantize(COLORS).save(path, optimize=True)


if __name__ == "__main__":
    run(Config(), measure)
