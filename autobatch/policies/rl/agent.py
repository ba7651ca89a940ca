"""Turn the graphs of a model into episodes, and a trained agent into a policy."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Protocol

from autobatch._native import Simulation
from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, to_dag
from autobatch.graph.graph import Graph
from autobatch.graph.graph_check import check_order
from autobatch.keywords import checked
from autobatch.policies.rl.env import Batching
from autobatch.schedule.schedule import Schedule


class MaskedAgent(Protocol):
    """A trained agent that takes only allowed actions, such as a MaskablePPO of sb3-contrib."""

    observation_space: Any

    def predict(self, observation: Any, *, deterministic: bool, action_masks: Any) -> tuple[Any, Any]:
        """Return the action, and the agent's state for the next one."""


class Recording(Protocol):
    """A batched function, which records mini-batches."""

    def merged(self, instances: Iterable[Any]) -> Graph:
        """Return the graph of a mini-batch, in the form that policies get."""


@checked()
class Agent:
    """A trained agent as a policy of `ab.batched`: it names the ready type to run next.

    Args:
        agent: an agent trained on an environment, whose observations determine the number of types.
        name: the name of the policy, in reports.
    """

    def __init__(self, agent: MaskedAgent, name: str = "agent") -> None:
        self.name, self._agent = name, agent
        self._n_types = int(agent.observation_space["mask"].shape[0])

    def describe(self) -> dict[str, Any]:
        """Return the name of the policy, the class of the agent, and the number of types that it knows."""
        return {"policy": self.name, "agent": type(self._agent).__name__, "n_types": self._n_types}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the agent with its own `save`; `Agent(MaskablePPO.load(path))` restores the policy.

        Raises:
            PolicyError: the agent has no method `save`.
        """
        save = getattr(self._agent, "save", None)
        if save is None:
            raise PolicyError(
                f"saving policy {self.name!r}: {type(self._agent).__name__} must have a save(path) method."
            )
        save(path)

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, {type(self._agent).__name__}, {self._n_types} types)"

    def schedule(self, graph: Graph) -> Schedule:
        """Schedule `graph` by playing an episode of it.

        Raises:
            PolicyError: the graph has more types than the agent was trained for, or the agent names a type that is not
                ready.
            GraphError: the graph has a cycle.
        """
        dag = to_dag(graph)
        if not graph.n_nodes:
            return Schedule(*Simulation(dag).batches())
        try:
            env = Batching([dag], max_types=self._n_types)
        except PolicyError:
            check_order(graph)  # names the edge
            raise
        seen, _ = env.reset(seed=0)
        done = False
        while not done:
            ready = env.action_masks()
            action, _ = self._agent.predict(seen, deterministic=True, action_masks=ready)
            if not 0 <= int(action) < len(ready) or not ready[int(action)]:
                raise PolicyError(
                    f"policy {self.name!r} chose type {action}, which is not ready; give an agent that respects "
                    f"action_masks, such as MaskablePPO."
                )
            seen, _, done, _, _ = env.step(action)
        return Schedule(*env.batches())


@checked()
def episodes(loss: Recording, minibatches: Iterable[Iterable[Any]]) -> list[Dag]:
    """Return the graphs of mini-batches as dags, for the argument `dags` of an environment.

    Args:
        loss: a batched function, which records the mini-batches.
        minibatches: lists of instances, or of graphs from `record_all`.
    """
    return [to_dag(loss.merged(minibatch)) for minibatch in minibatches]
