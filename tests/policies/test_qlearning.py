"""Test learning: values against plain dictionaries, reproducible tables, and graphs with a known best policy."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from autobatch._native import Course, add_states
from autobatch.errors import PolicyError
from autobatch.graph.build import merge_graphs
from autobatch.graph.dag import Dag, chains_ahead, cost_of, to_dag
from autobatch.graph.graph import Graph, NamedTypes
from autobatch.graph.sketch import to_graph
from autobatch.models.data.listops import draw_trees
from autobatch.models.shapes import make_tree_graph
from autobatch.policies.fsm.machine import WAYS, Fsm, Machine, TypeNames
from autobatch.policies.fsm.practice import REWARDS, Reward, run_episode
from autobatch.policies.fsm.qlearning import Progress, QLearning, learn_fsm
from autobatch.policies.fsm.table import ENCODINGS, Table, copy_table, make_table, with_room
from autobatch.policies.learning import PUBLISHED, learn
from autobatch.policies.rules.directed import Direction
from autobatch.schedule.schedule import min_batches, min_cost
from autobatch.schedule.schedule_check import check_schedule
from helpers.checkers.machine_tables import rows_of, states_by_hand
from helpers.programs.graphs import LETTERS, TREE, chain, random_dag, random_tree
from helpers.runs.ways import each

Learnt = dict[tuple[int, ...], tuple[list[float], list[int]]]


def play(graph: Graph, machine: Machine, settings: QLearning, epsilon: float, seed: int) -> tuple[Course, Table]:
    dag = to_dag(graph)
    course = Course(dag)
    table = make_table(dag.n_types, machine.width(dag.n_types), dag.type_id.size)
    rng = np.random.default_rng(seed)
    run_episode(course, table, machine.rules(), settings.rules(), epsilon, rng)
    return course, table


def rewards_by_hand(dag: Dag, sequence: list[int], reward: Reward) -> list[float]:
    """Compute the rewards by definition, looking at the remaining nodes and paths again before each batch."""
    sources = [dag.edge_src[dag.edge_ptr[n] : dag.edge_ptr[n + 1]].tolist() for n in range(dag.type_id.size)]
    critical = [state[dag.n_types :] for state in states_by_hand(dag, sequence, "base", True)]
    done, rewards = set[int](), list[float]()
    for k, kind in enumerate(sequence):
        left = [n for n in range(dag.type_id.size) if n not in done]
        run = [n for n in left if dag.type_id[n] == kind and set(sources[n]) <= done]
        if reward == "published":
            above: dict[int, bool] = {}  # whether a node of the type remains on a path to it
            for n in left:
                above[n] = any(above[s] or dag.type_id[s] == kind for s in sources[n] if s not in done)
            frontier = [n for n in left if dag.type_id[n] == kind and not above[n]]
            rewards.append(len(run) / len(frontier) - 1)
        else:
            rewards.append(critical[k][kind] - 1)
        done.update(run)
    return rewards


def learn_by_hand(states: list[list[int]], sequence: list[int], rewards: list[float], settings: QLearning) -> Learnt:
    """Learn one episode: each value moves towards the rewards of up to n steps."""
    values, updates = defaultdict[tuple[int, ...], list[float]](lambda: [0.0] * 4), {}
    counts = defaultdict[tuple[int, ...], list[int]](lambda: [0] * 4)
    for first, state in enumerate(map(tuple, states)):
        window = rewards[first : first + settings.n_steps]
        total = sum(reward * settings.discount**t for t, reward in enumerate(window))
        values[state][sequence[first]] += settings.learning_rate * (total - values[state][sequence[first]])
        counts[state][sequence[first]] += 1
        updates[state] = (values[state], counts[state])
    return updates


@each("reward", REWARDS)
@each("n_steps", [1, 3, 100])
@each("seed", range(5))
def test_an_episode_is_the_one_defined(reward: Reward, n_steps: int, seed: int) -> None:
    costs = np.array([0.5, 1.0, 3.0, 10.0]) if seed % 2 else np.ones(4)
    graph = to_graph(to_dag(random_dag(seed, n_nodes=30))._replace(costs=costs if seed % 2 else None))
    dag, machine = to_dag(graph), Machine(ENCODINGS[seed % 3], critical=seed % 2 == 0)
    settings = QLearning(reward=reward, n_steps=n_steps, learning_rate=0.3, discount=0.9)
    course, table = play(graph, machine, settings, epsilon=1.0, seed=seed)
    _, chosen, gained = course.episode()
    sequence = chosen.tolist()
    states = states_by_hand(dag, sequence, machine.encoding, machine.critical)
    rewards = [costs[kind] * x for kind, x in zip(sequence, rewards_by_hand(dag, sequence, reward), strict=True)]
    np.testing.assert_allclose(gained, rewards, atol=1e-12)
    wanted, found = learn_by_hand(states, sequence, rewards, settings), rows_of(table)
    assert found.keys() == wanted.keys()
    for state, (values, updates) in wanted.items():
        np.testing.assert_allclose(found[state][0], values, atol=1e-12)
        assert found[state][1] == updates


@each("seed", range(20))
def test_the_critical_rewards_are_the_bound_less_the_batches(seed: int) -> None:
    graph = random_dag(seed, n_nodes=60)
    costly = to_graph(to_dag(graph)._replace(costs=np.array([0.5, 1.0, 3.0, 10.0])))
    for one in (graph, costly):
        course, _ = play(one, Machine(), QLearning(reward="critical"), epsilon=1.0, seed=seed)
        _, sequence, rewards = course.episode()
        assert rewards.sum() == min_cost(one) - cost_of(to_dag(one), sequence)


@each("seed", range(5))
def test_an_episode_by_a_plan_follows_it(seed: int) -> None:
    graph, machine, settings = random_dag(seed, n_nodes=40), Machine("sort", True), QLearning()
    course, table = play(graph, machine, settings, epsilon=1.0, seed=seed)
    _, sequence, _ = course.episode()
    again = make_table(4, 8, 40)
    run_episode(course, again, machine.rules(), settings.rules(), 1.0, np.random.default_rng(99), sequence)
    assert course.episode()[1].tolist() == sequence.tolist()
    assert rows_of(again) == rows_of(table)


@each("seed", range(5))
def test_a_masked_machine_learns_critical_types_only(seed: int) -> None:
    graph = random_dag(seed, n_nodes=60)
    _, table = play(graph, Machine("sort", critical=True, mask=True), QLearning(), epsilon=1.0, seed=seed)
    for state, (_, updates) in rows_of(table).items():
        critical = state[4:]
        if any(critical):
            assert [kind for kind in range(4) if updates[kind] and not critical[kind]] == []


def tables_of(policy: Fsm) -> list[Learnt]:
    return [rows_of(policy.tables[way]) for way in WAYS]


def test_the_same_seed_gives_the_same_table() -> None:
    dags = [to_dag(merge_graphs([random_tree(10 * i + j) for j in range(6)])) for i in range(3)]

    def tables(seed: int) -> list[Learnt]:
        settings = QLearning(episodes=120, tolerance=0)
        return tables_of(learn_fsm(dags, TypeNames.of(TREE), settings=settings, direction="both", seed=seed))

    first, again, other = tables(1), tables(1), tables(2)
    assert first == again
    assert first != other
    assert [len(table) > 0 for table in first] == [True, True]


def repeated(*chains: str) -> Graph:
    types = NamedTypes(("a", "b"))
    graphs = []
    for names in chains:
        graph = chain(*names)
        numbers = np.array([types.names.index(graph.types.names[kind]) for kind in graph.type_id], np.int32)
        graph.type_id[:] = numbers
        graphs.append(Graph(graph.words, graph.floats, types, graph.structures))
    return merge_graphs(graphs)


@pytest.mark.parametrize(
    ("chains", "fewest"),
    [
        (["abab", "bab", "bab", "bab"], 4),  # begin with the single a, not with the three b
        (["ba", "ab"], 3),  # one type must run twice
        (["aab", "ba", "ba", "ba"], 4),  # running a at once for "aab" costs a batch of a unless b waits
        (["ab", "ab", "b", "b", "b"], 2),
        (["abb", "aba", "bab"], 4),
    ],
)
@each("reward", REWARDS)
@each("direction", ["forward", "backward", "both"])
def test_the_best_policy_for_two_types_is_found(
    chains: list[str], fewest: int, reward: Reward, direction: Direction
) -> None:
    graph = repeated(*chains)
    dag = to_dag(graph)
    settings = QLearning(episodes=200, reward=reward, evaluate_every=1)
    policy = learn_fsm([dag], TypeNames.of(graph.types), Machine("sort", True), settings, direction=direction)
    schedule = policy.schedule(graph)
    check_schedule(graph, schedule)
    assert len(schedule) == fewest


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("published", [False, True])
def test_on_trees_the_machine_reaches_the_bound_on_mini_batches_that_it_never_saw(
    encoding: str, published: bool
) -> None:
    graphs = [make_tree_graph(draw_trees(16, np.random.default_rng(seed))) for seed in range(20)]
    types = graphs[0].types
    graphs = [Graph(g.words, g.floats, types, g.structures) for g in graphs]
    policy = learn(graphs[:2], **{**(PUBLISHED if published else {}), "encoding": encoding})
    for graph in graphs:
        assert len(policy.schedule(graph)) == min_batches(graph)
    assert isinstance(policy, Fsm)
    assert len(rows_of(policy.tables["forward"])) < 30


def test_held_out_mini_batches_choose_the_table() -> None:
    """The last measurement is not the best one. The table with the best measurement is kept."""
    graphs = [merge_graphs([random_tree(50 * i + j) for j in range(20)]) for i in range(6)]
    measured: list[Progress] = []
    policy = learn(
        graphs[:2], held_out=graphs[2:], direction="forward", compact=False, critical=False, mask=False,
        rival=False, episodes=300, on_progress=measured.append, seed=3,
    )  # fmt: skip
    batches = [progress.batches for progress in measured]
    assert [progress.episodes for progress in measured] == list(range(50, 350, 50))
    assert measured[0].bound == np.mean([chains_ahead(to_dag(g)).max(axis=0).sum() for g in graphs[2:]])
    assert np.mean([len(policy.schedule(graph)) for graph in graphs[2:]]) == min(batches) < max(batches)
    assert [row["batches"] for row in policy.about["curves"]["forward"]] == batches


def test_tables_grow() -> None:
    """Many types lead to more states than the table's initial capacity."""
    types = NamedTypes(tuple("abcdefgh"))
    graph = random_dag(0, n_nodes=400, types=types)
    policy = learn_fsm([to_dag(graph)], TypeNames.of(types), Machine("sort", True), QLearning(episodes=30))
    table = policy.tables["forward"]
    rows = rows_of(table)
    assert len(rows) == table.n_states[0] > 500
    for grown in (table, copy_table(table), with_room(table, 5000)):
        assert rows_of(grown) == rows
        n_states = int(grown.n_states[0])
        found = add_states(with_room(grown, n_states), grown.states[:n_states].copy())
        assert found.tolist() == list(range(n_states))
    assert len(with_room(table, 5000).states) >= 5000 + len(rows)


