"""Score each ready type with a small network, run by the native core without a deep-learning library.

All types are scored alike, from the features x of a type, the mean over the types with unrun nodes, and the features o
of the whole graph:

    h = relu(W1 x + b1)      score = w3 . relu(W2 h + V2 mean(h) + U2 o + b2)

The ready type with the highest score runs next. No feature depends on the number or numbering of types or on the size
of the mini-batch, so weights learned on generated families fit any graph unchanged. All features lie between 0 and 1,
and are 0 for a type without unrun nodes. `native/schedule/chains.h` defines M, criticality and the shares at M;
`native/schedule/restricted.h` defines the frontier of G_a.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from autobatch._native import plan_by_network
from autobatch.arrays import FloatArray
from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag
from autobatch.keywords import checked
from autobatch.policies.rules.directed import Batches, Directed, Direction
from autobatch.system.unchecked import unchecked

Rows: TypeAlias = NDArray[np.float32]

TYPE_FEATURES = (
    "unrun",  # 1: the type has unrun nodes
    "ready",  # 1: the type has ready nodes
    "critical",  # 1: ready, and running it lowers the chain bound
    "ready_share",  # share of its unrun nodes that are ready
    "own_share",  # its share of the ready nodes at M
    "height",  # mean chains ahead of its ready nodes, relative to the largest such mean
    "chain",  # share of its M in the M of all types
    "ratio",  # its ready nodes, relative to the frontier of G_a
    "of_ready",  # its share of all ready nodes
    "of_unrun",  # its share of all unrun nodes
)
OVERALL_FEATURES = (
    "left",  # share of all nodes that are unrun
    "ready",  # share of the unrun nodes that are ready
    "ready_types",  # share of the types with unrun nodes that are ready
    "critical_types",  # share of the ready types that are critical
    "inverse_types",  # 1 / types with unrun nodes
)


class Network(NamedTuple):
    """Weights of a network with H hidden units, F features of a type and G features of the whole graph."""

    w1: FloatArray  # [H, F]
    b1: FloatArray  # [H]
    w2: FloatArray  # [H, H] for the type's own hidden units
    v2: FloatArray  # [H, H] for their means over types
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
        ValueError: an array is not finite, or has the wrong shape.
    """
    network = Network(**{name: np.array(part, np.float64) for name, part in weights.items()})
    hidden, types, overall = len(network.w3), len(TYPE_FEATURES), len(OVERALL_FEATURES)
    shapes = ((hidden, types), (hidden,), (hidden, hidden), (hidden, hidden), (hidden, overall), (hidden,), (hidden,))
    for name, part, shape in zip(Network._fields, network, shapes, strict=True):
        if part.shape != shape or not np.isfinite(part).all():
            raise ValueError(f"{name} must be finite and of shape {shape}, got shape {part.shape}")
    return network


@final
@unchecked
class Deep(Directed):
    """Run the ready type with the highest score of a network; ties go to the lowest type id.

    Args:
        network: the weights; by default those that `experiments/learning/deep.py` learned on generated families.
        direction: "forward", "backward" or "both", see `Directed`.
        compact: whether to delete superfluous batches, see `Directed`.
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
        return {"weights": {name: part.tolist() for name, part in self.network._asdict().items()}}

    @classmethod
    def rebuild(cls, content: Mapping[str, Any], direction: Direction, compact: bool) -> Deep:
        return cls(to_network(content["weights"]), direction, compact)

    def plan(self, dag: Dag) -> Batches:
        """Simulate batch by batch. Cost: O(T * (N + E + K * H * (H + F))) for K batches."""
        return plan_by_network(dag, self.network)
