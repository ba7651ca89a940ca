"""Between agents and models: graphs of a model as episodes, and a trained agent as a policy."""

from __future__ import annotations

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
    """A trained agent that takes only actions that are allowed, such as a MaskablePPO of sb3-contrib."""

    observation_space: Any

    def predict(self, observation: Any, *, deterministic: bool, action_masks: Any) -> tuple[Any, Any]:
        """The action, and what is kept for the next one."""


class Recording(Protocol):
    """A batched function, which records mini-batches."""

    def merged(self, instances: Iterable[Any]) -> Graph:
        """The graph of a mini-batch, as policies get it."""


class Agent:
    """A trained agent as a policy of `ab.batched`: it names the type to run next, of those that are ready.

    Args:
        agent: trained on an environment, whose observations say for how many types.
        name: of the policy, in reports.
    """

    def __init__(self, agent: MaskedAgent, name: str = "agent") -> None:
        self.name, self._agent = name, agent
        self._n_types = int(agent.observation_space["mask"].shape[0])

    def schedule(self, graph: Graph) -> Schedule:
        """Play an episode of the graph.

        Raises:
            PolicyError: the graph has more types than the agent was trained for, or the agent names a type that is not
                ready.
            GraphError: the graph has a cycle.
        """
        check_order(graph)
        if not graph.n_nodes:
            return Schedule(*Simulation(to_dag(graph)).batches())
        env = Batching([to_dag(graph)], max_types=self._n_types)
        seen, _ = env.reset(seed=0)
        done = False
        while not done:
            ready = env.action_masks()
            action, _ = self._agent.predict(seen, deterministic=True, action_masks=ready)
            if not 0 <= int(action) < len(ready) or not ready[int(action)]:
                raise PolicyError(
                    f"policy {self.name!r} chose type {action}, which is not ready; give an agent that heeds "
                    f"action_masks, such as MaskablePPO."
                )
            seen, _, done, _, _ = env.step(action)
        return Schedule(*env.batches())


@checked()
def episodes(loss: Recording, minibatches: Iterable[Iterable[Any]]) -> list[Dag]:
    """The graphs of mini-batches as policies see them: `dags=` of an environment."""
    return [to_dag(loss.merged(minibatch)) for minibatch in minibatches]
