"""Policies that need no learning, the baselines for every other policy; and rules that choose the type to run next.

Rules choose from the ready nodes and the chains ahead of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, final

import numpy as np

from autobatch.errors import PolicyError
from autobatch.graph.dag import to_dag
from autobatch.graph.graph import Graph
from autobatch.keywords import checked
from autobatch.policies.rules.directed import Direction, Ruled
from autobatch.schedule.schedule import BasePolicy, Schedule
from autobatch.system.unchecked import unchecked


@final
@unchecked
class Sufficient(Ruled):
    """Run the type with the largest ratio |F_a| / |frontier(G_a)|; ties go to the lowest type id.

    F_a are the ready nodes of type a; G_a is the dag restricted to type a (`native/schedule/restricted.h`). At ratio 1
    waiting gains nothing, so the choice is optimal.

    Args:
        direction: "forward", "backward" or "both", see `Directed`.
        compact: whether to delete superfluous batches.

    Cost: O(T * (N + E + K)) for K batches.
    Source: ED-Batch (arXiv:2302.03851), the sufficient condition for an optimal choice.
    """

    rule: ClassVar[str] = "sufficient"
    number: ClassVar[int] = 2


@final
@unchecked
class Critical(Ruled):
    """Run a critical type, which lowers the chain bound of the remaining nodes (`native/schedule/chains.h`).

    If there are several or none, the ratio of `Sufficient` decides.

    Args:
        direction: "forward", "backward" or "both", see `Directed`.
        compact: whether to delete superfluous batches.
    """

    rule: ClassVar[str] = "critical"
    number: ClassVar[int] = 3


class Weights(NamedTuple):
    """The weights of the terms of `Score`."""

    critical: float
    ready: float
    own: float
    height: float

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Weights:
        """Read the weights from the content of a file; raise ValueError unless all are finite."""
        weights = cls(**{name: float(weight) for name, weight in content.items()})
        if not all(map(math.isfinite, weights)):
            raise ValueError(f"weights must be finite, got {weights}")
        return weights


LEARNED = Weights(critical=0.55, ready=1.0, own=0.12, height=0.66)
"""Weights learned by `autobatch policy learn families --algorithm es`, see `experiments/learning/evolution.py`."""


@final
@unchecked
class Score(Ruled):
    """Run the ready type with the highest score; ties go to the lowest type id.

    The score of type a is the weighted sum of
      - critical: whether a is critical,
      - ready: the share of a's unrun nodes that are ready,
      - own: of the ready nodes that have the longest type-a chain ahead, the share that are of type a,
      - height: the mean over a's ready nodes of the chains ahead, summed over types, relative to the largest such
        mean among the ready types.

    The default weights were learned by an evolution strategy on random dags, grammars, chains and plain trees; no
    lattice and no tree with two kinds of nodes was among them.

    Args:
        direction: "forward", "backward" or "both", see `Directed`.
        compact: whether to delete superfluous batches, see `Directed`.
        weights: the weights of the terms; by default the learned ones.
    """

    rule: ClassVar[str] = "score"
    number: ClassVar[int] = 4

    @checked(direction=PolicyError)
    def __init__(self, direction: Direction = "forward", compact: bool = False, weights: Weights = LEARNED) -> None:
        super().__init__(direction, compact)
        self.weights = weights

    def _weights(self) -> Weights:
        return self.weights

    def _repr_html_(self) -> str:
        from autobatch.display.html import write_table

        return super()._repr_html_() + write_table(self.weights._fields, [[f"{weight:g}" for weight in self.weights]])

    def describe(self) -> dict[str, Any]:
        return {"weights": self.weights._asdict()}

    @classmethod
    def rebuild(cls, content: Mapping[str, Any], direction: Direction, compact: bool) -> Score:
        return cls(direction, compact, Weights.read(content["weights"]))


@final
@unchecked
class Unbatched(BasePolicy):
    """Run every node as its own batch, in the order of recording."""

    name = "unbatched"

    def schedule(self, graph: Graph) -> Schedule:
        """Return N batches of one node. Cost: O(N)."""
        type_id = to_dag(graph).type_id
        nodes = np.arange(type_id.size + 1, dtype=np.int32)
        return Schedule(type_id.copy(), nodes, nodes[:-1])


@final
@unchecked
class Depth(Ruled):
    """Run one batch per depth and type, in order of depth, then type id.

    The depth of a node is the number of edges on the longest path to it. Nodes of one depth do not depend on each
    other, so the schedule is valid; a type that occurs at many depths needs that many batches.

    Args:
        direction: "forward", "backward" or "both", see `Directed`.
        compact: whether to delete superfluous batches.

    Cost: O(N + E + T).
    Source: TensorFlow Fold (Looks et al. 2017, arXiv:1702.02181).
    """

    rule: ClassVar[str] = "depth"
    number: ClassVar[int] = 0


@final
@unchecked
class Agenda(Ruled):
    """Run the ready type whose remaining nodes have the least mean depth; ties go to the lowest type id.

    Remaining nodes are those that have not run, ready or not: a type with much work far from the inputs waits, so that
    its batches grow. Means are compared exactly, as fractions.

    Args:
        direction: "forward", "backward" or "both", see `Directed`.
        compact: whether to delete superfluous batches.

    Cost: O(N + E + K * T) for K batches.
    Source: DyNet's agenda (Neubig, Goldberg, Dyer 2017, arXiv:1705.07860).
    """

    rule: ClassVar[str] = "agenda"
    number: ClassVar[int] = 1


ORIGINS: Mapping[str, str] = MappingProxyType({Depth.rule: "TensorFlow Fold", Agenda.rule: "DyNet"})
"""The libraries that rules come from."""


def with_origin(name: str) -> str:
    """Add the library that a policy's rule comes from to its name; every listing of policies does so.

    >>> with_origin("agenda+both"), with_origin("score")
    ('agenda+both (DyNet)', 'score')
    """
    origin = ORIGINS.get(name.partition("+")[0])
    return f"{name} ({origin})" if origin else name
