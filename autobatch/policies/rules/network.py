"""A small network that scores each ready type, run in compiled loops without a deep-learning library.

All types are scored alike, from the row x of features of a type, the mean over the types with unrun nodes, and the
features o of the whole graph:

    h = relu(W1 x + b1)      score = w3 . relu(W2 h + V2 mean(h) + U2 o + b2)

The ready type of the highest score runs next. No feature depends on the number or numbering of types or on the size of
the mini-batch, so weights learned on generated families are used unchanged on any graph. All features lie between 0
and 1. A type without unrun nodes has a row of zeros. M, criticality and shares at M are those of
`autobatch.schedule.chains`, frontiers of G_a those of `autobatch.schedule.restricted`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag
from autobatch.jit.arrays import FloatArray
from autobatch.jit.loops import compiled
from autobatch.keywords import checked
from autobatch.policies.rules.directed import Batches, Directed, Direction
from autobatch.schedule.chains import Chains, follow, is_critical, start_chains
from autobatch.schedule.restricted import Restricted, start_restricted, unblock
from autobatch.schedule.simulator import Simulator, finish, start, step
from autobatch.system.trust import trusted

Rows: TypeAlias = NDArray[np.float32]

TYPE_FEATURES = (
    "unrun",  # 1: some node of the type is to be run
    "ready",  # 1: some node is ready
    "critical",  # 1: ready, and running it lowers the chain bound
    "ready_share",  # its ready nodes among its unrun ones
    "own_share",  # its share of the ready nodes at M
    "height",  # mean chains ahead of its ready nodes, relative to the largest such mean
    "chain",  # M among the M of all types
    "ratio",  # its ready nodes among the frontier of G_a
    "of_ready",  # its share of all ready nodes
    "of_unrun",  # its share of all unrun nodes
)
OVERALL_FEATURES = (
    "left",  # unrun nodes among all
    "ready",  # ready nodes among unrun ones
    "ready_types",  # types with ready nodes among those with unrun ones
    "critical_types",  # critical types among the ready ones
    "inverse_types",  # 1 / types with unrun nodes
)
UNRUN, READY, CRITICAL, READY_SHARE, OWN_SHARE, HEIGHT, CHAIN, RATIO, OF_READY, OF_UNRUN = range(10)
LEFT, ALL_READY, READY_TYPES, CRITICAL_TYPES, INVERSE_TYPES = range(5)


class Network(NamedTuple):
    """Weights of a network with H hidden units; F and G are the features of a type and of the whole."""

    w1: FloatArray  # [H, F]
    b1: FloatArray  # [H]
    w2: FloatArray  # [H, H] of the type's own hidden numbers
    v2: FloatArray  # [H, H] of their means
    u2: FloatArray  # [H, G]
    b2: FloatArray  # [H]
    w3: FloatArray  # [H]


@cache
def learned_network() -> Network:
    """Read the weights that come with the package."""
    text = (files("autobatch.policies") / "learned" / "network.json").read_text(encoding="utf-8")
    return to_network(json.loads(text)["weights"])


def to_network(weights: Mapping[str, Any]) -> Network:
    """Make a network from lists or arrays by name.

    Raises:
        ValueError: an array is not finite, or its shape does not fit the others and the features.
    """
    network = Network(**{name: np.array(part, np.float64) for name, part in weights.items()})
    hidden, types, overall = len(network.w3), len(TYPE_FEATURES), len(OVERALL_FEATURES)
    shapes = ((hidden, types), (hidden,), (hidden, hidden), (hidden, hidden), (hidden, overall), (hidden,), (hidden,))
    for name, part, shape in zip(Network._fields, network, shapes, strict=True):
        if part.shape != shape or not np.isfinite(part).all():
            raise ValueError(f"{name} has shape {part.shape}, or is not finite; {shape} is needed")
    return network


@final
@trusted
class Deep(Directed):
    """Run the ready type to which a network gives the highest score, of equal ones the lowest id.

    Args:
        network: the weights; by default those that `experiments/learning/deep.py` learned on generated families.
        direction: "forward", "backward" or "both", see `Directed`.
        compact: delete superfluous batches, see `Directed`.
        about: how it was learned; saved with it.
    """

    rule: ClassVar[str] = "network"

    @checked(direction=PolicyError)
    def __init__(
        self,
        network: Network | None = None,
        direction: Direction = "forward",
        compact: bool = False,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(direction, compact)
        self.network = learned_network() if network is None else network
        self.about = dict(about or {})

    def describe(self) -> dict[str, Any]:
        """The weights."""
        return {"weights": {name: part.tolist() for name, part in self.network._asdict().items()}}

    @classmethod
    def rebuild(cls, content: Mapping[str, Any], direction: Direction, compact: bool) -> Deep:
        """Make the policy of a file's content."""
        return cls(to_network(content["weights"]), direction, compact)

    def plan(self, dag: Dag) -> Batches:
        """Simulate batch by batch. Cost: O(T * (N + E + K * H * (H + F))) for K batches."""
        return _plan(dag, self.network)


