"""Test the environment: Gymnasium's requirements, and that episodes are schedules."""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="environments need the extra rl")

from gymnasium.utils.env_checker import check_env  # noqa: E402, there is nothing to import without it

from autobatch.errors import PolicyError  # noqa: E402
from autobatch.graph.dag import Dag, chains_ahead, to_dag  # noqa: E402
from autobatch.policies.env import ID, Batching  # noqa: E402
from autobatch.policies.fsm.practice import REWARDS  # noqa: E402
from autobatch.policies.rules.rules import Score  # noqa: E402
from autobatch.policies.sequences import finishes  # noqa: E402
from helpers.programs.graphs import random_dag  # noqa: E402
from helpers.runs.ways import each  # noqa: E402


def some_dags(n: int = 6) -> list[Dag]:
    return [to_dag(random_dag(i)) for i in range(n)]


MADE = Dag.from_edges([0, 0, 1], [(0, 2), (1, 2)])
BACKWARD = np.array([0, 0], np.int32), np.array([0, 1, 1], np.int32), np.array([1], np.int32)


def play(env: Any, seed: int) -> tuple[list[int], list[float], float]:
    """Play a random episode; return the types that ran, the rewards and the cost."""
    _, info = env.reset(seed=seed)
    rng, actions, rewards, over = np.random.default_rng(seed), [], [], False
    while not over:
        actions.append(int(rng.choice(np.flatnonzero(info["action_mask"]))))
        _, reward, over, truncated, info = env.step(actions[-1])
        rewards.append(float(reward))
        assert not truncated
    assert info["n_batches"] == len(actions)
    return actions, rewards, info["cost"]


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("max_types", [None, 4])
def test_gymnasium_makes_and_accepts_it(reward: str, max_types: int | None) -> None:
    env = gymnasium.make(ID, dags=some_dags(), reward=reward, max_types=max_types)
    check_env(env.unwrapped)
    assert env.unwrapped.action_space.n == 4


def test_the_name_alone_imports_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(gymnasium.registry, ID)
    monkeypatch.delitem(sys.modules, "autobatch.policies.env")
    env = gymnasium.make(f"autobatch.policies.env:{ID}", dags=some_dags(), max_types=7)
    assert env.observation_space["types"].shape == (7, 10)
    importlib.import_module("autobatch.policies.env")
    assert env.spec.id == ID


@each("seed", range(10))
def test_an_episode_is_a_schedule_and_rewards_are_the_bound_less_its_batches(seed: int) -> None:
    dag = to_dag(random_dag(seed))
    actions, rewards, cost = play(Batching([dag]), seed)
    assert cost == len(actions)
    assert finishes(dag, np.array(actions, np.int32))
    assert sum(rewards) == chains_ahead(dag).max(axis=0).sum() - len(actions)


def test_the_published_reward_is_zero_only_for_what_cannot_be_regretted() -> None:
    rewards = [r for seed in range(10) for r in play(Batching(some_dags(), reward="published"), seed)[1]]
    assert max(rewards) == 0
    assert -1 < min(rewards) < 0


def test_masks_say_what_is_ready_and_other_types_run_nothing() -> None:
    dag = to_dag(random_dag(3, n_nodes=20))
    env = Batching([dag], max_types=6)
    observation, info = env.reset(seed=0)
    unready = int(np.flatnonzero(info["action_mask"] == 0)[0])
    for moves in range(1, dag.type_id.size + 2):
        after, reward, terminated, truncated, info = env.step(unready)
        assert (reward, terminated, info["n_batches"]) == (-1.0, False, 0)
        assert truncated == (moves > dag.type_id.size)
        np.testing.assert_equal(after, observation)
    assert env.action_masks().tolist() == (observation["mask"] == 1).tolist()
    assert env.action_masks().dtype == np.bool_


def test_a_rule_can_be_played() -> None:
    dag = to_dag(random_dag(5, n_nodes=60))
    env, sequence = Batching([dag]), Score().plan(dag)[0].tolist()
    env.reset(seed=0)
    over = [env.step(kind)[2] for kind in sequence]
    assert over == [False] * (len(sequence) - 1) + [True]


def test_a_vector_plays_several_at_once() -> None:
    many, alone = gymnasium.make_vec(ID, num_envs=2, dags=some_dags(), max_types=5), Batching(some_dags(), max_types=5)
    observations, infos = many.reset(seed=7)
    for seat in range(2):
        observation, info = alone.reset(seed=7 + seat)
        assert infos["action_mask"][seat].tolist() == info["action_mask"].tolist()
        np.testing.assert_equal({name: rows[seat] for name, rows in observations.items()}, observation)
    _, rewards, *_ = many.step(infos["action_mask"].argmax(axis=1))
    assert rewards.shape == (2,)


