"""Test that episodes on a device teach the same as on the processor, and that the machines are as good."""

from __future__ import annotations

import shutil
from itertools import product
from typing import Any

import numpy as np
import pytest

from autobatch._native import Course
from autobatch.errors import BackendError, PolicyError
from autobatch.graph.dag import Dag, to_dag
from autobatch.graph.graph import Graph
from autobatch.models.data.dag import draw_lattices
from autobatch.models.data.listops import draw_trees
from autobatch.models.shapes import make_lattice_graph, make_tree_graph, make_two_type_tree_graph
from autobatch.policies import PUBLISHED
from autobatch.policies.fsm.device_simulator import CHANCES, DeviceSimulator, Episodes, rank_all
from autobatch.policies.fsm.machine import WAYS, Machine
from autobatch.policies.fsm.practice import PUBLISHED as PUBLISHED_REWARD
from autobatch.policies.fsm.practice import REWARDS, Exploration, OnDevice, OnProcessor, Reward, Task, run_episode
from autobatch.policies.fsm.qlearning import QLearning
from autobatch.policies.fsm.table import Table, copy_table, make_table, with_room
from autobatch.policies.learning import learn
from helpers.checkers.machine_tables import rows_of
from helpers.programs.graphs import random_dag
from helpers.runs.ways import each
from host_device import HostDevice

MACHINE = Machine("sort", critical=True, mask=True)
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOBATCH_CUDA", "host")


def make_task(settings: QLearning, machine: Machine = MACHINE, n: int = 3) -> Task:
    dags = [to_dag(random_dag(seed, n_nodes=size)) for seed, size in enumerate((40, 70, 1)[:n])]
    return Task(dags, dags[:1], machine, settings.rules(), settings.exploration())


def replayed(task: Task, table: Table, seed: int, first: int, chances: Any) -> Table:
    """Return the table after the same episodes, run one after the other as plans on the processor."""
    ranked = rank_all(task.machine, table, bool(task.rules.optimism))
    simulator = DeviceSimulator(task.dags, HostDevice(), task.rules.reward == PUBLISHED_REWARD)
    played = simulator.play(ranked, Episodes(seed, first, chances))
    table = copy_table(table)
    for run, n_batches in enumerate(played.n_batches):
        dag, plan = task.dags[(first + run) % len(task.dags)], played.steps[run, :n_batches, 1].copy()
        table = with_room(table, dag.type_id.size)
        course, rng = Course(dag), np.random.default_rng(0)
        run_episode(course, table, task.machine.rules(), task.rules, 0.0, rng, plan)
    return table


@each("reward", REWARDS)
@each("n_steps, optimism, machine", [(1, True, Machine("max")), (3, False, MACHINE), (10, True, MACHINE)])
def test_a_device_teaches_what_the_processor_does(
    reward: Reward, n_steps: int, optimism: bool, machine: Machine
) -> None:
    """Values, updates and the order of states are bit-identical after each round."""
    settings = QLearning(reward=reward, n_steps=n_steps, optimism=optimism, discount=0.9, learning_rate=0.3)
    task = make_task(settings, machine)
    practice, n_episodes = OnDevice(task, [3, 0], HostDevice(7)), 5
    seed = int(np.random.SeedSequence([3, 0]).generate_state(1, np.uint64)[0] >> np.uint64(1))
    chances = np.array([round(CHANCES * 0.5 * 0.1 ** (i / 4)) for i in range(n_episodes)])
    table = make_table(4, machine.width(4))
    for first in range(0, 20, n_episodes):
        wanted = replayed(task, table, seed, first, chances)
        table = practice.learn(table, n_episodes)
        n_states = int(table.n_states[0])
        assert n_states == wanted.n_states[0]
        assert table.states[:n_states].tolist() == wanted.states[:n_states].tolist()
        assert rows_of(table) == rows_of(wanted)


@each("reward", REWARDS)
@each("optimism", [True, False])
def test_one_greedy_episode_at_a_time_is_what_the_processor_plays(reward: Reward, optimism: bool) -> None:
    """Without exploration, and with returns up to the end of an episode, so that values change between episodes."""
    settings = QLearning(reward=reward, n_steps=1000, optimism=optimism, epsilon=0.0, epsilon_min=0.0)
    task = make_task(settings)
    here, there = OnProcessor(task, [0, 0]), OnDevice(task, [0, 0], HostDevice())
    table, other = make_table(4, 8), make_table(4, 8)
    for _ in range(12):
        table, other = here.learn(table, 1), there.learn(other, 1)
        assert rows_of(table) == rows_of(other)
        assert here.measure(table) == there.measure(other)


