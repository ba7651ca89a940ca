"""Test exact and beam search against all executed sets, and their results when the budget is used up."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from autobatch.arrays import FloatArray
from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, reverse, to_dag
from autobatch.graph.graph import NamedTypes
from autobatch.models.data.lattice import read_lattices
from autobatch.models.data.sst import read_trees
from autobatch.models.shapes import make_lattice_graph, make_two_type_tree_graph
from autobatch.policies.search.bounds import chain_bound
from autobatch.policies.search.exact import beam_search, find_shortest
from autobatch.policies.search.search import Search
from autobatch.policies.sequences import finishes
from helpers.checkers.supersequences import fewest_batches, finishes_paths, inputs_of
from helpers.data.datasets import SMALL, real
from helpers.programs.graphs import random_batch, random_dag, random_tree
from helpers.runs.ways import each

AB = NamedTypes(("a", "b"))


def tangled_dag(seed: int, n_nodes: int = 120, n_types: int = 3) -> Dag:
    """Draw many nodes that read one or two arbitrary earlier nodes, which makes them hard to batch."""
    rng = np.random.default_rng(seed)
    inputs = [np.unique(rng.integers(0, node, size=2 if node else 0)) for node in range(n_nodes)]
    return Dag(
        rng.integers(0, n_types, size=n_nodes).astype(np.int32),
        np.cumsum([0, *map(len, inputs)]).astype(np.int32),
        np.concatenate(inputs).astype(np.int32),
        n_types,
    )


def chains_dag(seed: int) -> Dag:
    """Draw three chains of random types; their shortest schedule is a shortest common supersequence."""
    rng = np.random.default_rng(seed)
    length, n_types = int(rng.integers(2, 6)), int(rng.integers(2, 5))
    starts = np.arange(3 * length) % length == 0
    return Dag(
        rng.integers(0, n_types, size=3 * length).astype(np.int32),
        np.cumsum([0, *~starts]).astype(np.int32),
        np.flatnonzero(~starts).astype(np.int32) - 1,
        n_types,
    )


def tiny_dag(seed: int) -> Dag:
    """Draw a tangled DAG of up to 14 nodes, three chains, a random DAG or a tree."""
    if seed % 4 < 2:
        return tangled_dag(seed, 3 + seed % 12, 2 + seed % 3) if seed % 4 else chains_dag(seed)
    return to_dag(random_dag(seed, 1 + seed % 12, AB) if seed % 4 == 2 else random_tree(seed, 1 + seed % 4))


def least_cost(dag: Dag, cost: FloatArray) -> float:
    """Return the cost of the cheapest sequence, by Dijkstra's algorithm over executed sets."""
    everything = frozenset(range(dag.type_id.size))
    ticket = count()
    waiting, settled = [(0.0, next(ticket), frozenset[int]())], set()
    while waiting:
        paid, _, done = heappop(waiting)
        if done == everything:
            return paid
        if done in settled:
            continue
        settled.add(done)
        ready = [n for n in everything - done if done.issuperset(inputs_of(dag, n))]
        for kind in {int(dag.type_id[n]) for n in ready}:
            following = done.union(n for n in ready if dag.type_id[n] == kind)
            heappush(waiting, (paid + cost[kind], next(ticket), following))
    raise AssertionError("no sequence finishes the graph")


def test_exact_search_is_brute_force_on_1000_graphs() -> None:
    n_above_chains = 0
    for seed in range(1000):
        dag = tiny_dag(seed)
        exact = find_shortest(dag)
        assert exact.proven
        assert exact.cost == exact.sequence.size == exact.lower_bound == fewest_batches(dag), f"seed {seed}"
        assert finishes_paths(dag, exact.sequence.tolist()), f"seed {seed}"
        n_above_chains += exact.cost > chain_bound(dag)
    assert n_above_chains > 100


def test_weighted_search_is_brute_force_on_300_graphs() -> None:
    n_longer = 0
    for seed in range(300):
        dag = chains_dag(seed) if seed % 2 else tangled_dag(seed, 6 + seed % 10)
        cost = np.random.default_rng(seed).lognormal(sigma=1.5, size=dag.n_types)
        exact = find_shortest(dag._replace(costs=cost))
        assert exact.proven
        np.testing.assert_allclose([exact.cost, cost[exact.sequence].sum()], least_cost(dag, cost), rtol=1e-8)
        assert finishes_paths(dag, exact.sequence.tolist()), f"seed {seed}"
        n_longer += exact.sequence.size > fewest_batches(dag)
    assert n_longer > 0


@pytest.mark.parametrize("seed", range(4))
def test_a_used_up_budget_leaves_true_bounds(seed: int) -> None:
    dag = tangled_dag(seed, 400, 4)
    exact = find_shortest(dag)
    assert exact.proven
    bounds = []
    for max_states in (1, 1000, 3000, 8000):
        partial = find_shortest(dag, max_states)
        assert chain_bound(dag) <= partial.lower_bound <= exact.cost <= partial.cost == partial.sequence.size
        assert finishes(dag, partial.sequence)
        assert partial.proven == (partial.lower_bound == partial.cost)
        bounds.append(partial.lower_bound)
    assert chain_bound(dag) < bounds[-1]
    assert bounds == sorted(bounds)