def test_a_seed_decides_which_graphs_come() -> None:
    def played(seed: int) -> list[Any]:
        env = Batching(some_dags(8))
        env.reset(seed=seed)
        return [[part.tolist() for part in env.reset()[0].values()] for _ in range(20)]

    assert played(1) == played(1)
    assert played(1) != played(2)


@each(
    "options, message",
    [
        ({"dags": []}, "at least one Dag"),
        ({"dags": to_dag(random_dag(0))}, "dags of Batching must be a list of Dags, got Dag"),
        ({"dags": [random_dag(0)]}, "dags of Batching must be a list of Dags, got"),
        ({"dags": [to_dag(random_dag(0, n_nodes=0))]}, "at least one node"),
        ({"dags": [Dag(*BACKWARD, 1)]}, r"dags\[0\] is malformed: .* point forward"),
        ({"dags": [MADE, MADE._replace(edge_ptr=MADE.edge_ptr[:2])]}, r"edge_ptr of dags\[1\] must have 4 .*, got 2"),
        ({"dags": [MADE._replace(edge_ptr=MADE.edge_ptr[::-1].copy())]}, r"dags\[0\] is malformed: edge_ptr must rise"),
        ({"dags": [MADE._replace(edge_src=MADE.edge_src + 9)]}, r"dags\[0\] is malformed: edge_src must lie in 0..2"),
        (
            {"dags": [MADE._replace(type_id=MADE.type_id.astype(float))]},
            r"dags\[0\] is malformed: type_id must be an array",
        ),
        ({"dags": [MADE._replace(n_types=1)]}, r"dags\[0\] is malformed: type_id must lie in"),
        ({"dags": [MADE._replace(costs=np.array([1.0, np.nan]))]}, r"dags\[0\] is malformed: costs must be positive"),
        ({"dags": [MADE._replace(costs=np.ones(3))]}, r"dags\[0\] is malformed: costs must be .* one for each type"),
        ({"dags": [to_dag(random_dag(0))], "max_types": 3}, "max_types must be at least 4, .* got 3"),
        (
            {"dags": [to_dag(random_dag(0))], "reward": "kudos"},
            "reward of Batching must be .*, got 'kudos'",
        ),
    ],
)
def test_what_cannot_be_played_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        Batching(**options)


def test_without_gymnasium_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.delitem(sys.modules, "autobatch.policies.env")
    with pytest.raises(PolicyError, match=r"the package gymnasium is not installed; pip install 'autobatch-nn\[rl\]'"):
        importlib.import_module("autobatch.policies.env")


@each("action", [-1, 4, 99, 2**40, np.int64(-7), np.array(99)])
def test_a_number_that_is_no_type_wastes_a_move(action: Any) -> None:
    env = Batching(some_dags(), max_types=4)
    before, info = env.reset(seed=0)
    for _ in range(3):
        after, reward, terminated, _, moved = env.step(action)
        assert (reward, terminated, moved["n_batches"]) == (-1.0, False, 0)
        np.testing.assert_array_equal(moved["action_mask"], info["action_mask"])
        np.testing.assert_array_equal(after["types"], before["types"])


@pytest.mark.parametrize("action", [0.5, "a", None, [0, 1], True])
def test_what_is_no_int_is_refused(action: Any) -> None:
    env = Batching(some_dags())
    env.reset(seed=0)
    with pytest.raises(PolicyError, match=f"int from 0 to 3, got {re.escape(repr(action))}"):
        env.step(action)


@pytest.mark.parametrize("reward", REWARDS)
def test_costs_multiply_rewards(reward: Any) -> None:
    costs = [0.5, 3.0, 1.0, 2.0]
    dags = [dag._replace(costs=np.array(costs)[: dag.n_types]) for dag in some_dags()]
    plain, costly = Batching(some_dags(), reward=reward), Batching(dags, reward=reward)
    actions, rewards, _ = play(plain, 3)
    found, weighted, cost = play(costly, 3)
    assert found == actions
    assert weighted == [costs[action] * x for action, x in zip(actions, rewards, strict=True)]
    assert cost == sum(costs[action] for action in actions)
    assert costly.step(99)[1] == -3.0


def test_the_return_is_the_cost_above_the_bound() -> None:
    costs = np.array([0.5, 3.0, 1.0, 2.0])
    for number, dag in enumerate(some_dags()):
        env = Batching([dag._replace(n_types=4, costs=costs)], max_types=4)
        _, rewards, cost = play(env, number)
        bound = np.zeros(4)
        bound[: dag.n_types] = chains_ahead(dag).max(axis=0)
        assert sum(rewards) == pytest.approx(costs @ bound - cost)
