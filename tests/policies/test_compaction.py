"""Test compacted sequences: minimal subsequences that finish and never go below the optimum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autobatch.arrays import IntArray
from autobatch.errors import ScheduleError
from autobatch.graph.build import merge_graphs
from autobatch.graph.dag import Dag, reverse, to_dag
from autobatch.graph.graph import Graph
from autobatch.policies import Agenda
from autobatch.policies.sequences import compact, embed_early, embed_late, finishes, to_schedule_at
from autobatch.schedule.schedule_check import check_schedule
from helpers.checkers.supersequences import fewest_batches, finishes_paths, is_subsequence, random_sequence
from helpers.programs.graphs import chain, dags, random_batch, random_dag, random_tree
from helpers.runs.ways import each

SEEDS = range(20)
GRAPHS: dict[str, Callable[[int], Graph]] = {"dag": random_dag, "tree": random_tree, "batch": random_batch}


def alternate(dag: Dag, sequence: IntArray) -> IntArray:
    """Drop positions unused by late and early embeddings, alternately, then single positions; slow but simple."""
    size = -1
    while size != sequence.size:
        size = sequence.size
        for embed in (embed_late, embed_early):
            sequence = sequence[np.unique(embed(dag, sequence))]
    k = 0
    while k < sequence.size:
        shorter = np.delete(sequence, k)
        sequence, k = (shorter, 0) if finishes(dag, shorter) else (sequence, k + 1)
    return sequence


@each("shape", GRAPHS)
@each("seed", SEEDS)
def test_what_is_left_finishes_and_nothing_of_it_can_be_left_out(shape: str, seed: int) -> None:
    graph = GRAPHS[shape](seed)
    dag = to_dag(graph)
    sequence = random_sequence(dag, np.random.default_rng(seed), spare=seed / len(SEEDS))
    short = compact(dag, sequence)
    assert is_subsequence(short.tolist(), sequence.tolist())
    check_schedule(graph, to_schedule_at(dag, short, embed_early(dag, short)))
    assert not any(finishes(dag, np.delete(short, k)) for k in range(short.size))
    assert short.size == to_schedule_at(dag, short, embed_late(dag, short)).n_batches


@settings(deadline=None)
@given(graph=dags(max_nodes=10), seed=st.integers(0, 99))
def test_it_is_checked_on_paths_and_stays_above_the_fewest_batches(graph: Graph, seed: int) -> None:
    dag = to_dag(graph)
    short = compact(dag, random_sequence(dag, np.random.default_rng(seed), spare=0.5))
    assert finishes_paths(dag, short.tolist())
    assert short.size >= fewest_batches(dag)


@each("seed", SEEDS)
def test_a_position_can_be_dropped_when_no_node_is_bound_to_it(seed: int) -> None:
    dag = to_dag(random_batch(seed))
    sequence = random_sequence(dag, np.random.default_rng(seed), spare=0.3)
    early, late = embed_early(dag, sequence), embed_late(dag, sequence)
    bound = set(early[early == late].tolist())
    for k in range(sequence.size):
        assert finishes(dag, np.delete(sequence, k)) == (k not in bound)


@each("seed", SEEDS)
def test_reversing_the_graph_reverses_the_sequence(seed: int) -> None:
    dag = to_dag(random_tree(seed))
    sequence = random_sequence(dag, np.random.default_rng(seed), spare=0.5)
    assert compact(reverse(dag), sequence[::-1].copy()).size == compact(dag, sequence).size


def test_it_is_as_short_as_the_long_way_on_average() -> None:
    direct = by_turns = 0
    for seed in range(60):
        graph = merge_graphs([random_dag(1000 * seed + i, n_nodes=25) for i in range(8)])
        dag, sequence = to_dag(graph), Agenda().schedule(graph).batch_type
        direct += compact(dag, sequence).size
        by_turns += alternate(dag, sequence).size
    assert direct <= 1.005 * by_turns


def test_what_cannot_be_compacted_is_reported() -> None:
    dag = to_dag(chain("a", "b", "a"))
    sequence = np.array([0, 1, 1], np.int32)
    with pytest.raises(ScheduleError, match=r"node 0 \(type 0\) .* does not finish"):
        compact(dag, sequence)


def test_unknown_types_and_an_empty_graph_leave_nothing_superfluous() -> None:
    assert compact(to_dag(chain("a", "b")), np.array([5, 0, -1, 1, 0], np.int32)).tolist() == [0, 1]
    assert compact(to_dag(random_dag(0, n_nodes=0)), np.array([0, 1], np.int32)).tolist() == []
