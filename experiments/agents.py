"""Count the batches that agents of other libraries need, compared with learned machines, rules and search.

All learn on the same mini-batches, one at a time, and plan others that they have not seen. MaskablePPO and DQN of
Stable-Baselines3, and the loop of `examples/gym_agent.py` (REINFORCE with a linear score of a type's features), learn
in the environment of `autobatch.policies.env`. DQN does not support masks: while it learns, a type that is not ready
stands for the first ready one; afterwards, the ready type with the highest value runs. `learn_policy` learns both of
our machines. Rules and search do not learn. Agents and `score` plan from the inputs, in one direction;
`score+both+compact`, `learn_policy` and search plan in both, and use the shorter plan, compacted. Times are seconds to
learn, and to plan one mini-batch, in one process with one thread.

    python experiments/agents.py workload=random-dag-8 steps=20000
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import RecordEpisodeStatistics
from sb3_contrib import MaskablePPO
from stable_baselines3 import DQN
from stable_baselines3.common.utils import obs_as_tensor

import autobatch as ab
import autobatch.policies.env as rl
from autobatch.cli.results import format_table
from autobatch.graph.dag import Dag, to_dag
from autobatch.graph.graph import Graph
from autobatch.policies.rules.rules import with_origin
from autobatch.policies.search.bounds import pair_bound
from digest import ROOT, STRUCTURE
from harness import run
from records import Findings, Settings
from workloads import WORKLOADS

sys.path.append(str(ROOT / "examples"))

from gym_agent import LinearAgent

MODULES = (*STRUCTURE, "examples.gym_agent")
BOUND_STATES = 400_000
EPISODES = 20
"""Episodes of REINFORCE between changes of the weights."""


@dataclass(frozen=True)
class Config(Settings):
    """Settings of the mini-batches, and how long agents learn."""

    workload: str = "tree-lstm-2type"
    size: int = 16
    learned: int = 8
    held_out: int = 16
    steps: int = 40_000
    """Number of batches that an agent runs while it learns."""


class Ready(gymnasium.ActionWrapper[Any, Any, Any]):
    """The environment for agents without masks: a type that is not ready stands for the first ready one."""

    def action(self, action: Any) -> Any:
        mask = self.env.unwrapped.action_masks()  # type: ignore[attr-defined]
        return action if mask[action] else int(mask.argmax())


class Greedy:
    """A DQN agent that chooses the ready type with the highest value."""

    def __init__(self, agent: DQN) -> None:
        self.agent, self.observation_space = agent, agent.observation_space

    def predict(self, observation: Any, *, deterministic: bool, action_masks: Any) -> tuple[int, None]:
        seen = {name: x[None] for name, x in observation.items()}
        with torch.no_grad():
            values = self.agent.q_net(obs_as_tensor(seen, self.agent.device))[0].numpy()
        return int(np.where(action_masks, values, -np.inf).argmax()), None


def train_ppo(env: Any, config: Config) -> Any:
    """Train MaskablePPO with its default settings."""
    return MaskablePPO("MultiInputPolicy", env, seed=config.seed).learn(config.steps)


def train_dqn(env: Any, config: Config) -> Any:
    """Train DQN with its default settings, except for the steps before it learns and for exploration."""
    agent = DQN("MultiInputPolicy", Ready(env), learning_starts=1000, exploration_fraction=0.5, seed=config.seed)
    return Greedy(agent.learn(config.steps))


def train_linear(env: Any, config: Config) -> Any:
    """Train by REINFORCE."""
    counted = RecordEpisodeStatistics(env, buffer_length=EPISODES)
    counted.reset(seed=config.seed)
    agent, n_steps = LinearAgent(env, np.random.default_rng(config.seed)), 0
    while n_steps < config.steps:
        agent.improve(counted, EPISODES)
        n_steps += sum(counted.length_queue)
    return agent


AGENTS: Mapping[str, Callable[[Any, Config], Any]] = {
    "MaskablePPO": train_ppo, "DQN": train_dqn, "own loop (REINFORCE)": train_linear,
}  # fmt: skip
RULES = ("depth", "agenda", "score", "score+both+compact", "search")


def count(policy: Any, graphs: list[Graph]) -> tuple[float, list[float]]:
    """Plan mini-batches. Return the mean number of batches, and the seconds of each plan."""
    batches, seconds = [], []
    for graph in graphs:
        began = perf_counter()
        batches.append(policy.schedule(graph).n_batches)
        seconds.append(perf_counter() - began)
    return statistics.fmean(batches), seconds


def measure(config: Config) -> Findings:
    """Measure all policies."""
    torch.set_num_threads(config.threads)
    workload = WORKLOADS[config.workload]
    data, graphs = workload.minibatches(config.size, config.learned + config.held_out, config.seed)
    learned, held_out = graphs[: config.learned], graphs[config.learned :]
    dags: list[Dag] = [to_dag(graph) for graph in graphs]
    n_types = max(dag.n_types for dag in dags)
    seconds, figures = dict[str, list[float]](), dict[str, Any]()

    def note(name: str, policy: Any, learning_s: float | None) -> None:
        batches, seconds[name] = count(policy, held_out)
        planning_ms = round(1e3 * statistics.median(seconds[name]), 3)
        figures[name] = {"batches": batches, "learning_s": learning_s, "planning_ms": planning_ms}

    for name in RULES:
        note(name, ab.policies.get(name), None)
    began = perf_counter()
    machine = ab.policies.learn(learned, seed=config.seed)
    note("learn_policy", machine, round(perf_counter() - began, 3))
    for name, train in AGENTS.items():
        env = gymnasium.make(rl.ID, dags=dags[: config.learned], max_types=n_types)
        began = perf_counter()
        agent = train(env, config)
        note(name, rl.Agent(agent, name), round(perf_counter() - began, 3))
    bound = statistics.fmean(np.ceil(pair_bound(dag, BOUND_STATES).value - 1e-6) for dag in dags[config.learned :])
    rows = [
        (with_origin(name), f"{one['batches']:.1f}", f"{100 * (one['batches'] / bound - 1):.1f}%",
         "" if one["learning_s"] is None else f"{one['learning_s']:.1f}", f"{one['planning_ms']:.2f}")
        for name, one in figures.items()
    ]  # fmt: skip
    title = (
        f"{config.workload} ({data}), {config.held_out} held-out mini-batches of {config.size}; bound {bound:.1f}\n\n"
    )
    header = ("policy", "batches", "above the bound", "s to learn", "ms to plan")
    found = {"bound": bound, "ways": figures, "data": data}
    return Findings(seconds, found, title + format_table(header, rows), part=config.workload)


if __name__ == "__main__":
    run(Config(), measure, modules=MODULES)
