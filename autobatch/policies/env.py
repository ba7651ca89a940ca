"""Batching as a Gymnasium environment: an episode schedules a graph, and an action is the type to run next.

`gymnasium.make("autobatch.policies.env:autobatch/Batching-v0", dags=...)` imports this module by itself. `episodes`
turns the graphs of a model into episodes, and `Agent` a trained agent into a policy.

Observations describe each type by the features of `autobatch.policies.rules.network`, which do not depend on the number
of types, padded with rows of zeros to `max_types`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from autobatch._native import Simulation
from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, to_dag, type_costs
from autobatch.graph.graph import Graph
from autobatch.graph.graph_check import check_order
from autobatch.keywords import checked
from autobatch.policies.fsm.practice import REWARDS, Reward
from autobatch.policies.rules.directed import Batches
from autobatch.policies.rules.network import OVERALL_FEATURES, TYPE_FEATURES
from autobatch.release import pip_install
from autobatch.schedule.schedule import Schedule

try:
    import gymnasium
    from gymnasium import spaces
except ImportError as missing:
    raise PolicyError(
        f"making an environment: the package gymnasium is not installed; {pip_install('rl')}, or learn a policy "
        "that does not need it, such as fsm."
    ) from missing

__all__ = ["ID", "Agent", "Batching", "episodes"]

Observation: TypeAlias = dict[str, NDArray[Any]]


@final
class Batching(gymnasium.Env[Observation, Any]):
    """Schedule one graph after another.

    Observation: "types" float32[max_types, features], "overall" float32[features], "mask" int8[max_types], 1 for every
    type that is ready. Action: a type. A type that is not ready, or a number that is not a type, runs nothing and gives
    a reward of minus the highest cost; after more such moves than the graph has nodes the episode is truncated. The
    episode ends when all nodes have run. `action_masks` also returns the mask. So does `info`, with the number of
    batches so far and their cost.

    Args:
        dags: the graphs, for example from `Dag.from_edges` or `episodes`; each episode draws one uniformly.
        reward: the reward for a batch, times the cost of its type, see `Dag`. "critical" is 0 if the batch lowers the
            chain bound of the remaining nodes, else -1, so the return of an episode is the bound minus the number of
            batches; "published" is that of ED-Batch, see `QLearning`.
        max_types: the rows of an observation; by default the most types of any graph.

    Raises:
        PolicyError: `dags` is empty, or contains a graph that is malformed, lacks nodes or has more types than
            `max_types`; or the reward is unknown.

    Cost: some 30 us per step, mostly overhead of calls from Python.

    >>> from autobatch.graph.sketch import Sketch
    >>> sketch = Sketch(2)
    >>> sketch.add(1, [sketch.add(0), sketch.add(0)])
    2
    >>> env = gymnasium.make("autobatch.policies.env:autobatch/Batching-v0", dags=[sketch.to_dag()])
    >>> observation, info = env.reset(seed=0)
    >>> info["action_mask"].tolist()
    [1, 0]
    >>> observation, reward, terminated, truncated, info = env.step(0)
    >>> info["action_mask"].tolist(), info["n_batches"], terminated
    ([0, 1], 1, False)
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012, as Gymnasium declares it

    @checked(dags=PolicyError, reward=PolicyError)
    def __init__(self, dags: Sequence[Dag], reward: Reward = "critical", max_types: int | None = None) -> None:
        dags = _check_dags(dags)
        most = max(dag.n_types for dag in dags)
        n_types = most if max_types is None else max_types
        if most > n_types:
            raise PolicyError(
                f"making an environment: max_types must be at least {most}, as many as a graph has, got {n_types}."
            )
        self._dags = [dag._replace(n_types=n_types) for dag in dags]
        self._reward = REWARDS.index(reward)
        self._begin(self._dags[0])
        self.action_space = spaces.Discrete(n_types)
        seen = {
            "mask": spaces.MultiBinary(n_types),
            "overall": spaces.Box(0, 1, (len(OVERALL_FEATURES),), np.float32),
            "types": spaces.Box(0, 1, (n_types, len(TYPE_FEATURES)), np.float32),
        }
        self.observation_space = spaces.Dict(seen)  # type: ignore[assignment]

    def _begin(self, dag: Dag) -> None:
        self._dag, self._sim, self._costs = dag, Simulation(dag), type_costs(dag).tolist()
        self._n_batches = self._n_wasted = 0
        self._cost = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Replace the simulation, for copies and pickles, by the types that ran."""
        return {**vars(self), "_sim": self._sim.batches()[0].tolist()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the simulation by running these types again."""
        vars(self).update(state, _sim=Simulation(state["_dag"]))
        for type_id in state["_sim"]:
            self._sim.step(type_id)

    @checked()
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode on a graph drawn at random.

        Args:
            seed: seed of the draws from now on.
            options: ignored; Gymnasium asks for this argument.

        Returns:
            The observation, and the dict `info`.
        """
        super().reset(seed=seed, options=options)
        self._begin(self._dags[int(self.np_random.integers(len(self._dags)))])
        return self._observe(), self._inform()

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Run every ready node of type `action`.

        Returns:
            The observation, the reward, whether all nodes have run, whether the episode was truncated, and `info`.

        Raises:
            PolicyError: `action` is not an int.
        """
        chosen, n_types = np.asarray(action), self._dags[0].n_types
        if chosen.size != 1 or chosen.dtype.kind not in "iu":
            raise PolicyError(
                f"the action must be the number of a type, an int from 0 to {n_types - 1}, got {action!r}."
            )
        type_id = int(chosen.item())
        if 0 <= type_id < n_types and self.action_masks()[type_id]:
            reward = self._sim.reward(self._reward, type_id) * self._costs[type_id]
            self._sim.step(type_id)
            self._n_batches += 1
            self._cost += self._costs[type_id]
        else:
            reward = -max(self._costs)
            self._n_wasted += 1
        terminated = not self.action_masks().any()
        truncated = not terminated and self._n_wasted > self._dag.type_id.size
        return self._observe(), reward, terminated, truncated, self._inform()

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the mask of ready types, bool[max_types], in the form that MaskablePPO needs."""
        return self._sim.ready() > 0

    def batches(self) -> Batches:
        return self._sim.batches()

    def _observe(self) -> Observation:
        types, overall = self._sim.features()
        return {"mask": self.action_masks().astype(np.int8), "overall": overall, "types": types}

    def _inform(self) -> dict[str, Any]:
        mask = self.action_masks().astype(np.int8)
        return {"action_mask": mask, "n_batches": self._n_batches, "cost": self._cost}


def _check_dags(dags: Sequence[Dag]) -> list[Dag]:
    """Return the dags as a list, after checking them.

    Raises:
        PolicyError: `dags` is empty, or a dag is malformed or has no nodes.
    """
    if not dags:
        raise PolicyError("making an environment: dags must contain at least one Dag, got none.")
    for number, dag in enumerate(dags):
        n_nodes, n_pointers = np.size(dag.type_id), np.size(dag.edge_ptr)
        if not n_nodes:
            raise PolicyError(f"making an environment: dags[{number}] must have at least one node, got none.")
        if n_pointers != n_nodes + 1:
            raise PolicyError(
                f"making an environment: edge_ptr of dags[{number}] must have {n_nodes + 1} elements, one more than "
                f"type_id, got {n_pointers}."
            )
        try:
            Simulation(dag, is_measured=False)
        except (TypeError, ValueError) as error:
            raise PolicyError(f"making an environment: dags[{number}] is malformed: {error}.") from error
    return [*dags]


def register(name: str) -> None:
    """Register the environment in Gymnasium under a name, unless it is registered."""
    if name not in gymnasium.registry:
        gymnasium.register(name, entry_point=f"{__name__}:Batching")


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
            seen, _, done, _, _ = env.step(action)  # never truncated, because every action is ready
        return Schedule(*env.batches())


@checked()
def episodes(loss: Recording, minibatches: Iterable[Iterable[Any]]) -> list[Dag]:
    """Return the graphs of mini-batches as dags, for the argument `dags` of an environment.

    Args:
        loss: a batched function, which records the mini-batches.
        minibatches: lists of instances, or of graphs from `record_all`.
    """
    return [to_dag(loss.merged(minibatch)) for minibatch in minibatches]


ID = "autobatch/Batching-v0"
"""The name of the environment in Gymnasium."""

register(ID)
