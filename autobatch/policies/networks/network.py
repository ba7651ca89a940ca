"""A small network that scores each ready type, run in compiled loops without a deep-learning library.

All types are scored alike, from the row x of a type (`autobatch.policies.networks.features`), the mean over the types
with unrun nodes, and the features o of the whole graph:

    h = relu(W1 x + b1)      score = w3 . relu(W2 h + V2 mean(h) + U2 o + b2)

The ready type of the highest score runs next. The numbering and the number of types do not matter: weights learned on
generated families are used unchanged on any graph.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from autobatch.graph.dag import Dag
from autobatch.jit.arrays import FloatArray
from autobatch.jit.loops import compiled
from autobatch.policies.networks.features import OVERALL_FEATURES, TYPE_FEATURES, UNRUN, Rows, describe
from autobatch.policies.networks.fleet import advance, start_fleet
from autobatch.policies.rules.directed import Batches, Directed, Direction
from autobatch.schedule.simulator import finish
from autobatch.system.trust import trusted


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
    fleet = start_fleet(dag, np.array([0, dag.type_id.size], np.int32))
    head, tail = fleet.sim.head, fleet.sim.tail
    rows = np.empty((dag.n_types, network.w1.shape[1]), np.float32)
    overall = np.empty(network.u2.shape[1], np.float32)
    scores = np.empty(dag.n_types)
    while True:
        describe(fleet, 0, rows, overall)
        score_types(network, rows, overall, scores)
        best = -1
        for a in range(dag.n_types):
            if head[a] < tail[a] and (best < 0 or scores[a] > scores[best]):
                best = a
        if best < 0:
            return finish(fleet.sim)
        advance(fleet, best)


@compiled
def score_types(network: Network, rows: Rows, overall: NDArray[np.float32], scores: FloatArray) -> None:
    """Write the score of every type that has unrun nodes.

    Args:
        network: of H hidden numbers.
        rows, overall: what `describe` wrote of T types.
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
