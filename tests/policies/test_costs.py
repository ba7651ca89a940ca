"""Test costs of types: totals and bounds by their definition, and schedules that are cheap instead of short.

    mul - add - add
    add - add - mul

run as mul, add, add, mul (4 batches) or as add, add, mul, add, add (5 batches, of which only one multiplies).
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch import _native
from autobatch.graph.dag import Dag, cost_of, reverse, to_dag, type_costs
from autobatch.graph.graph import Graph
from autobatch.policies import to_graph
from autobatch.policies.fsm.machine import WAYS
from autobatch.policies.search.search import Search
from autobatch.schedule import check_schedule, min_batches, min_cost
from helpers.checkers.machine_tables import rows_of
from helpers.programs.graphs import random_batch, random_dag
from helpers.runs.ways import each

NAMES = ["add", "mul"]
ADD, MUL = range(2)
TYPES, EDGES = [MUL, ADD, ADD, ADD, ADD, MUL], [(0, 1), (1, 2), (3, 4), (4, 5)]
COSTS = [1.0, 10.0]
POLICIES = ["unbatched", "depth", "agenda", "score", "score+both+compact", "network+both", "search+500"]


def two_chains(costs: Any = None) -> Graph:
    return to_graph(Dag.from_edges(TYPES, EDGES, costs=costs), NAMES)


def some_chains(seed: int) -> Dag:
    """Draw two to four chains, of 12 nodes of two or three types."""
    rng = np.random.default_rng(seed)
    n_chains, n_types = int(rng.integers(2, 5)), int(rng.integers(2, 4))
    return Dag.from_edges(rng.integers(0, n_types, 12), [(n - n_chains, n) for n in range(n_chains, 12)], n_types)


def with_costs(graph: Graph, costs: Any) -> Graph:
    """Return the types and edges of a graph with costs."""
    return to_graph(to_dag(graph)._replace(costs=np.array(costs, float)), graph.types.names)


def least_cost(dag: Dag, costs: list[float]) -> float:
    """Return the cost of the cheapest schedule: try every type next, for every set of nodes that have run."""
    types = dag.type_id.tolist()
    inputs = [set(dag.edge_src[a:b].tolist()) for a, b in zip(dag.edge_ptr, dag.edge_ptr[1:], strict=False)]

    @cache
    def rest(done: frozenset[int]) -> float:
        ready = [n for n in range(len(types)) if n not in done and inputs[n] <= done]
        kinds = {types[n] for n in ready}
        return min((costs[t] + rest(done.union(n for n in ready if types[n] == t)) for t in kinds), default=0.0)

    return rest(frozenset())


def most_on_a_path(dag: Dag, kind: int) -> int:
    """Count the most nodes of a type on a path, by recursion from each node."""
    types = dag.type_id.tolist()

    @cache
    def up_to(node: int) -> int:
        before = dag.edge_src[dag.edge_ptr[node] : dag.edge_ptr[node + 1]].tolist()
        return max(map(up_to, before), default=0) + int(types[node] == kind)

    return max(map(up_to, range(len(types))), default=0)


@each("seed", range(12))
@pytest.mark.parametrize("policy", POLICIES)
def test_the_cost_of_a_schedule_is_that_of_its_batches(policy: str, seed: int) -> None:
    plain = random_batch(seed) if seed % 2 else random_dag(seed)
    costs = np.random.default_rng(seed).lognormal(size=plain.n_types).tolist()
    graph = with_costs(plain, costs)
    schedule = ab.policies.get(policy).schedule(graph)
    check_schedule(graph, schedule)
    counts = Counter(type_id for type_id, _ in schedule)
    assert schedule.cost(graph) == pytest.approx(sum(n * costs[type_id] for type_id, n in counts.items()))
    assert schedule.cost(plain) == schedule.n_batches
    dag = to_dag(graph)
    bound = sum(cost * most_on_a_path(dag, kind) for kind, cost in enumerate(costs))
    assert min_cost(graph) == pytest.approx(bound)
    assert min_cost(graph) <= schedule.cost(graph) * (1 + 1e-12)
    assert min_cost(plain) == min_batches(plain)


@each("policy", POLICIES)
def test_costs_of_1_change_nothing(policy: str) -> None:
    for seed in range(10):
        plain = random_batch(seed)
        schedules = [ab.policies.get(policy).schedule(g) for g in (plain, with_costs(plain, [1] * plain.n_types))]
        assert [(kind, nodes.tolist()) for kind, nodes in schedules[0]] == [
            (kind, nodes.tolist()) for kind, nodes in schedules[1]
        ]


def test_costs_of_1_change_nothing_in_learning() -> None:
    dags = [to_dag(random_batch(seed)) for seed in range(3)]
    plain, costly = (
        ab.policies.learn([to_graph(dag._replace(costs=costs)) for dag in dags], seed=0, episodes=100, tolerance=0)
        for costs in (None, np.ones(dags[0].n_types))
    )
    assert plain.about == costly.about
    for one, other in zip(plain.machines, costly.machines, strict=True):
        assert [rows_of(one.tables[way]) for way in WAYS] == [rows_of(other.tables[way]) for way in WAYS]


def test_the_unit_of_costs_does_not_matter() -> None:
    """Also for costs near 1e-12, such as seconds: scaled by a power of two, everything is bit-identical."""
    for seed in range(6):
        plain = random_batch(seed)
        costs = np.random.default_rng(seed).lognormal(size=plain.n_types)
        found = []
        for scale in (1.0, 2.0**-40, 2.0**40):
            graph = with_costs(plain, costs * scale)
            learned = ab.policies.learn([graph], seed=0, episodes=50)
            policies = learned, Search(500), ab.policies.get("score+both+compact")
            found.append([policy.schedule(graph).batch_type.tolist() for policy in policies])
        assert found[0] == found[1] == found[2]


@each("policy", [Search(), "learn"])
def test_the_cheapest_schedule_may_have_more_batches_than_the_shortest(policy: Any) -> None:
    found = []
    for costs in (None, COSTS):
        graph = two_chains(costs)
        made = ab.policies.learn([graph], seed=0) if policy == "learn" else policy
        schedule = made.schedule(graph)
        check_schedule(graph, schedule)
        assert schedule.cost(graph) == least_cost(to_dag(graph), costs or [1.0, 1.0])
        found.append([kind for kind, _ in schedule])
    assert found == [[MUL, ADD, ADD, MUL], [ADD, ADD, MUL, ADD, ADD]]
    assert [cost_of(to_dag(two_chains(COSTS)), np.array(sequence)) for sequence in found] == [22.0, 14.0]


def test_search_finds_the_cheapest_schedule_of_small_graphs() -> None:
    for seed in range(60):
        dag = some_chains(seed)
        costs = np.random.default_rng(seed).lognormal(sigma=1.5, size=dag.n_types).tolist()
        graph = with_costs(to_graph(dag), costs)
        schedule = Search(steps=500).schedule(graph)
        assert schedule.cost(graph) == pytest.approx(least_cost(dag, costs))


def test_learning_minds_the_costs() -> None:
    """Policies learned with costs are cheaper on the graphs they learned, and have more batches."""
    rng = np.random.default_rng(0)
    graphs = []
    for _ in range(4):
        types = [0] * 8 + rng.integers(1, 4, 52).tolist()
        edges = [(int(source), node) for node in range(8, 60) for source in rng.choice(node, 2, replace=False)]
        graphs.append(to_graph(Dag.from_edges(types, edges, 4, [1, 1, 30, 1])))
    plain = [to_graph(to_dag(graph)._replace(costs=None)) for graph in graphs]
    totals = []
    for some in (graphs, plain):
        policy = ab.policies.learn(some, seed=0, rival=False)
        schedules = [policy.schedule(graph) for graph in some]
        totals.append(
            (sum(s.cost(g) for s, g in zip(schedules, graphs, strict=True)), sum(s.n_batches for s in schedules))
        )
    assert totals[0][0] < totals[1][0]
    assert totals[0][1] > totals[1][1]


def test_a_saved_policy_selects_by_the_costs_of_the_graph_with_types_in_another_order(tmp_path: Any) -> None:
    graph = two_chains(COSTS)
    ab.policies.learn([graph], seed=0).save(tmp_path / "x.policy.json")
    policy = ab.policies.load(tmp_path / "x.policy.json")
    turned = to_graph(Dag.from_edges([1 - kind for kind in TYPES], EDGES, costs=COSTS[::-1]), NAMES[::-1])
    for one in (graph, turned):
        assert policy.schedule(one).cost(one) == 14.0


def test_costs_stay_with_the_types() -> None:
    dag = Dag.from_edges(TYPES, EDGES, 3, costs=(1, 10, 0.5))
    assert dag.costs is not None
    assert dag.costs.dtype == np.float64
    for same in (to_dag(to_graph(dag)), reverse(dag), dag._replace(n_types=3)):
        assert type_costs(same).tolist() == [1.0, 10.0, 0.5]
    assert type_costs(dag._replace(n_types=5)).tolist() == [1.0, 10.0, 0.5, 1.0, 1.0]
    assert type_costs(Dag.from_edges(TYPES, EDGES)).tolist() == [1.0, 1.0]
    assert type_costs(Dag.from_edges(TYPES, EDGES, costs=np.broadcast_to(2.0, 2))).tolist() == [2.0, 2.0]


@each(
    "costs",
    [
        [1.0],
        [1.0, 2.0, 3.0],
        [1.0, -1.0],
        [1.0, 0.0],
        [1.0, np.nan],
        [np.inf, 1.0],
        [1.0, "2"],
        [1.0, None],
        [True, True],
        [1.0, 1j],
        [[1.0], [1.0, 2.0]],
        [[1.0, 2.0]],
        [],
        3.0,
        "ab",
        {"add": 1.0, "mul": 10.0},
    ],
)
def test_wrong_costs_are_refused(costs: Any) -> None:
    with pytest.raises(ab.GraphError, match=r"^making a dag: costs must be 2 positive numbers, one for each type, got"):
        Dag.from_edges(TYPES, EDGES, costs=costs)


def test_wrong_costs_of_a_networkx_graph_are_refused() -> None:
    networkx = pytest.importorskip("networkx", reason="needs networkx")
    graph = networkx.DiGraph(EDGES)
    networkx.set_node_attributes(graph, dict(enumerate(TYPES)), "type")
    assert type_costs(Dag.from_networkx(graph, costs=COSTS)).tolist() == COSTS
    with pytest.raises(ab.GraphError, match=r"costs must be 2 positive numbers, one for each type, got \[1\.0\]"):
        Dag.from_networkx(graph, costs=[1.0])


def test_costs_that_differ_between_graphs_are_refused() -> None:
    with pytest.raises(ab.PolicyError, match=r"the same costs, but they are \(1\.0, 2\.0\) in graph 1, not \(1\.0, 10"):
        ab.policies.learn([two_chains(COSTS), two_chains([1.0, 2.0])])
    with pytest.raises(ab.PolicyError, match=r"the same costs, but they are \(1\.0, 10\.0\) in graph 1, not None"):
        ab.policies.learn([two_chains()], held_out=[two_chains(COSTS)])


@each("costs", [np.array([1.0, 0.0]), np.array([1.0, np.inf]), np.array([np.nan]), np.ones(3), np.ones(2, np.float32)])
def test_the_core_refuses_other_costs(costs: Any) -> None:
    dag = Dag.from_edges(TYPES, EDGES)._replace(costs=costs)
    for function in (_native.longest_chains, _native.Course, _native.Simulation):
        with pytest.raises((ValueError, TypeError), match="costs must be"):
            function(dag)
