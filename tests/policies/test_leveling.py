"""Rows assigned early, late and levelled: valid schedules of one sequence, and levelled ones never slower."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import get_args

import numpy as np
import pytest

from autobatch.errors import PolicyError, ScheduleError
from autobatch.graph.build import make_graph, merge_graphs
from autobatch.graph.dag import Dag, to_dag
from autobatch.graph.graph import Graph, NamedTypes
from autobatch.jit.arrays import IntArray
from autobatch.policies.cost import CostModel
from autobatch.policies.sequences.compaction import compact
from autobatch.policies.sequences.embedding import embed_early, embed_late, to_schedule_at
from autobatch.policies.sequences.levelling import Assign, assign_rows, predict_us
from autobatch.schedule.schedule_check import check_schedule
from counting import plain_loops
from graphs import LETTERS, chain, random_batch, random_dag, random_tree
from supersequences import inputs_of, random_sequence
from ways import each

COSTS = CostModel(*np.array([[2.0, 3.0, 1.0, 2.0, 1.0], [0.5, 1.0, 0.25, 0.0, 1.0], [4.0, 3.0, 8.0, 2.0, 0.0]]))


def compacted(dag: Dag, seed: int) -> IntArray:
    return compact(dag, random_sequence(dag, np.random.default_rng(seed), spare=0.2))


def fastest(dag: Dag, sequence: IntArray, costs: CostModel) -> float:
    """The least predicted time over all assignments, one by one."""
    own = [np.flatnonzero(sequence == kind).tolist() for kind in dag.type_id]
    return min(
        predict_us(dag, sequence, np.array(places, np.int32), costs)
        for places in product(*own)
        if all(places[source] < places[node] for node in range(len(own)) for source in inputs_of(dag, node))
    )


@each("seed", range(40))
@each("draw", [random_batch, random_tree])
def test_levelled_schedules_are_valid_and_never_slower(draw: Callable[[int], Graph], seed: int) -> None:
    graph = draw(seed)
    dag = to_dag(graph)
    sequence = compacted(dag, seed)
    times = {}
    for assign in get_args(Assign):
        position = assign_rows(dag, sequence, assign, COSTS)
        schedule = to_schedule_at(dag, sequence, position)
        check_schedule(graph, schedule)
        times[assign] = COSTS.schedule_us(schedule)
        assert times[assign] == pytest.approx(predict_us(dag, sequence, position, COSTS))
    assert times["level"] <= min(times["early"], times["late"])


def test_early_and_late_are_the_embeddings() -> None:
    dag = to_dag(random_batch(3))
    sequence = compacted(dag, 3)
    assert assign_rows(dag, sequence).tolist() == embed_early(dag, sequence).tolist()
    assert assign_rows(dag, sequence, "late").tolist() == embed_late(dag, sequence).tolist()


def test_it_comes_close_to_the_fastest_of_all_assignments() -> None:
    costs = CostModel(np.ones(2), np.ones(2), np.full(2, 3.0))
    letters = NamedTypes(("a", "b"))
    optimal = reached = start = 0.0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        kinds = [rng.integers(2, size=length).tolist() for length in (3, 2, 2, 1, 1)]
        dag = to_dag(merge_graphs([make_graph(letters, k, [(n, n + 1) for n in range(len(k) - 1)]) for k in kinds]))
        sequence = compacted(dag, seed)
        level = predict_us(dag, sequence, assign_rows(dag, sequence, "level", costs), costs)
        best = fastest(dag, sequence, costs)
        assert level >= best
        optimal, reached = optimal + best, reached + level
        start += min(predict_us(dag, sequence, embed(dag, sequence), costs) for embed in (embed_early, embed_late))
    assert reached <= 1.005 * optimal
    assert start > 1.02 * optimal


def test_a_large_batch_fills_a_small_one() -> None:
    """Ten a, of which one is read by b, which the second a reads: up to nine can wait.

    a0 - b10 - a11    a1 ... a9
    """
    graph = make_graph(LETTERS, [0] * 10 + [1, 0], [(0, 10), (10, 11)])
    dag = to_dag(graph)
    sequence = np.array([0, 1, 0], np.int32)
    costs = CostModel(np.ones(4), np.ones(4), np.full(4, 4.0))
    position = assign_rows(dag, sequence, "level", costs)
    rows = np.bincount(position).tolist()
    assert rows[1] == 1
    assert min(rows[0], rows[2]) >= 4
    assert predict_us(dag, sequence, position, costs) == 3 + 11 + 4
    assert predict_us(dag, sequence, embed_early(dag, sequence), costs) == 3 + 10 + 4 + 4


def test_what_cannot_be_assigned_is_refused() -> None:
    dag = to_dag(chain("a", "b", "a"))
    sequence = np.array([0, 1, 0], np.int32)
    with pytest.raises(PolicyError, match="assign='soon' is none of early, late, level"):
        assign_rows(dag, sequence, "soon")  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="assign='level' weighs batches, but costs is None"):
        assign_rows(dag, sequence, "level")
    with pytest.raises(ScheduleError, match=r"node 2 \(type 0\) finds no place"):
        assign_rows(dag, sequence[:2], "early")


def test_an_empty_graph_has_no_rows() -> None:
    dag = to_dag(random_dag(0, n_nodes=0))
    assert assign_rows(dag, np.empty(0, np.int32), "level", CostModel.counting(4)).size == 0


@each("seed", range(3))
def test_plain_loops_do_the_same(seed: int) -> None:
    dag = to_dag(random_batch(seed))
    sequence = compacted(dag, seed)
    with plain_loops():
        plain = assign_rows(dag, sequence, "level", COSTS)
    assert plain.tolist() == assign_rows(dag, sequence, "level", COSTS).tolist()
