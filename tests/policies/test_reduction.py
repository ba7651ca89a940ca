"""Test kernels and projections against the strings along the paths, which determine all schedules."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from autobatch.errors import PolicyError
from autobatch.graph.build import make_graph, merge_graphs
from autobatch.graph.dag import Dag, reverse, to_dag
from autobatch.graph.graph import Graph, NamedTypes
from autobatch.models.data.lattice import read_lattices
from autobatch.models.data.sst import read_trees
from autobatch.models.shapes import make_lattice_graph, make_two_type_tree_graph
from autobatch.policies.search import reduction
from autobatch.policies.search.bounds import pair_bound
from autobatch.policies.search.exact import beam_search, find_shortest
from autobatch.policies.search.reduction import project, reduce_graph
from helpers.checkers.supersequences import fewest_batches, finishes_paths, inputs_of, is_subsequence, paths_from
from helpers.data.datasets import SMALL, real
from helpers.programs.graphs import chain, dags, random_batch, random_dag, random_tree

AB = NamedTypes(("a", "b"))


def small_dag(seed: int) -> Dag:
    """Draw a DAG of up to 13 nodes with two or four types, or a tree."""
    graphs = [random_dag(seed, 4 + seed % 10, AB), random_dag(seed, 4 + seed % 10), random_tree(seed, 1 + seed % 5)]
    return to_dag(graphs[seed % 3])


def longest_strings(dag: Dag, kept: Collection[int]) -> set[tuple[int, ...]]:
    """Return the strings of kept types along the paths, without subsequences of other strings."""
    strings = {
        tuple(kind for kind in path if kind in kept)
        for node in range(dag.type_id.size)
        if not inputs_of(dag, node)
        for path in paths_from(dag, node)
    } - {()}
    return {s for s in strings if not any(s != other and is_subsequence(s, other) for other in strings)}


@settings(deadline=None)
@given(graph=dags())
def test_a_reduced_graph_has_the_paths_that_matter(graph: Graph) -> None:
    dag = to_dag(graph)
    small, node = reduce_graph(dag)
    everything = range(dag.n_types)
    assert longest_strings(small, everything) == longest_strings(dag, everything)
    assert all(source < reader for reader in range(small.type_id.size) for source in inputs_of(small, reader))
    stands = node >= 0
    np.testing.assert_array_equal(small.type_id[node[stands]], dag.type_id[stands])
    assert set(node[stands].tolist()) == set(range(small.type_id.size))
    again = reduce_graph(small).dag
    assert [again.type_id.size, again.edge_src.size] == [small.type_id.size, small.edge_src.size]
    assert reduce_graph(reverse(dag)).dag.type_id.size == small.type_id.size


@settings(deadline=None, max_examples=50)
@given(graph=dags(max_nodes=9, types=AB))
def test_a_reduced_graph_keeps_the_optimum_and_what_finishes(graph: Graph) -> None:
    dag = to_dag(graph)
    small = reduce_graph(dag).dag
    assert fewest_batches(small) == fewest_batches(dag)
    for sequence in product(range(2), repeat=fewest_batches(dag)):
        assert finishes_paths(small, sequence) == finishes_paths(dag, sequence)


@pytest.mark.slow
@settings(deadline=None)
@given(graph=dags())
def test_a_projection_has_the_paths_with_the_rest_struck_out(graph: Graph) -> None:
    dag = to_dag(graph)
    for n_types in (1, 2, 3):
        for types in combinations(range(dag.n_types), n_types):
            assert longest_strings(project(dag, types), range(dag.n_types)) == longest_strings(dag, types)
            assert longest_strings(project(reduce_graph(dag).dag, types), types) == longest_strings(dag, types)


def test_reductions_of_little() -> None:
    """An empty graph, two equal chains, and a chain next to a part of it."""
    assert reduce_graph(to_dag(random_dag(0, n_nodes=0))).dag.type_id.size == 0
    dag = to_dag(chain("a", "b", "a"))
    assert reduce_graph(dag).dag.type_id.tolist() == [0, 1, 0]
    beside = Dag(
        np.array([0, 1, 0, 0, 1], np.int32), np.array([0, 0, 1, 2, 2, 3], np.int32), np.array([0, 1, 3], np.int32), 2
    )
    small, node = reduce_graph(beside)
    assert small.type_id.tolist() == [0, 1, 0]
    assert node.tolist() == [0, 1, 2, 0, 1]


@pytest.mark.slow
def test_many_edges_are_not_in_the_way() -> None:
    """Mini-batches of several graphs never grow and keep their strings."""
    for seed in range(100):
        dag = to_dag(random_batch(seed))
        small = reduce_graph(dag).dag
        assert small.type_id.size <= dag.type_id.size
        assert longest_strings(small, range(4)) == longest_strings(dag, range(4))


def test_a_graph_too_large_to_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduction, "MAX_SUFFIXES", 2)
    dag = to_dag(chain("a", "b", "a"))
    assert reduce_graph(dag).dag.type_id.size == 3
    assert project(dag, [0]).type_id.size == 2
    for search in (find_shortest, beam_search, pair_bound):
        with pytest.raises(PolicyError, match=r"at most 2 nodes .* got 3"):
            search(dag)


def test_a_graph_too_large_to_be_compared_is_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """a → b → a twice, and a → a, which they contain. Merging leaves an edge past b; comparing removes it."""
    dag = to_dag(merge_graphs([chain("a", "b", "a"), chain("a", "b", "a"), make_graph(AB, [0, 0], [(0, 1)])]))
    assert reduce_graph(dag).dag.edge_src.tolist() == [0, 1]
    monkeypatch.setattr(reduction, "MAX_COMPARED", 0)
    assert reduce_graph(dag).dag.edge_src.tolist() == [0, 0, 1]
    for seed in range(50):
        dag = small_dag(seed)
        assert longest_strings(reduce_graph(dag).dag, range(4)) == longest_strings(dag, range(4))


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("folder", "of_lattices", "of_trees"),
    [
        (SMALL, [("arity", 1227, 328), ("variadic", 1227, 237), ("folded", 1020, 116)], (6133, 165)),
        real([("arity", 4607, 1859), ("variadic", 4607, 984), ("folded", 3847, 533)], (30061, 437)),
    ],
)
def test_reductions_of_lattices_and_trees(
    folder: Path, of_lattices: list[tuple[str, int, int]], of_trees: tuple[int, int]
) -> None:
    lattices = read_lattices(folder / "lattice" / "train.txt")[:32]
    sizes = [
        (form, graph.n_nodes, reduce_graph(to_dag(graph)).dag.type_id.size)
        for form in ("arity", "variadic", "folded")
        for graph in [make_lattice_graph(lattices, form)]
    ]
    assert sizes == of_lattices
    trees = read_trees(folder / "sst" / "train.txt")[:256]
    graph = make_two_type_tree_graph(trees, np.random.default_rng(0))
    assert (graph.n_nodes, reduce_graph(to_dag(graph)).dag.type_id.size) == of_trees
