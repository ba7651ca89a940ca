"""Test the families of graphs to learn on: their properties, counted over many draws."""

from __future__ import annotations

import numpy as np
import pytest

from autobatch import policies
from autobatch._native import find_depths
from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag
from autobatch.graph.graph_check import check_graph
from autobatch.graph.sketch import to_graph
from autobatch.schedule.make import make_schedule
from autobatch.schedule.schedule import min_batches
from autobatch.schedule.schedule_check import check_schedule
from learning.families import (
    FAMILIES,
    MAX_INSTANCES,
    MAX_NODES,
    draw,
    draw_chains,
    draw_grammars,
    draw_trees,
)

N_DRAWS = 60


def draws(name: str) -> list[Dag]:
    return [draw(name, np.random.default_rng(seed)) for seed in range(N_DRAWS)]


def inputs_of(dag: Dag) -> list[list[int]]:
    """Return the inputs of each node without repetition."""
    inputs = [part.tolist() for part in np.split(dag.edge_src, dag.edge_ptr[1:-1])]
    assert [len(set(sources)) for sources in inputs] == [len(sources) for sources in inputs]
    return inputs


def count_components(dag: Dag) -> int:
    component = list(range(dag.type_id.size))

    def find(node: int) -> int:
        while component[node] != node:
            node = component[node]
        return node

    for node, sources in enumerate(inputs_of(dag)):
        for source in sources:
            component[find(source)] = find(node)
    return sum(component[node] == node for node in range(len(component)))


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_seed_draws_the_same_graph(name: str) -> None:
    for first, second in zip(draws(name), draws(name), strict=True):
        assert first.n_types == second.n_types
        assert all(np.array_equal(a, b) for a, b in zip(first[:3], second[:3], strict=True))
    assert len({dag.type_id.tobytes() for dag in draws(name)}) == N_DRAWS


@pytest.mark.parametrize("name", FAMILIES)
def test_graphs_are_valid_and_of_the_sizes_promised(name: str) -> None:
    for dag in draws(name):
        graph = to_graph(dag)
        check_graph(graph)
        schedule = make_schedule(graph, policies.get("agenda"))
        check_schedule(graph, schedule)
        assert 10 <= graph.n_nodes <= 3 * MAX_INSTANCES * MAX_NODES < 4000
        assert 2 <= min_batches(graph) <= schedule.n_batches


@pytest.mark.parametrize(
    ("name", "types", "least_nodes", "most_nodes"),
    [
        ("random-dags", range(2, 9), 30, 400),
        ("grammars", range(3, 9), 30, 1000),
        ("chains", range(2, 9), 30, 1000),
        ("trees", range(2, 5), 30, 1000),
    ],
)
def test_draws_differ(name: str, types: range, least_nodes: int, most_nodes: int) -> None:
    drawn = draws(name)
    assert {dag.n_types for dag in drawn} == set(types)
    sizes = [dag.type_id.size for dag in drawn]
    assert min(sizes) < least_nodes
    assert max(sizes) > most_nodes
    assert len({int(dag.type_id[0]) for dag in drawn}) >= max(types) - 1  # types are numbered at random


@pytest.mark.parametrize("name", ["grammars", "chains", "trees"])
def test_instances_stand_alone(name: str) -> None:
    counts = [count_components(dag) for dag in draws(name)]
    assert min(counts) == 2
    assert MAX_INSTANCES - 2 <= max(counts) <= MAX_INSTANCES


def read_by_heads(dag: Dag, n_states: int) -> list[int]:
    """Count the readers of each state node, and check that each has one output, and a loss if there are losses."""
    inputs, kinds = inputs_of(dag), dag.type_id.tolist()
    readers = [0] * len(kinds)
    for node, sources in enumerate(inputs):
        for source in sources:
            readers[source] += 1
        if kinds[node] >= n_states:
            (read,) = sources
            assert kinds[read] < n_states if kinds[node] == n_states else kinds[read] == n_states
    n_of_kind = np.bincount(kinds, minlength=dag.n_types)
    assert n_of_kind[n_states:].tolist() == [n_of_kind[:n_states].sum()] * (dag.n_types - n_states)
    return [n for n, kind in zip(readers, kinds, strict=True) if kind < n_states]


def test_trees_are_binary() -> None:
    heights = []
    for seed in range(N_DRAWS):
        dag = draw_trees(np.random.default_rng(seed))
        n_heads = dag.n_types - 2
        is_read = min(n_heads, 1)
        assert set(read_by_heads(dag, 2)) == {is_read, is_read + 1}  # every node has a head, and all but roots a parent
        assert [set(np.diff(dag.edge_ptr)[dag.type_id == kind]) for kind in (0, 1)] == [{0}, {2}]
        heights.append(int(find_depths(dag.edge_ptr, dag.edge_src).max()) - n_heads)
    assert np.quantile(heights, [0, 0.5, 1]).tolist() == [2, 6, 16]


def test_chains_are_chains() -> None:
    for seed in range(N_DRAWS):
        dag = draw_chains(np.random.default_rng(seed))
        assert max(map(len, inputs_of(dag))) == 1
        assert np.bincount(dag.edge_src).max() <= 2  # the next step and an output


def test_grammars_have_leaves_of_one_kind_and_a_number_of_children_by_kind() -> None:
    n_inner = n_short = 0
    for seed in range(N_DRAWS):
        dag = draw_grammars(np.random.default_rng(seed))
        n_inputs = np.diff(dag.edge_ptr)
        assert np.array_equal(n_inputs == 0, dag.type_id == 0)
        most = np.array([n_inputs[dag.type_id == kind].max(initial=0) for kind in range(dag.n_types)])
        assert most.max() <= 3
        n_inner += int(np.count_nonzero(dag.type_id))
        n_short += int(np.count_nonzero(n_inputs < most[dag.type_id]))  # where nodes ran out
    assert 0 < n_short < 0.2 * n_inner


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(PolicyError, match="family 'shrubs' is not known; the families are random-dags, grammars, chai"):
        draw("shrubs", np.random.default_rng(0))
