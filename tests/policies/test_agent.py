"""Test agents: graphs of a model as episodes, and a trained agent as a policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import autobatch as ab
import autobatch.policies.env as rl
from helpers.checkers.refusals import Model

SENTENCES = [[1, 2], [3], [0, 4, 2]]


def own_loss(model: Model, words: list[int]) -> Any:
    return ab.sum_n([model.total(model.leaf(word)) for word in words])


class First:
    """An agent that chooses the last ready type or, if careless, an invalid one."""

    def __init__(self, env: Any, careless: bool = False) -> None:
        self.observation_space, self.careless, self.n_asked = env.observation_space, careless, 0

    def predict(self, observation: Any, *, deterministic: bool, action_masks: Any) -> tuple[Any, Any]:
        self.n_asked += 1
        assert deterministic
        assert self.observation_space.contains(observation)
        assert observation["mask"].tolist() == action_masks.tolist()
        return np.int64(99 if self.careless else np.flatnonzero(action_masks)[-1]), None


def make_loss(**options: Any) -> Any:
    model = Model()
    return ab.batched(lambda words: own_loss(model, words), module=model, **options)


def test_graphs_of_a_model_are_episodes_and_an_agent_is_a_policy() -> None:
    loss = make_loss()
    env = gymnasium.make(rl.ID, dags=rl.episodes(loss, [SENTENCES, SENTENCES[:1]]))
    agent = First(env)
    by_agent = make_loss(policy=rl.Agent(agent))
    np.testing.assert_allclose(by_agent(SENTENCES), loss(SENTENCES), rtol=1e-6)
    assert agent.n_asked == by_agent.last.batches
    assert by_agent.explain(SENTENCES).policy == "agent"
    assert by_agent([]).shape == (0,)


def test_an_agent_that_does_not_heed_masks_is_refused() -> None:
    env = gymnasium.make(rl.ID, dags=rl.episodes(make_loss(), [SENTENCES]))
    with pytest.raises(ab.PolicyError, match=r"'agent' chose type 99, .*action_masks"):
        make_loss(policy=rl.Agent(First(env, careless=True)))(SENTENCES)


def test_an_agent_of_fewer_types_is_refused() -> None:
    env = gymnasium.make(rl.ID, dags=rl.episodes(make_loss(), [SENTENCES]))
    agent = First(env)
    agent.observation_space = {"mask": np.zeros(1)}
    with pytest.raises(ab.PolicyError, match=r"max_types must be at least 3, .* got 1"):
        make_loss(policy=rl.Agent(agent))(SENTENCES)


def test_a_graph_with_a_backward_edge_is_refused() -> None:
    env = gymnasium.make(rl.ID, dags=rl.episodes(make_loss(), [SENTENCES]))
    graph = make_loss().merged(SENTENCES)
    graph.edge_src[0] = graph.n_nodes - 1
    with pytest.raises(ab.GraphError, match=rf"edge {graph.n_nodes - 1} .* points backwards"):
        rl.Agent(First(env)).schedule(graph)


def test_an_agent_is_described_and_saved(tmp_path: Path) -> None:
    env = gymnasium.make(rl.ID, dags=rl.episodes(make_loss(), [SENTENCES]))
    agent = First(env)
    policy = rl.Agent(agent, "mine")
    assert policy.describe() == {"policy": "mine", "agent": "First", "n_types": 3}
    assert "First" in repr(policy)
    with pytest.raises(ab.PolicyError, match="First must have a save\\(path\\) method"):
        policy.save(tmp_path / "agent.zip")


@pytest.mark.slow
def test_maskable_ppo_learns_a_policy(tmp_path: Path) -> None:
    contrib = pytest.importorskip("sb3_contrib")
    loss = make_loss()
    env = gymnasium.make(rl.ID, dags=rl.episodes(loss, [SENTENCES]))
    agent = contrib.MaskablePPO("MultiInputPolicy", env, n_steps=64, seed=0).learn(64)
    found = make_loss(policy=rl.Agent(agent))
    np.testing.assert_allclose(found(SENTENCES), loss(SENTENCES), rtol=1e-6)
    rl.Agent(agent).save(tmp_path / "agent.zip")
    again = make_loss(policy=rl.Agent(contrib.MaskablePPO.load(tmp_path / "agent.zip")))
    assert again.explain(SENTENCES).batches == found.explain(SENTENCES).batches
