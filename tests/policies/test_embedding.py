"""Test early and late positions against executed sets and paths, and the schedules built from positions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autobatch.arrays import IntArray
from autobatch.errors import ScheduleError
from autobatch.graph.dag import Dag, reverse, to_dag
from autobatch.graph.graph import Graph
from autobatch.policies.sequences import embed_early, embed_late, finishes, to_schedule_at
from autobatch.schedule.schedule_check import check_schedule
from helpers.checkers.supersequences import finishes_paths, is_subsequence, paths_from, random_sequence, run
from helpers.programs.graphs import chain, dags, random_batch, random_tree
from helpers.runs.ways import each

SEEDS = range(20)


def any_sequence(dag: Dag, seed: int) -> IntArray:
    """Draw a sequence that finishes the DAG for odd seeds, and one that lacks about a quarter for even seeds."""
    rng = np.random.default_rng(seed)
    sequence = random_sequence(dag, rng, spare=0.5)
    return sequence if seed % 2 else sequence[rng.random(sequence.size) < 0.75]


@settings(deadline=None)
@given(graph=dags(), seed=st.integers(0, 99))
def test_early_positions_are_where_running_the_sequence_runs_the_nodes(graph: Graph, seed: int) -> None:
    dag = to_dag(graph)
    sequence = any_sequence(dag, seed)
    assert embed_early(dag, sequence).tolist() == run(dag, sequence.tolist())


@settings(deadline=None)
@given(graph=dags(), seed=st.integers(0, 99))
def test_late_positions_are_the_last_from_which_every_path_goes_on(graph: Graph, seed: int) -> None:
    dag = to_dag(graph)
    sequence = any_sequence(dag, seed).tolist()

    def last(node: int) -> int:
        own = [k for k in range(len(sequence)) if sequence[k] == dag.type_id[node]]
        paths = list(paths_from(dag, node))
        return max((k for k in own if all(is_subsequence(p[1:], sequence[k + 1 :]) for p in paths)), default=-1)

    assert embed_late(dag, np.array(sequence, np.int32)).tolist() == [last(n) for n in range(dag.type_id.size)]


@settings(deadline=None)
@given(graph=dags(), seed=st.integers(0, 99))
def test_a_sequence_finishes_when_every_path_is_a_subsequence(graph: Graph, seed: int) -> None:
    dag = to_dag(graph)
    sequence = any_sequence(dag, seed)
    expected = finishes_paths(dag, sequence.tolist())
    assert finishes(dag, sequence) == expected
    assert (embed_early(dag, sequence).min(initial=0) >= 0) == expected
    assert (embed_late(dag, sequence).min(initial=0) >= 0) == expected


@each("seed", SEEDS)
def test_late_is_early_on_the_reversed_graph(seed: int) -> None:
    dag = to_dag(random_tree(seed))
    sequence = any_sequence(dag, seed)
    mirrored = embed_early(reverse(dag), sequence[::-1].copy())[::-1]
    assert embed_late(dag, sequence).tolist() == np.where(mirrored < 0, -1, sequence.size - 1 - mirrored).tolist()


@each("n_types", [1, 2, 7, 50])
@each("n_nodes", [0, 10, 1000])
def test_nodes_find_their_next_position_by_a_full_and_by_a_sparse_index(n_types: int, n_nodes: int) -> None:
    rng = np.random.default_rng(n_types)
    sequence = rng.integers(n_types, size=200).astype(np.int32)
    types, at = rng.integers(n_types, size=n_nodes), -1
    dag = Dag(types.astype(np.int32), np.maximum(np.arange(n_nodes + 1) - 1, 0).astype(np.int32),
              np.arange(max(n_nodes - 1, 0), dtype=np.int32), n_types)  # fmt: skip
    for kind, position in zip(types, embed_early(dag, sequence), strict=True):
        at = next((k for k in range(at + 1, sequence.size) if sequence[k] == kind), sequence.size)
        assert position == (at if at < sequence.size else -1)


def test_an_entry_that_is_no_type_of_the_graph_runs_nothing() -> None:
    dag = to_dag(chain("a", "b"))
    sequence = np.array([-1, 0, 7, 1, 2], np.int32)
    assert embed_early(dag, sequence).tolist() == [1, 3]
    assert embed_late(dag, sequence).tolist() == [1, 3]


@each("seed", SEEDS)
def test_schedules_at_the_extremes_are_valid_and_drop_empty_positions(seed: int) -> None:
    graph = random_batch(seed)
    dag = to_dag(graph)
    sequence = random_sequence(dag, np.random.default_rng(seed), spare=0.3)
    for position in (embed_early(dag, sequence), embed_late(dag, sequence)):
        schedule = to_schedule_at(dag, sequence, position)
        check_schedule(graph, schedule)
        used = sorted(set(position.tolist()))
        assert schedule.batch_type.tolist() == sequence[used].tolist()
        for k, (_, nodes) in zip(used, schedule, strict=True):
            assert nodes.tolist() == np.flatnonzero(position == k).tolist()


@each(
    "position, message",
    [
        ([0, -1], r"node 1 \(type 1\) has no position"),
        ([0, 0], "node 1 of type 1 .* position 0 the sequence has type 0"),
        ([0, 9], "node 1 of type 1 .* position 9 the sequence ends after 2 types"),
    ],
)
def test_places_that_are_none_are_refused(position: list[int], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        to_schedule_at(to_dag(chain("a", "b")), np.array([0, 1], np.int32), np.array(position, np.int32))
