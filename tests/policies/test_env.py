"""The environments: what Gymnasium asks for, episodes that are schedules, and many seats that do what one does."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="environments need autobatch[rl]")

from gymnasium.utils.env_checker import check_env  # noqa: E402, there is nothing to import without it
from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402

from autobatch.errors import PolicyError  # noqa: E402
from autobatch.graph.dag import Dag, chains_ahead, to_dag  # noqa: E402
from autobatch.policies.env import ID, Batching, BatchingVector  # noqa: E402
from autobatch.policies.fsm.rewards import REWARDS  # noqa: E402
from autobatch.policies.rules.rules import Score  # noqa: E402
from autobatch.policies.sequences.embedding import finishes  # noqa: E402
from graphs import random_dag  # noqa: E402
from ways import each  # noqa: E402


def some_dags(n: int = 6) -> list[Dag]:
    return [to_dag(random_dag(i)) for i in range(n)]


def play(env: Any, seed: int) -> tuple[list[int], list[float]]:
    """Play an episode at random: the types that ran, and the rewards."""
    _, info = env.reset(seed=seed)
    rng, actions, rewards, over = np.random.default_rng(seed), [], [], False
    while not over:
        actions.append(int(rng.choice(np.flatnonzero(info["action_mask"]))))
        _, reward, over, truncated, info = env.step(actions[-1])
        rewards.append(float(reward))
        assert not truncated
    assert info["n_batches"] == len(actions)
    return actions, rewards


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("max_types", [None, 4])
def test_gymnasium_makes_and_accepts_it(reward: str, max_types: int | None) -> None:
    env = gymnasium.make(ID, dags=some_dags(), reward=reward, max_types=max_types)
    check_env(env.unwrapped)
    assert env.unwrapped.action_space.n == 4


def test_the_name_alone_imports_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(gymnasium.registry, ID)
    monkeypatch.delitem(sys.modules, "autobatch.policies.env")
    env = gymnasium.make(f"autobatch.policies.env:{ID}", family="trees", n_dags=3, max_types=7)
    assert env.observation_space["types"].shape == (7, 10)
    importlib.import_module("autobatch.policies.env")
    assert env.spec.id == ID


@each("seed", range(10))
def test_an_episode_is_a_schedule_and_rewards_are_the_bound_less_its_batches(seed: int) -> None:
    dag = to_dag(random_dag(seed))
    actions, rewards = play(Batching([dag]), seed)
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
        assert all((after[name] == observation[name]).all() for name in observation)
    assert env.action_masks().tolist() == (observation["mask"] == 1).tolist()
    assert env.action_masks().dtype == np.bool_


def test_a_rule_can_be_played() -> None:
    dag = to_dag(random_dag(5, n_nodes=60))
    env, sequence = Batching([dag]), Score().plan(dag)[0].tolist()
    env.reset(seed=0)
    over = [env.step(kind)[2] for kind in sequence]
    assert over == [False] * (len(sequence) - 1) + [True]


def assert_same(one: Any, other: Any) -> None:
    """Compare what environments give, tuples, dictionaries and object arrays included."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, tuple) or (isinstance(one, np.ndarray) and one.dtype == object):
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        np.testing.assert_array_equal(one, other)


@each("reward", REWARDS)
@each("n_seats, n_dags", [(1, 3), (3, 8), (5, 3)])
def test_every_seat_does_what_an_environment_alone_does(reward: Any, n_seats: int, n_dags: int) -> None:
    dags = some_dags(n_dags)
    own = [dags[seat::n_seats] or [dags[seat % n_dags]] for seat in range(n_seats)]
    many = gymnasium.make_vec(ID, num_envs=n_seats, dags=dags, reward=reward, max_types=5)
    each = SyncVectorEnv(
        [partial(Batching, mine, reward=reward, max_types=5) for mine in own],
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    assert_same(many.reset(seed=7), each.reset(seed=7))
    rng, finished = np.random.default_rng(0), 0
    for _ in range(150):
        actions = rng.integers(5, size=n_seats)
        got, expected = many.step(actions), each.step(actions)
        assert_same(got, expected)
        finished += int(got[2].sum())
        assert many.unwrapped.action_masks().tolist() == (got[0]["mask"] == 1).tolist()
    assert finished >= n_seats


def test_a_seed_decides_which_graphs_come() -> None:
    def played(seed: int) -> list[int]:
        env = BatchingVector(2, some_dags(8))
        env.reset(seed=seed)
        moves = [env.step(env.action_masks().argmax(axis=1)) for _ in range(60)]
        return [int(n) for move in moves for n in move[4]["n_batches"]]

    assert played(1) == played(1)
    assert played(1) != played(2)


@each(
    "options, message",
    [
        ({}, "give either dags=, some graphs, or family="),
        ({"dags": [to_dag(random_dag(0))], "family": "trees"}, "give either dags="),
        ({"dags": []}, "there are no graphs"),
        ({"dags": [to_dag(random_dag(0, n_nodes=0))]}, "or one has no nodes"),
        ({"dags": [to_dag(random_dag(0))], "max_types": 3}, "a graph has 4 types, but max_types=3"),
        ({"dags": [to_dag(random_dag(0))], "reward": "kudos"}, "reward='kudos' is none of published, critical"),
        ({"family": "shrubs"}, "family 'shrubs' is not known"),
    ],
)
def test_what_cannot_be_played_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        Batching(**options)


def test_without_gymnasium_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    for module in ("autobatch.policies.env", "autobatch.policies.rl.env"):
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(PolicyError, match=r"the package gymnasium is not installed; install autobatch\[rl\]"):
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


def test_numbers_that_are_no_types_waste_the_moves_of_their_seats() -> None:
    env, alone = BatchingVector(3, some_dags(), max_types=4), Batching(some_dags()[1::3], max_types=4)
    env.reset(seed=5)
    _, info = alone.reset(seed=6)
    kind = int(np.flatnonzero(info["action_mask"])[0])
    observations, rewards, *_ = env.step(np.array([99, kind, -1]))
    own, reward, *_ = alone.step(kind)
    assert rewards.tolist() == [-1.0, reward, -1.0]
    np.testing.assert_array_equal(observations["types"][1], own["types"])


@pytest.mark.parametrize("action", [0.5, "a", None, [0, 1], True])
def test_what_is_no_int_is_refused(action: Any) -> None:
    env = Batching(some_dags())
    env.reset(seed=0)
    with pytest.raises(PolicyError, match="takes an int for each, from 0 to 3, and not"):
        env.step(action)


def test_a_vector_takes_an_action_for_each_seat() -> None:
    env = BatchingVector(3, some_dags())
    env.reset(seed=0)
    with pytest.raises(PolicyError, match=r"an environment of 3 seats takes an int for each"):
        env.step(np.array([0, 1]))
