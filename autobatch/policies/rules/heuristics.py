"""Policies that need no learning: the baselines for every other policy."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, final

import numpy as np

from autobatch.graph.dag import to_dag
from autobatch.graph.graph import Graph
from autobatch.policies.rules.directed import Ruled
from autobatch.schedule.schedule import BasePolicy, Schedule
from autobatch.system.unchecked import unchecked


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
        compact: delete superfluous batches.

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
        compact: delete superfluous batches.

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
