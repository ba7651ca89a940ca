"""Rules that choose the type to run next from the ready nodes and the chains ahead of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, final

from autobatch.errors import PolicyError
from autobatch.keywords import checked
from autobatch.policies.rules.directed import Direction, Ruled
from autobatch.system.unchecked import unchecked


@final
@unchecked
class Sufficient(Ruled):
    """Run the type with the largest ratio |F_a| / |frontier(G_a)|; ties go to the lowest type id.

    F_a are the ready nodes of type a; G_a is the dag restricted to type a (`native/schedule/restricted.h`). At ratio 1
    waiting gains nothing, so the choice is optimal.

    Args:
        direction: "forward", "backward" or "both", see `Directed`.
        compact: delete superfluous batches.

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
        compact: delete superfluous batches.
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
        compact: delete superfluous batches, see `Directed`.
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
