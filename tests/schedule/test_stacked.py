"""Many dags stepped side by side do what each does alone."""

from __future__ import annotations

import numpy as np
import pytest

from autobatch.graph.dag import Dag, to_dag
from autobatch.policies.rules.rules import LEARNED, Score, is_ready
from autobatch.schedule.chains import start_chains
from autobatch.schedule.restricted import start_all_restricted, start_restricted, unblock
from autobatch.schedule.simulator import Simulator, stack, start, start_all, step
from helpers.programs.graphs import random_dag
from simulator import step_at_random, step_by_score

SEEDS = range(10)


def some_dags(seed: int, n: int = 5) -> list[Dag]:
    return [to_dag(random_dag(100 * seed + i)) for i in range(n)]


def history(sim: Simulator, g: int) -> list[int]:
    """The types that dag `g` ran so far, by their numbers in its own table."""
    first, n_types = sim.node_ptr[g], sim.head.size // sim.n_batches.size
    ran: list[int] = (sim.batch_type[first : first + sim.n_batches[g]] - g * n_types).tolist()
    return ran


def assert_as_alone(sim: Simulator, dags: list[Dag]) -> None:
    """Every dag is where it would be if it had run the same types alone."""
    n_types = dags[0].n_types
    for g, dag in enumerate(dags):
        alone, first = start(dag), int(sim.node_ptr[g])
        for kind in history(sim, g):
            step(alone, kind)
        n = dag.type_id.size
        ran = alone.batch_end[alone.n_batches[0] - 1] if alone.n_batches[0] else 0
        assert (sim.order[first : first + ran] - first).tolist() == alone.order[:ran].tolist()
        assert sim.waiting[first : first + n].tolist() == alone.waiting.tolist()
        mine = slice(g * n_types, (g + 1) * n_types)
        assert (sim.tail[mine] - sim.head[mine]).tolist() == (alone.tail - alone.head).tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_given_types_run_as_they_do_alone(seed: int) -> None:
    dags = some_dags(seed)
    dag, node_ptr = stack(dags)
    sim = start_all(dag, node_ptr)
    rng, done = np.random.default_rng(seed), 0
    for _ in range(12):
        for kind in rng.permutation(sim.head.size)[: 2 * len(dags)]:
            done += step(sim, kind).size if is_ready(sim, kind) else 0
        assert_as_alone(sim, dags)
    assert done == sum(int(sim.batch_end[p + k - 1]) - int(p) for p, k in zip(node_ptr, sim.n_batches, strict=False))


@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_types_run_as_they_do_alone_and_finished_dags_start_again(seed: int) -> None:
    dags = some_dags(seed)
    dag, node_ptr = stack(dags)
    sim, same = start_all(dag, node_ptr), start_all(dag, node_ptr)
    rng, again = np.random.default_rng(seed), np.random.default_rng(seed)
    n_nodes = 0
    for _ in range(15):
        n_nodes += step_at_random(sim, dag, 7, rng)
        assert_as_alone(sim, dags)
    assert n_nodes > dag.type_id.size, "dags start again"
    assert sum(step_at_random(same, dag, 7, again) for _ in range(15)) == n_nodes
    assert [history(same, g) for g in range(5)] == [history(sim, g) for g in range(5)]


@pytest.mark.parametrize("seed", SEEDS)
def test_scored_types_are_those_of_the_rule(seed: int) -> None:
    dags = some_dags(seed)
    dag, node_ptr = stack(dags)
    sim = start_all(dag, node_ptr)
    chains = start_chains(dag, sim)
    sequences = [Score().plan(alone)[0].tolist() for alone in dags]
    for k in range(1, 40):
        step_by_score(sim, chains, dag, 1, LEARNED)
        for g, sequence in enumerate(sequences):
            assert history(sim, g) == sequence[: (k - 1) % len(sequence) + 1]


@pytest.mark.parametrize("seed", SEEDS)
def test_restricted_frontiers_of_stacked_dags_are_those_of_each_alone(seed: int) -> None:
    dags = some_dags(seed)
    dag, node_ptr = stack(dags)
    n_types = dags[0].n_types
    rng = np.random.default_rng(seed)
    sim, stacked = start_all(dag, node_ptr), start_all_restricted(dag, node_ptr)
    for g, one in enumerate(dags):
        alone, restricted = start(one), start_restricted(one)
        while (alone.head < alone.tail).any():
            kind = int(rng.choice(np.flatnonzero(alone.head < alone.tail)))
            unblock(restricted, alone, step(alone, kind))
            unblock(stacked, sim, step(sim, g * n_types + kind))
            mine = slice(g * n_types, (g + 1) * n_types)
            assert stacked.frontier[mine].tolist() == restricted.frontier.tolist()
