"""Rules that choose the type to run next from the ready nodes and the chains ahead of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, final

from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag
from autobatch.jit.loops import compiled
from autobatch.keywords import checked
from autobatch.policies.rules.directed import Batches, Directed, Direction
from autobatch.schedule.chains import Chains, follow, is_critical, start_chains
from autobatch.schedule.restricted import Restricted, start_restricted, unblock
from autobatch.schedule.simulator import Simulator, finish, start, step
from autobatch.system.trust import trusted


@final
@trusted
class Sufficient(Directed):
    """Run the type with the largest ratio |F_a| / |frontier(G_a)|; among equals, the lowest id.

    F_a are the ready nodes of type a; G_a is the dag restricted to type a (`autobatch.schedule.restricted`). At ratio 1
    waiting gains nothing: the choice is optimal.

    Args:
        direction: "forward", "backward" or "both", see `Directed`.
        compact: delete superfluous batches.

    Source: ED-Batch (arXiv:2302.03851), the sufficient condition for an optimal choice.
    """

    rule: ClassVar[str] = "sufficient"

    def plan(self, dag: Dag) -> Batches:
        """Simulate batch by batch. Cost: O(T * (N + E + K)) for K batches."""
        return _sufficient(dag)


@final
@trusted
class Critical(Directed):
    """Run a critical type, which lowers the chain bound of the remaining nodes (`autobatch.schedule.chains`).

    If there are several or none, the ratio of `Sufficient` decides.

    Args:
        direction: "forward", "backward" or "both", see `Directed`.
        compact: delete superfluous batches.
    """

    rule: ClassVar[str] = "critical"

    def plan(self, dag: Dag) -> Batches:
        """Simulate batch by batch. Cost: O(T * (N + E + K)) for K batches."""
        return _critical(dag)


class Weights(NamedTuple):
    """The weights of the terms of `Score`."""

    critical: float
    ready: float
    own: float
    height: float

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Weights:
        """Make them of a file's content; ValueError unless all are finite."""
        weights = cls(**{name: float(weight) for name, weight in content.items()})
        if not all(map(math.isfinite, weights)):
            raise ValueError(f"weights {weights} are not finite")
        return weights


LEARNED = Weights(critical=0.55, ready=1.0, own=0.12, height=0.66)
"""Weights learned by `autobatch policy learn families --algorithm es`, see `experiments/learning/evolution.py`."""
ROUNDING = 1e-9
"""Scores that differ by less count as equal, since the order of summation changes them as much."""


@final
@trusted
class Score(Directed):
    """Run the ready type with the highest score; among equals, the lowest id.

    The score of type a is the weighted sum of
      - critical: whether a is critical,
      - ready: the share of a's unrun nodes that are ready,
      - own: the share of the ready nodes with the longest type-a chain ahead that are of type a themselves,
      - height: the mean over a's ready nodes of the chains ahead, summed over types, relative to the largest such
        mean among the ready types.

    The default weights were learned by an evolution strategy on random dags, grammars, chains and plain trees; no
    lattice and no tree with two kinds of nodes was among them.

    Args:
        direction: "forward", "backward" or "both", see `Directed`.
        compact: delete superfluous batches, see `Directed`.
        weights: other weights.
    """

    rule: ClassVar[str] = "score"

    @checked(direction=PolicyError)
    def __init__(self, direction: Direction = "forward", compact: bool = False, weights: Weights = LEARNED) -> None:
        super().__init__(direction, compact)
        self.weights = weights

    def plan(self, dag: Dag) -> Batches:
        """Simulate batch by batch. Cost: O(T * (N + E + K)) for K batches."""
        return _score(dag, self.weights)

    def _repr_html_(self) -> str:
        """The kind of policy, and its weights, for notebooks."""
        from autobatch.display.html import write_table

        return super()._repr_html_() + write_table(self.weights._fields, [[f"{weight:g}" for weight in self.weights]])

    def describe(self) -> dict[str, Any]:
        """The weights."""
        return {"weights": self.weights._asdict()}

    @classmethod
    def rebuild(cls, content: Mapping[str, Any], direction: Direction, compact: bool) -> Score:
        """Make the rule of a file's content."""
        return cls(direction, compact, Weights.read(content["weights"]))


@compiled
def _sufficient(dag: Dag) -> Batches:
    sim, restricted = start(dag), start_restricted(dag)
    while True:
        best = -1
        for a in range(dag.n_types):
            if is_ready(sim, a) and (best < 0 or _is_less(sim, restricted, best, a)):
                best = a
        if best < 0:
            return finish(sim)
        unblock(restricted, sim, step(sim, best))


@compiled
def _critical(dag: Dag) -> Batches:
    sim, restricted = start(dag), start_restricted(dag)
    chains = start_chains(dag, sim)
    while True:
        best, found = -1, False
        for a in range(dag.n_types):
            if is_ready(sim, a):
                critical = is_critical(chains, a)
                if best < 0 or (critical and not found) or (critical == found and _is_less(sim, restricted, best, a)):
                    best, found = a, critical
        if best < 0:
            return finish(sim)
        batch = step(sim, best)
        unblock(restricted, sim, batch)
        follow(chains, sim, batch)


@compiled
def _score(dag: Dag, weights: Weights) -> Batches:
    sim = start(dag)
    chains = start_chains(dag, sim)
    while True:
        type_id = highest_score(sim, chains, 0, dag.n_types, weights)
        if type_id < 0:
            return finish(sim)
        follow(chains, sim, step(sim, type_id))


@compiled
def highest_score(sim: Simulator, chains: Chains, first: int, end: int, weights: Weights) -> int:
    """Find the ready type of highest score among types `first` to `end`; -1 if none is ready."""
    head, tail, segment = sim.head, sim.tail, sim.segment
    n_most, n_own_most, ready_height = chains.n_most, chains.n_own_most, chains.ready_height
    highest = 0.0
    for a in range(first, end):
        if head[a] < tail[a]:
            highest = max(highest, ready_height[a] / (tail[a] - head[a]))
    best, best_score = -1, 0.0
    for a in range(first, end):
        if head[a] < tail[a]:
            n_ready = tail[a] - head[a]
            score = (
                weights.critical * (n_own_most[a] == n_most[a])
                + weights.ready * n_ready / (segment[a + 1] - head[a])
                + weights.own * (n_own_most[a] / n_most[a])
                + weights.height * ready_height[a] / (n_ready * highest)
            )
            if best < 0 or score > best_score + ROUNDING:
                best, best_score = a, score
    return best


@compiled
def is_ready(sim: Simulator, type_id: int) -> bool:
    """Say whether a node of the type can run."""
    return bool(sim.head[type_id] < sim.tail[type_id])


@compiled
def _is_less(sim: Simulator, restricted: Restricted, a: int, b: int) -> bool:
    """Say whether the ratio of type a is less than that of type b."""
    ready_a, ready_b = sim.tail[a] - sim.head[a], sim.tail[b] - sim.head[b]
    return bool(ready_a * restricted.frontier[b] < ready_b * restricted.frontier[a])
