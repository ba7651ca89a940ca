"""Count the batches that each policy plans, bound what any policy can reach, and time the planning.

Each plan is counted raw and compacted, from the inputs, from the outputs, and as the shorter of both. Lower bounds show
what no policy can beat; search, and exact search within a budget of states, show what can be reached. Counts for
machines are medians over learning seeds. Times are process times for the first mini-batch, on which machines learn.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from time import process_time
from typing import Any, TypeAlias

import numpy as np

from autobatch import policies
from autobatch.graph.dag import Dag, to_dag
from autobatch.graph.graph import Graph
from autobatch.policies.fsm.machine import WAYS, Fsm, Machine, TypeNames, Way
from autobatch.policies.fsm.qlearning import QLearning, learn_fsm
from autobatch.policies.rules.directed import Directed
from autobatch.policies.search.bounds import certify, pair_bound
from autobatch.policies.search.exact import find_shortest
from autobatch.policies.search.search import Search
from autobatch.policies.sequences import compact
from records import Settings

RULES = ("depth", "agenda", "sufficient", "critical", "score", "network")
PUBLISHED, DEFAULT = "published fsm", "fsm"
OURS = QLearning(reward="critical", optimism=False)
MACHINES = {
    PUBLISHED: (Machine("sort"), QLearning()),
    "fsm base+critical": (Machine("base", critical=True, mask=True), OURS),
    "fsm sort+critical": (Machine("sort", critical=True, mask=True), OURS),
}
DEFAULT_OF = ("fsm sort+critical", PUBLISHED)
"""The default of `learn`: a machine and its rival; the shorter of their plans is used."""
PLANS = ("raw", "raw back", "raw both", "compact", "compact back", "compact both")
RAW, BOTH = PLANS.index("raw"), PLANS.index("compact both")
TIMED_NODES = 20_000  # nodes to plan in a timed run, at least
Figures: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Effort(Settings):
    """How much is counted for each workload; `MACHINES` has the settings of learning."""

    sizes: tuple[int, ...] = (1, 8, 32, 64, 256)
    """Sizes of mini-batches."""
    held_out: int = 24
    """Number of mini-batches that no machine has learned on."""
    learning_seeds: int = 5
    search_steps: int = 5000
    bound_states: int = 400_000
    """Number of states to make for the bound of one mini-batch, at most."""
    exact_states: int = 200_000
    repeats: int = 5


def compare(graphs: Sequence[Graph], effort: Effort, keep: Callable[[str, list[float]], None], size: int) -> Figures:
    """Count, bound and time everything on mini-batches; machines learn on the first one.

    Args:
        graphs: the mini-batches, of which at least one is held out.
        effort: how much to do.
        keep: called with a name and the raw seconds of each timing.
        size: size of the mini-batches, for those names.
    """
    each = [reach(graph, effort) for graph in graphs]
    keep(f"search, {size}", [one.pop("search s") for one in each])
    reached = {what: [one[what] for one in each] for what in each[0]}
    found: Figures = {"nodes": [graph.n_nodes for graph in graphs], "reached": reached, "policies": {}}
    better = np.array(reached["better bound"], np.float64)
    for name, (learned, costs) in candidates(graphs[0], effort):
        timed = time_plans(learned[0], graphs[0], effort.repeats)
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


def reach(graph: Graph, effort: Effort) -> Figures:
    """Bound a mini-batch, and find how few batches can be reached."""
    dag = to_dag(graph)
    start = process_time()
    sequence = Search(effort.search_steps, seed=effort.seed).sequence(dag)
    seconds = process_time() - start
    bound = pair_bound(dag, effort.bound_states, known=sequence)
    better = int(np.ceil(bound.value - 1e-6))
    certify(dag, sequence, better)
    exact = find_shortest(dag, effort.exact_states, least=bound.value)
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


def candidates(first: Graph, effort: Effort) -> Iterator[tuple[str, tuple[Sequence[Directed], Figures]]]:
    """Make every policy that does not search; machines learn on the first mini-batch, once for each seed."""
    for rule in RULES:
        policy = policies.get(f"{rule}+both+compact")
        assert isinstance(policy, Directed)
        yield rule, ([policy], {})
    learned = {name: learn_machines(first, machine, settings, effort) for name, (machine, settings) in MACHINES.items()}
    yield from learned.items()
    yield DEFAULT, pair(*(learned[name] for name in DEFAULT_OF))


def learn_machines(
    first: Graph, machine: Machine, settings: QLearning, effort: Effort
) -> tuple[Sequence[Fsm], Figures]:
    """Learn each direction with each seed. Return the machines, and what learning cost."""
    dag, types = to_dag(first), TypeNames.of(first.types)
    seconds: dict[str, list[float]] = {f"learning {way}": [] for way in WAYS}
    machines, episodes, states = [], [], []
    for seed in range(effort.seed, effort.seed + effort.learning_seeds):
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
    """Make the policies that plan with a machine and its rival, learned with the same seed. Return the cost of both."""
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
    """Return a copy of the policy that plans in one direction, without compaction."""
    turned = copy(policy)
    turned.direction, turned.compact = way, False
    return turned


def time_plans(policy: Directed, graph: Graph, repeats: int) -> dict[str, list[float]]:
    """Time planning in one direction, and in both with compaction. Return raw seconds per plan."""
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
    """Return the dag of a graph; machines have their own numbers for its types."""
    return policy.to_known(graph) if isinstance(policy, Fsm) else to_dag(graph)