def test_mini_batches_may_be_empty() -> None:
    nothing = to_dag(merge_graphs([], LETTERS))
    policy = learn_fsm([nothing], TypeNames.of(LETTERS), settings=QLearning(episodes=60))
    assert tables_of(policy) == [{}, {}]
    some = to_dag(random_dag(1))
    assert tables_of(learn_fsm([nothing, some], TypeNames.of(LETTERS), settings=QLearning(episodes=60)))[0]


@each("setting, value", [
        ("episodes", -1), ("learning_rate", 0.0), ("learning_rate", 1.5), ("discount", -0.1), ("epsilon", 2.0),
        ("epsilon_decay", -1.0), ("epsilon_min", 1.5), ("n_steps", 0), ("evaluate_every", 0), ("tolerance", -1.0),
        ("reward", "pub"), ("learning_rate", float("nan")),
    ])  # fmt: skip
def test_settings_out_of_range_are_refused(setting: str, value: Any) -> None:
    limits = r"(at least \d|from 0 to 1|above 0 and at most 1|one of published, critical)"
    with pytest.raises(PolicyError, match=rf"^{setting} of policy learning must be {limits}, got {value!r}\.$"):
        learn([random_dag(0)], **{setting: value})


def test_what_cannot_be_learned_is_refused() -> None:
    graph = random_dag(0)
    with pytest.raises(PolicyError, match="at least one mini-batch"):
        learn([])
    with pytest.raises(PolicyError, match=r"unknown option 'episode'; did you mean 'episodes'\?"):
        learn([graph], episode=3)
    with pytest.raises(PolicyError, match=r"type 0 is 'a' in graph 0 and '.*' in graph 1"):
        learn([graph, random_tree(0)])
