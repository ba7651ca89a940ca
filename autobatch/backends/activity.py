"""Find the rows that a loss depends on: the others get no gradient, even where theirs would not be finite."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from numpy.typing import NDArray

from autobatch.graph.marks import Marks
from autobatch.plan.plan import Plan, PlannedTypes

Array = NDArray[Any]


class Activity:
    """The nodes of a plan that a loss depends on.

    Attributes:
        is_whole: whether it depends on all of them.
    """

    def __init__(self) -> None:
        self._marks, self.is_whole = Marks(), True

    def mark(self, plan: Plan, cells: PlannedTypes, slots: Collection[int]) -> None:
        """Mark all nodes that a value in these slots depends on. Cost: that of `Marks.mark`."""
        self._plan = plan
        self._marks.mark(plan.graph, cells.flows, len(plan.slot_rows), slots)
        self.is_whole = self._marks.is_whole

    def rows(self, kind: int, start: int, end: int) -> Array:
        """Whether the loss depends on each of these rows of a type: bool[end - start]."""
        first = int(self._plan.type_ptr[kind])
        found: Array = self._marks.nodes[self._plan.node_at[first + start : first + end]]
        return found
