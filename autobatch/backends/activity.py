"""Find the rows that a loss depends on: the others get no gradient, even where theirs would not be finite."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.graph.marks import Marks
from autobatch.plan.plan import Plan, PlannedTypes


class Activity:
    """The nodes of a plan that a value in some slots depends on. Cost: that of `Marks.mark`.

    Attributes:
        is_whole: whether it depends on all of them.
    """

    def __init__(self, plan: Plan, cells: PlannedTypes, slots: Collection[int]) -> None:
        marks = Marks()
        marks.mark(plan.graph, cells.flows, len(plan.slot_rows), slots)
        self.is_whole, self._type_ptr = marks.is_whole, plan.type_ptr
        self._active = np.zeros(0, bool) if marks.is_whole else marks.nodes[plan.node_at]

    def rows(self, kind: int, start: int, end: int) -> NDArray[Any]:
        """Whether the loss depends on each of these rows of a type: bool[end - start]."""
        if self.is_whole:
            return np.ones(end - start, bool)
        first = int(self._type_ptr[kind])
        return self._active[first + start : first + end]
