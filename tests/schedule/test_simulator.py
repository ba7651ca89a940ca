"""Test DAGs and simulations of schedules against their definitions, after every batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from autobatch._native import Simulation, find_depths
from autobatch.graph.dag import Dag, chains_ahead, reverse, stack, to_dag
from autobatch.policies.fsm.practice import CRITICAL, PUBLISHED
from autobatch.schedule.schedule import Schedule, chain_lengths
from autobatch.schedule.schedule_check import check_schedule
from helpers.programs.graphs import random_batch, random_dag
from helpers.runs.ways import each

SEEDS = range(20)


def edges(dag: Dag) -> list[tuple[int, int]]:
    """Return (source, reader) pairs, with repeated edges."""
    return [(int(s), n) for n in range(dag.type_id.size) for s in dag.edge_src[dag.edge_ptr[n] : dag.edge_ptr[n + 1]]]


def paths(dag: Dag, node: int) -> Iterator[list[int]]:
    yield [node]
    for reader in {reader for source, reader in edges(dag) if source == node}:
        for path in paths(dag, reader):
            yield [node, *path]


def most_ahead(dag: Dag, node: int) -> list[int]:
    """Return the most nodes of each type on a path from a node."""
    return [max(sum(dag.type_id[n] == kind for n in path) for path in paths(dag, node)) for kind in range(dag.n_types)]


class TestDag:
    @each("seed", SEEDS)
    def test_depths_are_those_of_the_longest_paths(self, seed: int) -> None:
        graph = random_batch(seed)
        expected: list[int] = []
        for node in range(graph.n_nodes):
            expected.append(max((expected[source] + 1 for source in graph.inputs_of(node)), default=0))
        assert find_depths(graph.edge_ptr, graph.edge_src).tolist() == expected

    @each("seed", SEEDS)
    def test_the_reverse_turns_every_edge_round(self, seed: int) -> None:
        dag = to_dag(random_batch(seed))
        turned, last = reverse(dag), dag.type_id.size - 1
        assert sorted(edges(turned)) == sorted((last - reader, last - source) for source, reader in edges(dag))
        assert turned.type_id.tolist() == dag.type_id.tolist()[::-1]

    @each("seed", SEEDS)
    def test_chains_ahead(self, seed: int) -> None:
        dag = to_dag(random_dag(seed, n_nodes=8))
        assert chains_ahead(dag).tolist() == [most_ahead(dag, node) for node in range(8)]

    @each("seed", SEEDS)
    def test_the_chain_bound_is_the_same_from_both_ends(self, seed: int) -> None:
        graph = random_batch(seed)
        for dag in (to_dag(graph), reverse(to_dag(graph))):
            assert chains_ahead(dag).max(axis=0, initial=0).tolist() == chain_lengths(graph).tolist()


class TestSimulation:
    """`tests/policies/test_deep.py` checks frontiers and chains, through the features that a network reads."""

    @each("seed", SEEDS)
    def test_a_step_runs_all_that_is_ready_of_a_type(self, seed: int) -> None:
        graph = random_batch(seed)
        rng, sim = np.random.default_rng(seed), Simulation(to_dag(graph))
        done: set[int] = set()
        while len(done) < graph.n_nodes:
            left = [n for n in range(graph.n_nodes) if n not in done]
            ready = {n for n in left if set(graph.inputs_of(n)) <= done}
            by_type = [{n for n in ready if graph.type_id[n] == kind} for kind in range(graph.n_types)]
            assert sim.ready().tolist() == [len(nodes) for nodes in by_type]
            assert sim.unrun().tolist() == np.bincount(graph.type_id[left], minlength=graph.n_types).tolist()
            kind = int(rng.choice(np.flatnonzero(sim.ready())))
            sim.step(kind)
            assert set(Schedule(*sim.batches()).order[len(done) :].tolist()) == by_type[kind]
            done |= by_type[kind]
        check_schedule(graph, Schedule(*sim.batches()))
        assert not sim.ready().any()

    @each("seed", SEEDS)
    def test_a_critical_type_lowers_the_bound_by_one_and_no_other_does(self, seed: int) -> None:
        graph = random_batch(seed)
        sim, rng = Simulation(to_dag(graph)), np.random.default_rng(seed)
        assert sim.bound() == chain_lengths(graph).sum()
        while sim.ready().any():
            kind = int(rng.choice(np.flatnonzero(sim.ready())))
            expected = sim.bound() - (sim.reward(CRITICAL, kind) == 0)
            sim.step(kind)
            assert sim.bound() == expected
        assert sim.bound() == 0

    @each("seed", SEEDS)
    def test_stacked_dags_run_as_each_alone(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        dags = [to_dag(random_batch(s)) for s in rng.integers(0, 1000, size=6)]
        many, alone = Simulation(*stack(dags)), [Simulation(dag) for dag in dags]
        n_types = dags[0].n_types
        for _ in range(100):
            assert sum(sim.bound() for sim in alone) == many.bound()
            for g, sim in enumerate(alone):
                mine = slice(g * n_types, (g + 1) * n_types)
                assert many.ready()[mine].tolist() == sim.ready().tolist()
                assert many.unrun()[mine].tolist() == sim.unrun().tolist()
                if not sim.ready().any():
                    continue
                kind = int(rng.choice(np.flatnonzero(sim.ready())))
                for reward in (PUBLISHED, CRITICAL):
                    assert many.reward(reward, g * n_types + kind) == sim.reward(reward, kind)
                sim.step(kind)
                many.step(g * n_types + kind)
        assert not many.ready().any()

    def test_what_is_not_ready_cannot_run(self) -> None:
        sim = Simulation(to_dag(random_dag(0)))
        sim.step(first := int(np.argmax(sim.ready())))
        while sim.ready()[first]:
            sim.step(first)
        for kind in (-1, 4, first):
            with pytest.raises(ValueError, match=f"type must have a ready node, got {kind}"):
                sim.step(kind)
        with pytest.raises(ValueError, match="node_ptr must be the ranges of stacked DAGs"):
            Simulation(to_dag(random_dag(0)), np.array([0, 1], np.int32))
