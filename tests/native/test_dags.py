"""Test loops over types and edges, and those that assign rows to kept values, against their definitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from autobatch import _native
from autobatch._native import move_rows
from autobatch.graph.dag import Dag, chains_ahead, reverse, to_dag
from autobatch.graph.growing import IN_USE, KEPT, MARK, N_OF_VALUES, NOWHERE, READERS, ROW, SLOT
from helpers.programs.graphs import random_batch, random_dag, random_toys

MANY = [pytest.param(range(60), id="some"), pytest.param(range(60, 2000), id="many", marks=pytest.mark.slow)]


def draw(seed: int) -> Dag:
    """Draw a batch of small DAGs, a larger DAG, or one whose nodes read others twice."""
    return to_dag([random_batch(seed), random_dag(seed, seed % 90), random_toys(seed)][seed % 3])


def edges_of(dag: Dag) -> list[list[int]]:
    return [dag.edge_src[dag.edge_ptr[n] : dag.edge_ptr[n + 1]].tolist() for n in range(dag.type_id.size)]


@pytest.mark.parametrize("seeds", MANY)
def test_a_reversed_node_reads_its_readers_in_order(seeds: range) -> None:
    for seed in seeds:
        dag = draw(seed)
        turned, last, edges = reverse(dag), dag.type_id.size - 1, edges_of(dag)
        readers = [[n for n, sources in enumerate(edges) for s in sources if s == node] for node in range(last + 1)]
        assert edges_of(turned) == [sorted(last - n for n in readers[last - node]) for node in range(last + 1)]
        assert turned.type_id.tolist() == dag.type_id.tolist()[::-1]
        assert turned.n_types == dag.n_types


@pytest.mark.parametrize("seeds", MANY)
def test_depths_and_chains_are_those_of_the_longest_paths(seeds: range) -> None:
    for seed in seeds:
        dag = draw(seed)
        n_nodes, edges = dag.type_id.size, edges_of(dag)
        deep, ahead = [0] * n_nodes, np.zeros((n_nodes, dag.n_types), int)
        for node, sources in enumerate(edges):
            deep[node] = max((deep[source] + 1 for source in sources), default=0)
        assert _native.find_depths(dag.edge_ptr, dag.edge_src).tolist() == deep
        for node in reversed(range(n_nodes)):
            readers = [n for n, sources in enumerate(edges) if node in sources]
            ahead[node] = np.max([ahead[n] for n in readers], axis=0) if readers else 0
            ahead[node, dag.type_id[node]] += 1
        assert chains_ahead(dag).tolist() == ahead.tolist()


def test_what_does_not_fit_is_said() -> None:
    dag = to_dag(random_dag(3, 8))
    ptr, src = dag.edge_ptr, dag.edge_src
    with pytest.raises(TypeError, match="type_id must be an array of int32, got one of int64"):
        reverse(dag._replace(type_id=dag.type_id.astype(np.int64)))
    with pytest.raises(ValueError, match="type_id must have an element for each of 8 nodes, got 7"):
        reverse(dag._replace(type_id=dag.type_id[1:]))
    with pytest.raises(ValueError, match=r"edge_src must lie in 0\.\.7, got another node"):
        _native.find_depths(ptr, src + np.int32(8))
    with pytest.raises(ValueError, match="edge_ptr must rise from 0 to the number of edges"):
        _native.find_depths(ptr, src[1:])
    with pytest.raises(ValueError, match=r"type_id must lie in 0\.\.n_types - 1, got other ids for n_types=1"):
        chains_ahead(dag._replace(n_types=1))


@dataclass
class Tables:
    """Tables of kept values by definition: the value of each row, and a stack of free rows."""

    held: list[dict[int, int]]
    free: list[list[int]]
    size: list[int]


@pytest.mark.parametrize("seeds", MANY)
def test_rows_are_given_to_what_may_be_read(seeds: range) -> None:
    n_slots, n_rows, n_values = 3, 40, 30
    for seed in seeds:
        rng = np.random.default_rng(seed)
        values = np.zeros((N_OF_VALUES, n_values), np.int32)
        values[KEPT] = NOWHERE
        held, free = np.full((n_slots, n_rows), NOWHERE, np.int32), np.zeros((n_slots, n_rows), np.int32)
        free[:] = np.arange(n_rows)[::-1]
        n_free, size = np.full(n_slots, n_rows, np.int32), np.zeros(n_slots, np.int32)
        tables = Tables([{} for _ in range(n_slots)], free.tolist(), [0] * n_slots)
        for now in range(1, 6):
            values[IN_USE], values[READERS] = rng.random((2, n_values)) < 0.2
            values[MARK] = rng.choice([0, now, -now, 1 - now], n_values, p=[0.6, 0.2, 0.1, 0.1])
            lost = np.flatnonzero(values[KEPT] == NOWHERE)
            of = rng.choice(lost, int(rng.integers(0, lost.size + 1)), replace=False).astype(np.int32)
            values[SLOT, of], values[ROW, of] = rng.integers(0, n_slots, of.size), rng.integers(0, 99, of.size)
            read = (values[IN_USE] != 0) | (values[READERS] > 0) | (values[MARK] == -now)
            expected = move_by_hand(tables, values, of.tolist(), {*np.flatnonzero(read).tolist()})
            found, rows, ptr = move_rows(values, of, now, held, free, n_free, size)
            moved = [*zip(found.tolist(), rows.tolist(), strict=True)]
            assert [moved[ptr[slot] : ptr[slot + 1]] for slot in range(n_slots)] == expected
            for slot in range(n_slots):
                assert {r: v for r, v in enumerate(held[slot].tolist()) if v != NOWHERE} == tables.held[slot]
                assert free[slot, : n_free[slot]].tolist() == tables.free[slot]
            assert size.tolist() == tables.size
            place = {v: row for own in tables.held for row, v in own.items()}
            assert values[KEPT].tolist() == [place.get(v, NOWHERE) for v in range(n_values)]


def move_by_hand(tables: Tables, values: Any, of: list[int], readable: set[int]) -> list[list[tuple[int, int]]]:
    """Return, for each slot, the rows in results and in the table of the values that get one."""
    for own, free in zip(tables.held, tables.free, strict=True):
        for row in sorted(own):
            if own[row] not in readable:
                del own[row]
                free.append(row)
    moved: list[list[tuple[int, int]]] = [[] for _ in tables.held]
    for v in of:
        if v in readable:
            slot = int(values[SLOT, v])
            row = tables.free[slot].pop()
            tables.held[slot][row] = v
            tables.size[slot] = max(tables.size[slot], row + 1)
            moved[slot].append((int(values[ROW, v]), row))
    return moved
