"""The plans of mini-batches that were seen before, which then skip merge, rewrite, schedule and place.

A mini-batch is known by what its graphs hold, in order, and not by which objects they are: their digests, which include
the attributes (word ids, labels). A plan holds these by row, merging checks their ranges, and the pass "share" goes by
them. What is not in a plan comes with the instances each time: their random keys, and the structure of their results.

Kept are plans of recorded graphs: to record an instance again takes several times as long as to plan it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np

from autobatch.errors import PlanError
from autobatch.graph.graph import Graph
from autobatch.plan.budget import Part
from autobatch.schedule.schedule import Schedule

DEFAULT_SIZE = 32  # plans


class Planned(NamedTuple):
    """What planning made of a mini-batch.

    Attributes:
        graph: merged, before the rewrites.
        parts: what runs, one after the other.
        whole_bytes: what the values of the whole would take.
        scheduled: what the policy was given, and what it gave; more than there are parts if the whole was cut.
    """

    graph: Graph
    parts: tuple[Part, ...]
    whole_bytes: int
    scheduled: tuple[tuple[Graph, Schedule], ...]


class PlanCache:
    """The plans used last.

    Args:
        size: how many; 0 for none.

    Attributes:
        lookups, hits: how often a plan was looked for, and found.

    Raises:
        PlanError: `size` is no number of plans.
    """

    def __init__(self, size: int) -> None:
        if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 0:
            raise PlanError(f"plan_cache={size!r} is no number of plans; give an int, such as 32, or 0 for none.")
        self.size = int(size)
        self.lookups = self.hits = 0
        self._plans: OrderedDict[Hashable, Planned] = OrderedDict()
        self._makers: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self._plans)

    @property
    def hit_rate(self) -> float:
        """The share of lookups that found a plan; 0 before the first."""
        return self.hits / self.lookups if self.lookups else 0.0

    def find(self, key: Hashable, *makers: Any) -> Planned | None:
        """Give the plan of a mini-batch, if it is here.

        Args:
            key: all that a plan depends on beside who makes it.
            makers: the policy, the planner and the backend; what others than these very objects have made is forgotten.
        """
        if any(new is not old for new, old in zip(makers, self._makers or (None,) * len(makers), strict=True)):
            self._plans.clear()
            self._makers = makers
        self.lookups += 1
        found = self._plans.get(key)
        if found is not None:
            self.hits += 1
            self._plans.move_to_end(key)
        return found

    def keep(self, key: Hashable, planned: Planned) -> None:
        """Keep a plan; the one not used for longest goes if there are too many."""
        self._plans[key] = planned
        if len(self._plans) > self.size:
            self._plans.popitem(last=False)