def test_the_same_seed_gives_the_same_table_in_any_order_of_threads() -> None:
    def table_of(seed: int, order: int) -> Any:
        practice = OnDevice(make_task(QLearning(reward="critical")), [seed, 0], HostDevice(order))
        table = make_table(4, 8)
        for _ in range(3):
            table = practice.learn(table, 8)
        return rows_of(table)

    tables = [table_of(1, order) for order in range(3)]
    assert tables[0] == tables[1] == tables[2] != table_of(2, 0)


def test_chances_are_spread() -> None:
    assert Exploration(0.5, 0.9, 0.05).spread(1).tolist() == [0.5]
    assert Exploration(0.5, 0.9, 0.0).spread(3).tolist() == [0.5, 0.0, 0.0]
    spread = Exploration(0.5, 0.9, 0.05).spread(50)
    np.testing.assert_allclose(spread[1:] / spread[:-1], 0.1 ** (1 / 49))
    assert (spread[0], round(spread[-1], 12)) == (0.5, 0.05)


def some_graphs(kind: str, n: int) -> list[Graph]:
    """Draw mini-batches of a workload that share a table of types."""
    graphs = []
    for seed in range(n):
        rng = np.random.default_rng(seed)
        if kind == "lattices":
            graphs.append(make_lattice_graph(draw_lattices(5, rng)))
        elif kind == "trees":
            graphs.append(make_tree_graph(draw_trees(8, rng)))
        else:
            graphs.append(make_two_type_tree_graph(draw_trees(5, rng), rng))
    types = graphs[0].types
    return [Graph(graph.words, graph.floats, types, graph.structures) for graph in graphs]


@pytest.mark.cases(1)
@pytest.mark.usefixtures("_host")
@pytest.mark.parametrize("kind", ["trees", "two-type trees", "lattices"])
@pytest.mark.parametrize("published", [False, True])
def test_a_device_learns_as_good_machines(kind: str, published: bool) -> None:
    """Compares the total over unseen mini-batches. Differences of 1% are chance."""
    graphs = some_graphs(kind, 10)
    options = {**(PUBLISHED if published else {"rival": False}), "direction": "forward", "compact": False}
    batches = dict.fromkeys(("cpu", "cuda"), 0)
    for device, seed in product(batches, range(2)):
        policy = learn(graphs[:2], seed=seed, device=device, **options)
        batches[device] += sum(len(policy.schedule(graph)) for graph in graphs[2:])
    assert batches["cuda"] <= 1.01 * batches["cpu"]


@pytest.mark.usefixtures("_host")
def test_both_directions_are_learned_and_held_out_mini_batches_measured() -> None:
    graphs = [random_dag(seed, n_nodes=50) for seed in range(3)]
    policy = learn(graphs[:2], held_out=graphs[2:], device="cuda", episodes=40, tolerance=0)
    assert [table.n_states[0] > 0 for _, tables in policy.machines for table in tables.values()] == [True] * 4
    assert [row["episodes"] for row in policy.about["curves"]["backward"]] == [16, 32, 40]
    assert set(policy.about["curves"]) == set(WAYS)


@pytest.mark.usefixtures("_host")
def test_empty_mini_batches_teach_nothing() -> None:
    nothing: list[Dag] = [to_dag(random_dag(0, n_nodes=0))]
    task = Task(nothing, [], MACHINE, QLearning().rules(), QLearning().exploration())
    practice = OnDevice(task, [0, 0], HostDevice())
    assert rows_of(practice.learn(make_table(4, 8), 3)) == {}
    assert practice.measure(make_table(4, 8)) == []


def test_what_a_device_cannot_learn_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_dag(0)
    with pytest.raises(PolicyError, match=r"^device of policy learning must be one of cpu, cuda, got 'gpu'\.$"):
        learn([graph], device="gpu")
    with pytest.raises(PolicyError, match=r'device="cuda" .* bootstrap=True'):
        learn([graph], device="cuda", bootstrap=True)
    monkeypatch.setenv("AUTOBATCH_CUDA", "elsewhere")
    with pytest.raises(BackendError, match=r"AUTOBATCH_CUDA must be .*got 'elsewhere'"):
        learn([graph], device="cuda")