@pytest.mark.parametrize("width", [1, 4, 64])
def test_beams_finish_and_are_not_below_the_optimum(width: int) -> None:
    for seed in range(100):
        dag = tiny_dag(seed)
        sequence = beam_search(dag, width)
        assert finishes_paths(dag, sequence.tolist())
        assert sequence.size >= fewest_batches(dag)
        np.testing.assert_array_equal(sequence, beam_search(dag, width))


def test_wider_beams_are_better_in_the_sum() -> None:
    dags = [tangled_dag(seed, 200) for seed in range(10)]
    lengths = [sum(beam_search(dag, width).size for dag in dags) for width in (1, 4, 64)]
    best = sum(find_shortest(dag).lower_bound for dag in dags)
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1] >= best


def test_a_beam_minds_the_cost() -> None:
    dags = [tangled_dag(seed) for seed in range(10)]
    cost = np.array([1.0, 10.0, 100.0])
    costly = [dag._replace(costs=cost) for dag in dags]
    spent = [[cost[beam_search(dag)].sum() for dag in some] for some in (costly, dags)]
    assert sum(spent[0]) < sum(spent[1])
    for dag, price in zip(costly, spent[0], strict=True):
        assert price >= chain_bound(dag)


def test_a_known_bound_saves_states() -> None:
    dag = tangled_dag(1, 400, 4)
    exact = find_shortest(dag)
    again = find_shortest(dag, least=exact.lower_bound)
    assert again.proven
    assert again.cost == exact.cost
    assert 2 * again.n_states < exact.n_states


def test_a_graph_without_nodes() -> None:
    dag = to_dag(random_dag(0, n_nodes=0))
    exact = find_shortest(dag)
    assert (exact.cost, exact.lower_bound, exact.proven, exact.sequence.size) == (0, 0, True, 0)
    assert beam_search(dag).size == 0


@each("seed", range(20))
def test_a_graph_turned_round_has_the_same_optimum(seed: int) -> None:
    dag = to_dag(random_batch(seed))
    assert find_shortest(dag).cost == find_shortest(reverse(dag)).cost


def test_a_width_that_is_refused() -> None:
    with pytest.raises(PolicyError, match="width must be at least 1, got 0"):
        beam_search(to_dag(random_dag(0)), 0)


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("folder", "batches"),
    [
        (SMALL, {"arity": 60, "variadic": 56, "folded": 36}),
        real({"arity": 235, "variadic": 220, "folded": 150}),
    ],
)
def test_beams_on_lattices(folder: Path, batches: dict[str, int]) -> None:
    lattices = read_lattices(folder / "lattice" / "train.txt")[:32]
    for form, most in batches.items():
        assert beam_search(to_dag(make_lattice_graph(lattices, form)), 256).size <= most, form


@pytest.mark.cases(1)
@pytest.mark.parametrize(("folder", "batches"), [(SMALL, [29, 31, 28, 28, 29]), real([37, 36, 35, 35, 35])])
def test_trees_are_solved(folder: Path, batches: list[int]) -> None:
    trees = read_trees(folder / "sst" / "train.txt")[:256]
    dags = [to_dag(make_two_type_tree_graph(trees, np.random.default_rng(seed))) for seed in range(5)]
    solved = [find_shortest(dag) for dag in dags]
    assert [(exact.proven, exact.sequence.size) for exact in solved] == [(True, n) for n in batches]
    assert [beam_search(dag).size for dag in dags] == batches


def test_what_the_bound_proves_optimal_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step of a search runs, so most of its loops need not be compiled."""
    proven: list[Dag] = []
    searched: list[Dag] = []
    for seed in range(40):
        dag = tiny_dag(seed)
        (proven if Search().sequence(dag).size == chain_bound(dag) else searched).append(dag)
    assert searched, "every graph is simple"

    def refuse(dag: Dag) -> None:
        raise AssertionError("the graph is searched")

    monkeypatch.setattr("autobatch.policies.search.search.reduce_graph", refuse)
    at_once = 0
    for dag in proven:
        try:
            sequence = Search().sequence(dag)
        except AssertionError:
            continue
        at_once += 1
        assert finishes(dag, sequence)
        assert sequence.size == chain_bound(dag)
    assert at_once > 10
    with pytest.raises(AssertionError, match="is searched"):
        Search().sequence(searched[0])


def hard_dags(folder: Path) -> list[Dag]:
    """Return trees and lattices for which the chain bound proves nothing."""
    trees = read_trees(folder / "sst" / "train.txt")[:64]
    lattices = read_lattices(folder / "lattice" / "train.txt")[:16]
    graphs = [make_two_type_tree_graph(trees, np.random.default_rng(0)), make_lattice_graph(lattices)]
    return [to_dag(graph) for graph in graphs]
