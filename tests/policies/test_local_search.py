"""Test local search: never worse, optimal on small graphs, reproducible, and within its budget."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from autobatch.arrays import IntArray
from autobatch.errors import ScheduleError
from autobatch.graph.build import make_graph, merge_graphs
from autobatch.graph.dag import Dag, to_dag
from autobatch.graph.graph import NamedTypes
from autobatch.policies.search.reduction import reduce_graph
from autobatch.policies.search.search import local_search
from autobatch.policies.sequences import compact, finishes
from helpers.checkers.supersequences import fewest_batches, random_sequence
from helpers.programs.graphs import chain, random_batch, random_dag
from helpers.runs.ways import each


def start_of(dag: Dag, seed: int) -> IntArray:
    return random_sequence(dag, np.random.default_rng(seed), spare=0.3)


@each("seed", range(60))
def test_it_finds_the_fewest_batches_of_small_graphs(seed: int) -> None:
    dag = to_dag(random_dag(seed, n_nodes=seed % 13))
    found = local_search(dag, start_of(dag, seed), np.random.default_rng(seed), max_steps=2000)
    assert finishes(dag, found)
    assert found.size == fewest_batches(dag)


@each("seed", range(20))
def test_a_reduced_graph_serves_as_well(seed: int) -> None:
    dag = to_dag(random_batch(seed))
    reduced = reduce_graph(dag).dag
    start = start_of(dag, seed)
    found = local_search(reduced, start, np.random.default_rng(seed), max_steps=1000)
    assert finishes(dag, found)
    assert found.size <= compact(dag, start).size


def test_it_improves_on_compaction() -> None:
    dag = to_dag(merge_graphs([random_dag(seed, n_nodes=25) for seed in range(8)]))
    start = start_of(dag, 0)
    lengths = [local_search(dag, start, np.random.default_rng(0), max_steps=n).size for n in (0, 100, 2000)]
    assert lengths[0] == compact(dag, start).size
    assert lengths[2] <= lengths[1] <= lengths[0]
    assert lengths[2] < 0.95 * lengths[0]


def test_the_same_seed_gives_the_same_sequence() -> None:
    dag = to_dag(merge_graphs([random_dag(seed, n_nodes=25) for seed in range(8)]))
    first, again, other = (local_search(dag, start_of(dag, 0), np.random.default_rng(s), 300) for s in (1, 1, 2))
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()


def test_the_permutations_of_three_types_take_seven_batches() -> None:
    letters = NamedTypes(("a", "b", "c"))
    chains = [make_graph(letters, list(order), [(0, 1), (1, 2)]) for order in permutations(range(3))]
    dag = to_dag(merge_graphs(chains))
    found = local_search(dag, np.array([0, 1, 2] * 3, np.int32), np.random.default_rng(0), 2000)
    assert finishes(dag, found)
    assert found.size == 7


def test_it_stops_when_it_is_good_enough() -> None:
    dag = to_dag(merge_graphs([random_dag(seed, n_nodes=25) for seed in range(8)]))
    start = start_of(dag, 0)
    short = compact(dag, start)
    enough = local_search(dag, start, np.random.default_rng(0), 10**9, enough=float(short.size))
    assert enough.tolist() == short.tolist()


def test_a_start_that_does_not_finish_is_refused_and_an_empty_graph_needs_nothing() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ScheduleError, match="does not finish the graph"):
        local_search(to_dag(chain("a", "b", "a")), np.array([0, 1], np.int32), rng)
    assert local_search(to_dag(random_dag(0, n_nodes=0)), np.array([0, 1], np.int32), rng).tolist() == []
