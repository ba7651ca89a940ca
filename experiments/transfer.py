"""Claim: what is learned on generated graphs does as well on lattices and two-type trees as what is learned on these.

Graphs are those of ED-Batch (arXiv:2302.03851), with one loss for a mini-batch. A machine is learned on the first
mini-batch of a workload, and every policy is counted on the next ones, which no policy has seen; a column is the mean
over them. Of machines that learn with several seeds it is that of the median seed. *Raw* plans from the inputs only;
the rest plan from both ends, compact both, and keep the shorter. *FSM* is what `learn_policy` learns: the machine
"sort, critical" and the published one beside it.

First the weights of `score` are learned anew, and compared with those in the package. Counts do not depend on the
machine that it runs on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from autobatch import policies
from autobatch.cli.results import format_table
from autobatch.graph.dag import Dag, to_dag
from autobatch.graph.graph import Graph
from autobatch.models.data.dataset import load_lattices
from autobatch.models.shapes import LATTICE_FORMS, make_lattice_graph, make_two_type_tree_graph
from autobatch.policies.fsm.machine import Machine, TypeNames
from autobatch.policies.fsm.qlearning import QLearning, learn_fsm
from autobatch.policies.rules.directed import Directed
from autobatch.policies.rules.rules import LEARNED
from autobatch.policies.search.bounds import chain_bound, pair_bound
from harness import find_data, load_sst_or_listops, run
from learning.evolution import learn_families
from records import Findings, Settings

RULES = ("agenda", "sufficient", "critical", "score", "network")
LEARNED_ELSEWHERE = ("score", "network")
OURS = QLearning(reward="critical", optimism=False)
MACHINES = {
    "published FSM": (Machine("sort"), QLearning()),
    "FSM base, critical": (Machine("base", critical=True, mask=True), OURS),
    "FSM sort, critical": (Machine("sort", critical=True, mask=True), OURS),
}
DEFAULT = "FSM", ("FSM sort, critical", "published FSM")
PAIR, RAW = "both, compact", "raw"


@dataclass(frozen=True)
class Config(Settings):
    """What is counted."""

    n_minibatches: int = 8
    """That no machine has learned from, of each workload."""
    learning_seeds: int = 5
    relearn: bool = True
    """Whether the weights of `score` are learned anew, which takes a minute."""


def measure(config: Config) -> Findings:
    """Count all policies on all workloads."""
    counts: dict[str, dict[str, list[float]]] = {}
    for workload, graphs in load_workloads(config).items():
        n_types = max(graph.n_types for graph in graphs)
        dags = [to_dag(graph)._replace(n_types=n_types) for graph in graphs]
        counts[workload] = count_bounds(dags[1:]) | count_rules(dags[1:]) | count_machines(config, dags)
    figures: dict[str, Any] = {"batches": counts, "compared": {name: compare(counts[name]) for name in counts}}
    if config.relearn:
        relearned = learn_families(seed=config.seed)
        figures["weights"] = {"learned": relearned.weights._asdict(), "in the package": LEARNED._asdict()}
        figures["loss"] = relearned.about["curves"]["loss"]
    return Findings({}, figures, describe(config, figures))


def load_workloads(config: Config) -> dict[str, list[Graph]]:
    """Make the mini-batches of every workload, in file order; the first is for machines to learn from."""
    rng = np.random.default_rng(config.seed)
    lattices = load_lattices(find_data("lattice") or "lattices", rng).train
    trees = load_sst_or_listops(config.seed).train
    makers = {f"lattices, {form}": (lattices, 32, partial(make_lattice_graph, form=form)) for form in LATTICE_FORMS}
    two_types = partial(make_two_type_tree_graph, rng=rng)
    makers |= {f"two-type trees, {size}": (trees, size, two_types) for size in (32, 256)}
    return {
        name: [make(items[size * k : size * (k + 1)]) for k in range(config.n_minibatches + 1)]
        for name, (items, size, make) in makers.items()
    }


def count_bounds(dags: Sequence[Dag]) -> dict[str, list[float]]:
    """Bound each mini-batch."""
    return {
        "chain bound": [chain_bound(dag) for dag in dags],
        "better bound": [float(np.ceil(pair_bound(dag).value - 1e-6)) for dag in dags],
    }


def count_rules(dags: Sequence[Dag]) -> dict[str, list[float]]:
    """Count the batches of policies that learn nothing from the workload."""
    counts = {}
    for rule in RULES:
        for way, options in ((RAW, ""), (PAIR, "+both+compact")):
            policy = policies.get(rule + options)
            assert isinstance(policy, Directed)
            counts[f"{rule}, {way}"] = count(policy, dags)
    return counts


def count_machines(config: Config, dags: Sequence[Dag]) -> dict[str, list[float]]:
    """Count the batches of machines learned on the first mini-batch, on the others."""
    names = tuple(map(str, range(dags[0].n_types)))
    seeds = range(config.seed, config.seed + config.learning_seeds)
    learned = {
        name: [learn_fsm(dags[:1], TypeNames(names, names), machine, settings, direction="both", seed=k) for k in seeds]
        for name, (machine, settings) in MACHINES.items()
    }
    name, (ours, published) = DEFAULT
    learned[name] = [a.with_rival(b) for a, b in zip(learned[ours], learned[published], strict=True)]
    counts = {}
    for name, policies_by_seed in learned.items():
        for way in (RAW, PAIR):
            for policy in policies_by_seed:
                policy.direction, policy.compact = ("forward", False) if way == RAW else ("both", True)
            by_seed = sorted((count(policy, dags[1:]) for policy in policies_by_seed), key=np.mean)
            counts[f"{name}, {way}"] = by_seed[len(by_seed) // 2]
    return counts


def count(policy: Directed, dags: Sequence[Dag]) -> list[float]:
    """Count the batches of one policy."""
    return [float(policy.plan_best(dag).n_batches) for dag in dags]


def compare(counts: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """How many times as many batches rule and network need as the bound, and as the best of other policies."""
    means = {name: float(np.mean(batches)) for name, batches in counts.items()}
    compared = {}
    for name in LEARNED_ELSEWHERE:
        own = means[f"{name}, {PAIR}"]
        others = [other for other in means if other.endswith(PAIR) and not other.startswith(name)]
        learned = [other for other in others if other.removesuffix(f", {PAIR}") in (*MACHINES, DEFAULT[0])]
        compared[f"{name} / better bound"] = own / means["better bound"]
        compared[f"{name} / best other policy"] = own / min(means[other] for other in others)
        compared[f"{name} / best learned on the workload"] = own / min(means[other] for other in learned)
    return compared


def describe(config: Config, figures: Mapping[str, Any]) -> str:
    """Write a table with a column for each workload."""
    batches, compared = figures["batches"], figures["compared"]
    first, *_ = batches.values()
    rows = [(name, *(f"{np.mean(batches[workload][name]):.1f}" for workload in batches)) for name in first]
    ratios, *_ = compared.values()
    rows += [(name, *(f"{compared[workload][name]:.3f}" for workload in compared)) for name in ratios]
    text = f"means over {config.n_minibatches} mini-batches; machines: median of {config.learning_seeds} seeds\n\n"
    text += format_table(("batches", *batches), rows)
    if "weights" in figures:
        verdict = "as in the package" if relearned_as_packaged(figures) else "not those in the package"
        weights = ", ".join(f"{name} {weight:g}" for name, weight in figures["weights"]["learned"].items())
        text += f"\n\nscore, learned anew on generated graphs with seed {config.seed}: {weights}; {verdict}"
    return text


def relearned_as_packaged(figures: Mapping[str, Any]) -> bool:
    """Whether the weights learned anew are those in the package."""
    learned, packaged = figures["weights"].values()
    return bool(learned == packaged)


if __name__ == "__main__":
    run(Config(), measure)
