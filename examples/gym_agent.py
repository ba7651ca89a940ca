"""Train an agent in the Gymnasium environment to choose which nodes run together, and use it as a policy.

    python examples/gym_agent.py        # needs the extra rl

The agent scores each ready type by a weighted sum of its features and learns the weights by REINFORCE. During training
the script prints the number of batches above the lower bound, and then the mean number of batches of several policies,
where `depth` is the rule of TensorFlow Fold, and `agenda` that of DyNet:

    step 1: 17.8 batches above the lower bound
    ...
      agenda       33.8
      trained      22.8
      lower bound  20.1
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models import find_model

try:
    import gymnasium

    import autobatch.policies.env as rl
except (ImportError, ab.PolicyError):
    sys.exit("examples/gym_agent.py needs Gymnasium; run pip install 'autobatch-nn[rl]'.")


class LinearAgent:
    """Samples a type by the softmax of linear scores; has the interface of Stable-Baselines3 agents."""

    def __init__(self, env: gymnasium.Env[Any, Any], rng: np.random.Generator) -> None:
        space: Any = env.observation_space
        self.observation_space, self.weights, self.rng = space, np.zeros(space["types"].shape[1]), rng

    def chances(self, observation: dict[str, Any]) -> Any:
        """Return the probability of each type; 0 for types that are not ready."""
        scores = np.where(observation["mask"], observation["types"] @ self.weights, -np.inf)
        exps = np.exp(scores - scores.max())
        return exps / exps.sum()

    def predict(self, observation: Any, *, deterministic: bool, action_masks: Any) -> tuple[int, None]:
        chances = self.chances(observation)
        return int(chances.argmax() if deterministic else self.rng.choice(len(chances), p=chances)), None

    def play(self, env: gymnasium.Env[Any, Any]) -> tuple[float, Any]:
        """Play an episode; return its total reward and the gradient of the log-probability of its actions."""
        (seen, _), gained, gradient, done = env.reset(), 0.0, np.zeros_like(self.weights), False
        while not done:
            action, _ = self.predict(seen, deterministic=False, action_masks=seen["mask"])
            gradient += seen["types"][action] - self.chances(seen) @ seen["types"]
            seen, reward, done, _, _ = env.step(action)
            gained += float(reward)
        return gained, gradient

    def improve(self, env: gymnasium.Env[Any, Any], n_episodes: int = 20) -> float:
        """Play some episodes, then change the weights once; return the mean total reward of an episode."""
        gains, gradients = zip(*(self.play(env) for _ in range(n_episodes)), strict=True)
        self.weights += 0.05 * np.mean((np.array(gains) - np.mean(gains))[:, None] * gradients, axis=0)
        return float(np.mean(gains))


def main() -> None:
    """Train an agent on mini-batches of expressions and compare it with other policies on new ones."""
    rng, spec = np.random.default_rng(0), find_model("tree-lstm-2type")
    data = spec.load(spec.default_data, rng)
    model: Any = spec.build(data, dim=4, rng=rng)
    loss = ab.batched(model.loss)
    seen, new = ([data.train[i : i + 8] for i in range(first, first + 160, 8)] for first in (0, 160))
    env = gymnasium.make(rl.ID, dags=rl.episodes(loss, seen))
    env.reset(seed=0)
    agent, untrained = LinearAgent(env, rng), LinearAgent(env, rng)
    for step in range(1, 13):
        print(f"step {step}: {-agent.improve(env):.1f} batches above the lower bound")
    print("batches of new mini-batches:")
    policies: list[ab.policies.Policy] = [rl.Agent(untrained, "untrained"), ab.policies.get("depth")]
    for loss.policy in [*policies, ab.policies.get("agenda"), rl.Agent(agent, "trained")]:
        print(f"  {loss.policy.name:<12} {np.mean([loss.explain(minibatch).batches for minibatch in new]):.1f}")
    print(f"  {'lower bound':<12} {np.mean([loss.explain(minibatch).lower_bound for minibatch in new]):.1f}")


if __name__ == "__main__":
    main()