@compiled
def _plan(dag: Dag, network: Network) -> Batches:
    sim, restricted = start(dag), start_restricted(dag)
    chains = start_chains(dag, sim)
    head, tail = sim.head, sim.tail
    rows = np.empty((dag.n_types, network.w1.shape[1]), np.float32)
    overall = np.empty(network.u2.shape[1], np.float32)
    scores = np.empty(dag.n_types)
    while True:
        describe_types(sim, chains, restricted, rows, overall)
        score_types(network, rows, overall, scores)
        best = -1
        for a in range(dag.n_types):
            if head[a] < tail[a] and (best < 0 or scores[a] > scores[best]):
                best = a
        if best < 0:
            return finish(sim)
        batch = step(sim, best)
        follow(chains, sim, batch)
        unblock(restricted, sim, batch)


@compiled
def describe_types(
    sim: Simulator, chains: Chains, restricted: Restricted, rows: Rows, overall: NDArray[np.float32]
) -> None:
    """Write the features of a dag in the midst of its simulation.

    Args:
        sim, chains, restricted: of a single dag of T types.
        rows: written, float32[T, features of a type].
        overall: written, float32[features of the whole].

    Cost: O(T).
    """
    head, tail, segment = sim.head, sim.tail, sim.segment
    most, ready_height, frontier = chains.most, chains.ready_height, restricted.frontier
    n_most, n_own_most = chains.n_most, chains.n_own_most
    rows[:] = 0
    overall[:] = 0
    all_ready, all_unrun, all_chains, highest = 0, 0, 0, 0.0
    for a in range(rows.shape[0]):
        n_ready = tail[a] - head[a]
        all_ready += n_ready
        all_unrun += segment[a + 1] - head[a]
        all_chains += most[a]
        if n_ready:
            highest = max(highest, ready_height[a] / n_ready)
    if all_ready == 0:
        return
    n_unrun_types, n_ready_types, n_critical = 0, 0, 0
    for a in range(rows.shape[0]):
        n_ready, n_unrun = tail[a] - head[a], segment[a + 1] - head[a]
        if n_unrun == 0:
            continue
        n_unrun_types += 1
        rows[a, UNRUN] = 1
        rows[a, CHAIN] = most[a] / all_chains
        rows[a, OF_UNRUN] = n_unrun / all_unrun
        if n_ready == 0:
            continue
        critical = is_critical(chains, a)
        n_ready_types += 1
        n_critical += critical
        rows[a, READY] = 1
        rows[a, CRITICAL] = critical
        rows[a, READY_SHARE] = n_ready / n_unrun
        rows[a, OWN_SHARE] = n_own_most[a] / n_most[a]
        rows[a, HEIGHT] = ready_height[a] / (n_ready * highest)
        rows[a, RATIO] = n_ready / frontier[a]
        rows[a, OF_READY] = n_ready / all_ready
    overall[LEFT] = all_unrun / sim.type_id.size
    overall[ALL_READY] = all_ready / all_unrun
    overall[READY_TYPES] = n_ready_types / n_unrun_types
    overall[CRITICAL_TYPES] = n_critical / n_ready_types
    overall[INVERSE_TYPES] = 1 / n_unrun_types


@compiled
def score_types(network: Network, rows: Rows, overall: NDArray[np.float32], scores: FloatArray) -> None:
    """Write the score of every type that has unrun nodes.

    Args:
        network: of H hidden numbers.
        rows, overall: what `describe_types` wrote of T types.
        scores: float64[T].
    """
    w1, b1, w2, v2, u2, b2, w3 = network
    n_types, n_hidden = rows.shape[0], w3.size
    hidden = np.zeros((n_types, n_hidden))
    mean = np.zeros(n_hidden)
    n_unrun = 0
    for a in range(n_types):
        if rows[a, UNRUN] == 0:
            continue
        n_unrun += 1
        for h in range(n_hidden):
            total = b1[h]
            for f in range(rows.shape[1]):
                total += w1[h, f] * rows[a, f]
            hidden[a, h] = max(total, 0.0)
            mean[h] += hidden[a, h]
    shared = b2.copy()
    for h in range(n_hidden):
        for f in range(overall.size):
            shared[h] += u2[h, f] * overall[f]
        for other in range(n_hidden):
            shared[h] += v2[h, other] * mean[other] / max(n_unrun, 1)
    for a in range(n_types):
        scores[a] = 0.0
        if rows[a, UNRUN] > 0:
            for h in range(n_hidden):
                total = shared[h]
                for other in range(n_hidden):
                    total += w2[h, other] * hidden[a, other]
                scores[a] += w3[h] * max(total, 0.0)
