"""Test bounds against the optimum, and certificates."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, to_dag
from autobatch.models.data.lattice import read_lattices
from autobatch.models.data.sst import read_trees
from autobatch.models.shapes import make_lattice_graph, make_two_type_tree_graph
from autobatch.policies.search.bounds import Certificate, certify, chain_bound, pair_bound
from autobatch.policies.search.exact import beam_search, find_shortest
from autobatch.policies.search.reduction import project
from autobatch.schedule.schedule import min_batches
from helpers.data.datasets import REAL, SMALL, needs_real, real
from helpers.programs.graphs import chain, random_batch, random_dag


def lattice_dag(folder: Path, form: str) -> Dag:
    """Return the DAG of the first 32 lattices of the training file."""
    return to_dag(make_lattice_graph(read_lattices(folder / "lattice" / "train.txt")[:32], form))


@pytest.mark.cases(1)
@pytest.mark.parametrize("weighted", [False, True])
def test_bounds_are_in_order(weighted: bool) -> None:
    totals = np.zeros(4)
    for seed in range(40):
        graph = random_batch(seed) if seed % 2 else random_dag(seed, 30)
        dag = to_dag(graph)
        prices = np.random.default_rng(seed).lognormal(size=dag.n_types) if weighted else np.ones(dag.n_types)
        dag = dag._replace(costs=prices if weighted else None)
        exact = find_shortest(dag)
        assert exact.proven
        worst = np.tile(np.arange(dag.n_types), dag.type_id.size).astype(np.int32)  # so that every search is done
        pairs, all_types = (pair_bound(dag, known=worst, max_types=n) for n in (2, dag.n_types))
        bounds = [chain_bound(dag), pairs.value, all_types.value, exact.cost]
        assert np.all(np.diff(bounds) >= -1e-6), f"seed {seed}: {bounds}"
        assert pair_bound(dag).value <= exact.cost + 1e-6
        assert pairs.chain == chain_bound(dag) == pytest.approx(prices @ longest_chains(dag))
        if not weighted:
            assert bounds[0] == min_batches(graph)
        for types, part in all_types.parts.items():
            assert part == pytest.approx(find_shortest(project(dag, types)).cost)
        totals += bounds
    assert totals[0] < totals[1] < totals[3]
    np.testing.assert_allclose(totals[2], totals[3])


def longest_chains(dag: Dag) -> list[int]:
    """Count the most nodes of each type on a path, node by node."""
    longest = np.zeros((dag.type_id.size + 1, dag.n_types), int)
    for node in range(dag.type_id.size):
        sources = dag.edge_src[dag.edge_ptr[node] : dag.edge_ptr[node + 1]]
        longest[node] = longest[[*sources, -1]].max(axis=0)
        longest[node, dag.type_id[node]] += 1
    return [int(length) for length in longest.max(axis=0)]


def test_a_small_budget_bounds_too() -> None:
    for seed in range(30):
        dag = to_dag(random_dag(seed, 60))
        optimum = find_shortest(dag).cost
        for max_states in (1, 100, 1000):
            bound = pair_bound(dag, max_states)
            assert chain_bound(dag) <= bound.value <= optimum


def test_no_nodes_need_no_batches() -> None:
    dag = to_dag(random_dag(0, n_nodes=0))
    assert (chain_bound(dag), pair_bound(dag).value) == (0, 0)
    assert certify(dag, np.empty(0, np.int32), 0).optimal


def test_certificates() -> None:
    dag = to_dag(chain("a", "b", "a"))
    best, longer = np.array([0, 1, 0], np.int32), np.array([0, 1, 0, 1], np.int32)
    costly = dag._replace(costs=np.array([2.0, 0.5]))
    assert certify(dag, best, 3) == Certificate(3, 3, 3)
    assert str(certify(dag, best, 3)) == "3 batches, bound 3, proven optimal"
    assert str(certify(dag, longer, 3)) == "4 batches, bound 3, at most 33.3% above the optimum"
    assert str(certify(costly, longer, 4.5)) == "4 batches that cost 5, bound 4.5, at most 11.1% above the optimum"
    assert certify(costly, best, chain_bound(costly)).optimal


def test_certificates_that_are_refused() -> None:
    dag = to_dag(chain("a", "b", "a"))
    with pytest.raises(PolicyError, match="finish the graph of 3 nodes"):
        certify(dag, np.array([0, 0, 1], np.int32), 3)
    with pytest.raises(PolicyError, match=r"at least the bound, 4, got 3"):
        certify(dag, np.array([0, 1, 0], np.int32), 4)


def test_without_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    dag = Dag(np.array([0, 1, 1, 0], np.int32), np.array([0, 0, 1, 1, 2], np.int32), np.array([0, 2], np.int32), 2)
    with pytest.raises(
        PolicyError, match=r"scipy is not installed; pip install 'autobatch-nn\[search\]', or use the chain"
    ):
        pair_bound(dag)


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("folder", "form", "chains", "better"),
    [(SMALL, "variadic", 51, 56), (SMALL, "folded", 36, 36), real("variadic", 209, 220), real("folded", 150, 150)],
)
def test_lattices_are_proven(folder: Path, form: str, chains: int, better: int) -> None:
    dag = lattice_dag(folder, form)
    bound = pair_bound(dag)
    assert (bound.chain, bound.value) == (chains, better)
    assert certify(dag, beam_search(dag, 256), bound.value).optimal


@needs_real
@pytest.mark.slow
def test_lattices_with_a_type_per_arity() -> None:
    dag = lattice_dag(REAL, "arity")
    bound = pair_bound(dag)
    assert (bound.chain, bound.value) == (216, 228)
    assert certify(dag, beam_search(dag, 256), bound.value).cost <= 235


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "bounds"),
    [
        (SMALL, [(28, 29), (31, 31), (26, 28), (25, 28), (27, 29)]),
        real([(35, 37), (31, 36), (30, 35), (32, 35), (31, 35)]),
    ],
)
def test_two_type_trees_are_proven(folder: Path, bounds: list[tuple[int, int]]) -> None:
    trees = read_trees(folder / "sst" / "train.txt")[:256]
    values = []
    for seed in range(5):
        dag = to_dag(make_two_type_tree_graph(trees, np.random.default_rng(seed)))
        bound = pair_bound(dag, max_types=2)
        assert certify(dag, beam_search(dag), bound.value).optimal
        values.append((bound.chain, bound.value))
    assert values == bounds
