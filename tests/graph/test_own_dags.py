"""Test users' own DAGs, from edges and from networkx: policies can schedule them and learn on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import pytest

import autobatch as ab
from autobatch.graph.dag import Dag, to_dag
from autobatch.policies import to_graph
from autobatch.schedule import check_schedule, min_batches
from helpers.programs.graphs import random_dag


@pytest.mark.parametrize("seed", range(30))
def test_a_dag_of_its_own_edges_is_the_same(seed: int) -> None:
    dag = to_dag(random_dag(seed))
    reader = np.repeat(np.arange(dag.type_id.size), np.diff(dag.edge_ptr))
    pairs = np.stack([dag.edge_src, reader], axis=1)
    found = Dag.from_edges(dag.type_id, pairs, dag.n_types)
    for a, b in zip(found, dag, strict=True):
        np.testing.assert_array_equal(a, b)
    shuffled = Dag.from_edges(dag.type_id.tolist(), np.random.default_rng(seed).permutation(pairs).tolist())
    edges = [sorted(x.edge_src[a:b]) for x in (dag, shuffled) for a, b in zip(x.edge_ptr, x.edge_ptr[1:], strict=False)]
    assert edges[: dag.type_id.size] == edges[dag.type_id.size :]


@pytest.mark.parametrize(
    ("types", "edges", "n_types", "message"),
    [
        ([0, 1], [(0, 2)], None, r"join nodes 0\.\.1, got 2"),
        ([0, 1], [(-1, 1)], None, r"join nodes 0\.\.1, got -1"),
        ([0, 1], [(1, 0)], None, "points backwards, although there is no cycle"),
        ([0, 1], [(0, 1), (1, 0)], None, "there is a cycle"),
        ([0, 1], [(0, 0)], None, "there is a cycle"),
        ([0, 1], [0, 1], None, "edges must be an array of ints with 2 dimensions"),
        ([0, 1], [(0, 1, 1)], None, r"shape \(edges, 2\)"),
        ([0, 1], [(0, 1), (0,)], None, "edges must be an array of ints"),
        ([0, 1], [(0.0, 1.0)], None, "edges must be an array of ints"),
        ([0, -1], [], None, r"types must lie in 0\.\.0, got -1"),
        ([0, 3], [], 2, r"types must lie in 0\.\.1, got 0\.\.3"),
        ([2**32 + 1, 1], [], None, r"number of types must be at most 2147483647, got 4294967298"),
        ([0], [], 2**31, r"number of types must be at most 2147483647, got 2147483648"),
        (["a"], [], None, "types must be an array of ints"),
        ([[0]], [], None, "types must be an array of ints with 1 dimension, got"),
    ],
)
def test_malformed_edges_are_refused(types: Any, edges: Any, n_types: int | None, message: str) -> None:
    with pytest.raises(ab.GraphError, match=message):
        Dag.from_edges(types, edges, n_types)


def test_dags_may_have_neither_edges_nor_nodes() -> None:
    assert Dag.from_edges([], []).type_id.size == 0
    assert Dag.from_edges([1], []).n_types == 2
    assert Dag.from_edges(np.zeros(2, np.uint8), np.empty((0, 2), int), 3).n_types == 3


@pytest.mark.parametrize("seed", range(10))
def test_a_graph_of_networkx_has_the_same_bound(seed: int) -> None:
    networkx = pytest.importorskip("networkx", reason="needs networkx")
    dag = to_dag(random_dag(seed))
    rng = np.random.default_rng(seed)
    names = rng.permutation(dag.type_id.size)
    graph = networkx.MultiDiGraph()
    for node in rng.permutation(dag.type_id.size):
        graph.add_node(f"node {names[node]}", type=dag.type_id[node])
    for node, (a, b) in enumerate(zip(dag.edge_ptr, dag.edge_ptr[1:], strict=False)):
        graph.add_edges_from((f"node {names[source]}", f"node {names[node]}") for source in dag.edge_src[a:b])
    found = Dag.from_networkx(graph, n_types=dag.n_types)
    assert sorted(found.type_id) == sorted(dag.type_id)
    assert found.edge_src.size == dag.edge_src.size
    assert min_batches(to_graph(found)) == min_batches(to_graph(dag))
    order = [*networkx.topological_sort(graph)]
    assert [graph.nodes[node]["type"] for node in order] == found.type_id.tolist()


def test_malformed_graphs_of_networkx_are_refused() -> None:
    networkx = pytest.importorskip("networkx", reason="needs networkx")
    with pytest.raises(ab.GraphError, match="must be directed"):
        Dag.from_networkx(networkx.Graph())
    with pytest.raises(ab.GraphError, match=r"must not have a cycle, got 'b' -> 'c' -> 'b'\."):
        Dag.from_networkx(networkx.DiGraph([("a", "b"), ("b", "c"), ("c", "b")]))
    with pytest.raises(ab.GraphError, match="'type' of node 'a' must be an int, got None"):
        Dag.from_networkx(networkx.DiGraph([("a", "b")]))


def test_a_policy_is_learned_on_own_dags() -> None:
    rng = np.random.default_rng(0)
    graphs = []
    for _ in range(6):
        types = rng.integers(0, 3, 40)
        edges = [(int(rng.integers(0, node)), node) for node in range(1, 40) for _ in range(2)]
        graphs.append(to_graph(Dag.from_edges(types, edges, 3), ["load", "add", "scale"]))
    policy = ab.policies.learn(graphs[:3], held_out=graphs[3:], seed=0, episodes=100)
    for graph in graphs:
        schedule = policy.schedule(graph)
        check_schedule(graph, schedule)
        assert min_batches(graph) <= schedule.n_batches <= ab.policies.get("agenda").schedule(graph).n_batches
    with pytest.raises(ab.PolicyError, match="type 1 is 'add' in graph 0 and 'sub' in graph 2"):
        ab.policies.learn([*graphs[:2], to_graph(to_dag(graphs[2]), ["load", "sub", "scale"])])
    more = to_graph(to_dag(graphs[1])._replace(n_types=4), ["load", "add", "scale", "store"])
    with pytest.raises(ab.PolicyError, match="type 3 is missing in graph 0 and 'store' in graph 1"):
        ab.policies.learn(graphs[:1], held_out=[more])


def test_a_dag_in_place_of_a_graph_is_refused_with_the_conversion() -> None:
    dag = Dag.from_edges([0, 0, 1], [(0, 2), (1, 2)])
    graph = to_graph(dag, ["read", "add"])
    learned = ab.policies.learn([graph], seed=0, episodes=10)
    recurring = ab.policies.Recurring.of([graph])
    schedulers: list[Any] = [*(ab.policies.get(name) for name in ab.policies.names()), learned, recurring, First()]
    calls: list[Callable[[], Any]] = [partial(policy.schedule, cast(Any, dag)) for policy in schedulers]
    calls += [lambda: min_batches(cast(Any, dag)), lambda: to_dag(cast(Any, dag))]
    for call in calls:
        with pytest.raises(ab.DataError, match=r"^graph.* must be a Graph, got Dag\(nodes=3.*to_graph\(dag, names\)"):
            call()
    with pytest.raises(ab.PolicyError, match=r"graphs of learn must be a list of Graphs.*to_graph\(dag, names\)"):
        ab.policies.learn([graph, cast(Any, dag)])
    with pytest.raises(ab.PolicyError, match=r"held_out of learn must be a list of Graphs.*to_graph\(dag, names\)"):
        ab.policies.learn([graph], held_out=[cast(Any, dag)])
    with pytest.raises(ab.DataError, match=r"dag of to_graph must be a Dag.*to_dag\(graph\)"):
        to_graph(cast(Any, graph))


class First(ab.policies.FrontierPolicy):
    name = "first"

    def choose(self, frontier: ab.policies.Frontier) -> int:
        return frontier.types[0]


def test_types_of_one_name_are_refused_before_learning() -> None:
    dag = Dag.from_edges([0, 1, 2], [(0, 1), (1, 2)])
    with pytest.raises(ab.GraphError, match=r"names must differ, got 'read' more than once"):
        to_graph(dag, ["read", "add", "read"])
