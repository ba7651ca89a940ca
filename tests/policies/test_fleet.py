"""Many dags stepped side by side do what each does alone, and what a network sees of them follows the definitions."""

from __future__ import annotations

import numpy as np
import pytest

from autobatch.graph.dag import Dag, chains_ahead, to_dag
from autobatch.policies.networks.features import OVERALL_FEATURES, TYPE_FEATURES, describe
from autobatch.policies.networks.fleet import Fleet, advance, make_fleet, restart_dag
from autobatch.policies.rules.rules import LEARNED, Score, is_ready
from autobatch.schedule.chains import start_chains
from autobatch.schedule.restricted import start_restricted, unblock
from autobatch.schedule.simulator import Simulator, stack, start, start_all, step
from graphs import random_dag
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
    fleet = make_fleet(dags)
    n_types = dags[0].n_types
    rng = np.random.default_rng(seed)
    for turn in range(3):
        for g, dag in enumerate(dags):
            alone = start(dag)
            restricted = start_restricted(dag)
            while (alone.head < alone.tail).any() and (turn == 2 or rng.random() < 0.9):
                kind = int(rng.choice(np.flatnonzero(alone.head < alone.tail)))
                unblock(restricted, alone, step(alone, kind))
                advance(fleet, g * n_types + kind)
                mine = slice(g * n_types, (g + 1) * n_types)
                assert fleet.restricted.frontier[mine].tolist() == restricted.frontier.tolist()
        for g in range(len(dags)):
            restart_dag(fleet, g)
    assert fleet.sim.n_batches.tolist() == [0] * len(dags)


def described(fleet: Fleet, g: int, n_types: int) -> tuple[np.ndarray, np.ndarray]:
    rows = np.empty((n_types, len(TYPE_FEATURES)), np.float32)
    overall = np.empty(len(OVERALL_FEATURES), np.float32)
    describe(fleet, g, rows, overall)
    return rows, overall


def defined(dag: Dag, done: set[int]) -> tuple[np.ndarray, np.ndarray]:
    """The same, from the definitions."""
    n, kinds, ahead = dag.type_id.size, dag.type_id.tolist(), chains_ahead(dag)
    inputs = [dag.edge_src[dag.edge_ptr[i] : dag.edge_ptr[i + 1]].tolist() for i in range(n)]
    unrun = [i for i in range(n) if i not in done]
    ready = [i for i in unrun if set(inputs[i]) <= done]
    before: list[set[int]] = []
    for i in range(n):
        before.append(set().union(*({s} | before[s] for s in inputs[i])))
    most = {a: max(int(ahead[i, a]) for i in ready) for a in range(dag.n_types)}
    tops = {a: [i for i in ready if most[a] and ahead[i, a] == most[a]] for a in range(dag.n_types)}
    own = {a: [i for i in ready if kinds[i] == a] for a in range(dag.n_types)}
    heights = {a: float(np.mean([ahead[i].sum() for i in nodes])) for a, nodes in own.items() if nodes}
    rows = np.zeros((dag.n_types, len(TYPE_FEATURES)))
    for a in range(dag.n_types):
        mine = [i for i in unrun if kinds[i] == a]
        if not mine:
            continue
        frontier = [i for i in mine if not any(kinds[j] == a and j not in done for j in before[i])]
        own_top = [i for i in tops[a] if kinds[i] == a]
        rows[a] = [
            1, bool(own[a]), bool(own[a]) and own_top == tops[a], len(own[a]) / len(mine),
            len(own_top) / len(tops[a]) if own[a] else 0, heights.get(a, 0) / max(heights.values()),
            most[a] / sum(most.values()), len(own[a]) / len(frontier), len(own[a]) / len(ready), len(mine) / len(unrun),
        ]  # fmt: skip
    left, with_ready, critical = rows[:, 0].sum(), rows[:, 1].sum(), rows[:, 2].sum()
    overall = [len(unrun) / n, len(ready) / len(unrun), with_ready / left, critical / with_ready, 1 / left]
    return rows, np.array(overall)


@pytest.mark.parametrize("seed", SEEDS)
def test_features_follow_their_definitions(seed: int) -> None:
    dags = some_dags(seed, n=3)
    fleet = make_fleet(dags, n_types=6)
    rng, checked = np.random.default_rng(seed), 0
    for g, dag in enumerate(dags):
        done: set[int] = set()
        while len(done) < dag.type_id.size:
            rows, overall = described(fleet, g, 6)
            expected, expected_overall = defined(dag, done)
            np.testing.assert_allclose(rows[:4], expected, rtol=1e-6)
            np.testing.assert_allclose(overall, expected_overall, rtol=1e-6)
            assert not rows[4:].any(), "types that the dag lacks"
            assert rows.min() >= 0
            assert max(rows.max(), overall.max()) <= 1
            kind = int(rng.choice(np.flatnonzero(rows[:, 1])))
            queue = fleet.sim.queue[fleet.sim.head[6 * g + kind] : fleet.sim.tail[6 * g + kind]]
            done |= set((queue - fleet.sim.node_ptr[g]).tolist())
            advance(fleet, 6 * g + kind)
            checked += 1
        assert not described(fleet, g, 6)[0].any(), "nothing is left"
    assert checked == fleet.sim.n_batches.sum()
