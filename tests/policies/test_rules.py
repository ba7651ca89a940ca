"""Test the rules sufficient, critical and score by their definitions, looking at all nodes again before every batch."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import pytest

from autobatch import policies
from autobatch.errors import GraphError, PolicyError
from autobatch.graph.build import merge_graphs
from autobatch.graph.dag import Dag, reverse, to_dag
from autobatch.graph.graph import Graph, NamedTypes
from autobatch.policies.rules.directed import Directed
from autobatch.policies.rules.rules import LEARNED, Score, Weights, with_origin
from autobatch.schedule.make import make_schedule
from autobatch.schedule.schedule import min_batches
from autobatch.schedule.schedule_check import check_schedule
from helpers.programs.graphs import chain, random_batch, random_dag, random_tree
from helpers.runs.ways import each

GRAPHS: list[Callable[[int], Graph]] = [
    random_batch,
    lambda seed: merge_graphs([random_tree(seed + 100 * i) for i in range(4)]),
    lambda seed: random_dag(seed, n_nodes=40),
    lambda seed: random_dag(seed, n_nodes=40, types=NamedTypes(("a", "b"))),
    lambda seed: chain("a", *"ab" * seed),
]
DIRECTED = [
    "+".join(part for part in parts if part)
    for parts in product(
        ("depth", "agenda", "sufficient", "critical", "score"), ("", "backward", "both"), ("", "compact")
    )
]
SPREAD = Weights(critical=0.3, ready=-0.2, own=0.7, height=0.4)


class Situation:
    """A DAG with some executed nodes, and everything that the rules ask about it."""

    def __init__(self, dag: Dag) -> None:
        self.kind = dag.type_id.tolist()
        self.inputs = [set(dag.edge_src[dag.edge_ptr[n] : dag.edge_ptr[n + 1]].tolist()) for n in range(len(self.kind))]
        self.before: list[set[int]] = []
        for inputs in self.inputs:
            self.before.append(inputs.union(*(self.before[source] for source in inputs)))
        self.ahead = [self._ahead(node, dag.n_types) for node in range(len(self.kind))]
        self.unrun = set(range(len(self.kind)))
        self.types = range(dag.n_types)

    def _ahead(self, node: int, n_types: int) -> list[int]:
        readers = [n for n, inputs in enumerate(self.inputs) if node in inputs]
        after = [self._ahead(reader, n_types) for reader in readers]
        return [max((u[a] for u in after), default=0) + (self.kind[node] == a) for a in range(n_types)]

    def ready(self, a: int | None = None) -> list[int]:
        return [n for n in self.unrun if not self.inputs[n] & self.unrun and a in (None, self.kind[n])]

    def ratio(self, a: int) -> Fraction:
        left = {n for n in self.unrun if self.kind[n] == a}
        return Fraction(len(self.ready(a)), sum(not self.before[n] & left for n in left))

    def at_most(self, a: int) -> list[int]:
        most = max(self.ahead[n][a] for n in self.ready())
        return [n for n in self.ready() if most and self.ahead[n][a] == most]

    def own(self, a: int) -> float:
        nodes = self.at_most(a)
        return float(sum(self.kind[n] == a for n in nodes) / len(nodes))

    def height(self, a: int) -> float:
        ready = self.ready(a)
        return sum(sum(self.ahead[n]) for n in ready) / len(ready)

    def run(self, choose: Callable[[Situation, list[int]], int]) -> list[int]:
        """Run the chosen types until all nodes are done; return the sequence."""
        sequence = []
        while self.unrun:
            kind = choose(self, sorted({self.kind[n] for n in self.ready()}))
            sequence.append(kind)
            self.unrun -= set(self.ready(kind))
        return sequence


def sufficient(now: Situation, types: list[int]) -> int:
    return max(types, key=lambda a: (now.ratio(a), -a))


def critical(now: Situation, types: list[int]) -> int:
    return max(types, key=lambda a: (now.own(a) == 1, now.ratio(a), -a))


def score(weights: Weights) -> Callable[[Situation, list[int]], int]:
    def choose(now: Situation, types: list[int]) -> int:
        highest = max(now.height(a) for a in types)

        def value(a: int) -> float:
            return float(
                weights.critical * (now.own(a) == 1)
                + weights.ready * len(now.ready(a)) / sum(now.kind[n] == a for n in now.unrun)
                + weights.own * now.own(a)
                + weights.height * now.height(a) / highest
            )

        return max(types, key=lambda a: (round(value(a), 9), -a))

    return choose


@each(
    "policy, choose",
    [
        (policies.get("sufficient"), sufficient),
        (policies.get("critical"), critical),
        (policies.get("score"), score(LEARNED)),
        (Score(weights=SPREAD), score(SPREAD)),
    ],
)
@pytest.mark.slow
@each("make", GRAPHS)
@each("seed", range(6))
def test_a_rule_is_the_one_defined(
    policy: Directed, choose: Callable[[Situation, list[int]], int], make: Callable[[int], Graph], seed: int
) -> None:
    dag = to_dag(make(seed))
    assert policy.plan(dag)[0].tolist() == Situation(dag).run(choose)
    assert policy.plan_backward(dag)[0].tolist() == Situation(reverse(dag)).run(choose)[::-1]


@pytest.mark.cases(3)
@each("spec", DIRECTED)
@each("make", GRAPHS)
@pytest.mark.parametrize("seed", range(6))
def test_every_way_of_planning_gives_a_valid_schedule(spec: str, make: Callable[[int], Graph], seed: int) -> None:
    graph = make(seed)
    policy = policies.get(spec)
    schedule = make_schedule(graph, policy)
    check_schedule(graph, schedule)
    assert min_batches(graph) <= schedule.n_batches
    if "+compact" in spec:
        assert schedule.n_batches <= make_schedule(graph, policies.get(spec.replace("+compact", ""))).n_batches
    if "+both" in spec:
        other_ways = (spec.replace("+both", way) for way in ("", "+backward"))
        assert schedule.n_batches == min(make_schedule(graph, policies.get(way)).n_batches for way in other_ways)


@each("rule", ["sufficient", "critical", "score"])
@each("seed", range(10))
def test_plain_trees_take_as_few_batches_as_can_be(rule: str, seed: int) -> None:
    """Trees with one kind of inner node: leaf, inner, output, loss."""
    trees = [random_tree(100 * seed + i) for i in range(16)]
    for tree in trees:
        tree.type_id[tree.type_id == 2] = 1
    graph = merge_graphs(trees)
    assert make_schedule(graph, policies.get(rule)).n_batches == min_batches(graph)


@each("spec", ["agenda+backward", "score+compact", "critical+both+compact"])
def test_a_cycle_is_refused(spec: str) -> None:
    graph = chain("a", "b", "c")
    graph.edge_src[0] = 2
    with pytest.raises(GraphError, match=r"edge 2 \('c'\) -> 1 \('b'\) points backwards"):
        make_schedule(graph, policies.get(spec))


@each(
    "spec",
    [
        "agneda",
        "agenda+",
        "agenda+forwards",
        "score+compact+compact",
        "score+both+backward",
        "unbatched+both",
        "search+fast",
    ],
)
def test_an_unknown_policy_is_refused(spec: str) -> None:
    with pytest.raises(PolicyError) as error:
        policies.get(spec)
    message = str(error.value)
    assert repr(spec) in message
    assert ("did you mean agenda?" in message) == (spec == "agneda")
    assert ", ".join(map(with_origin, policies.names())) in message
    for option in ("+backward", "+both", "+compact", "+STEPS", "auto", "saved policy"):
        assert option in message


def test_an_unknown_direction_is_refused() -> None:
    with pytest.raises(PolicyError, match="direction of Score must be 'forward', 'backward' or 'both', got 'sideways'"):
        Score(direction="sideways")  # type: ignore[arg-type]


def test_a_policy_is_named_as_it_is_asked_for() -> None:
    assert [policies.get(spec).name for spec in DIRECTED] == DIRECTED


@each("backend", ["reference", "cpu", "cuda", "a user's"])
def test_auto_plans_once_on_every_backend(backend: str) -> None:
    assert policies.get("auto", backend).name == "score"
