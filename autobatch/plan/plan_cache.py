"""Cache the plans of mini-batches: a known one skips merging, rewriting, scheduling and placement.

The key of a mini-batch is the content of its graphs, in order: their digests, which include the attributes (word ids,
labels). Attributes count because a plan holds them by row, merging checks their ranges, and the
pass "share" compares them. The random keys of instances and the structures of their results are not part of a plan;
they come from the instances each time.

The cache serves recorded graphs only: recording an instance again takes several times as long as planning it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from autobatch.arguments import show
from autobatch.errors import PlanError
from autobatch.graph.graph import Graph
from autobatch.plan.budget import Part
from autobatch.schedule.schedule import BasePolicy

DEFAULT_SIZE = 32  # plans


class Planned(NamedTuple):
    """The result of planning a mini-batch.

    Attributes:
        graph: merged, before the rewrites.
        parts: the parts, which run one after the other.
        whole_bytes: bytes that the values of the whole mini-batch would take.
    """

    graph: Graph
    parts: tuple[Part, ...]
    whole_bytes: int


class PlanCache:
    """The most recently used plans.

    Args:
        size: the most plans to keep; 0 for none.

    Attributes:
        lookups, hits: numbers of lookups, and of those that found a plan.
        hit_rate: the share of lookups that found one; 0 before the first.

    Raises:
        PlanError: `size` is not an int of at least 0.
    """

    def __init__(self, size: int) -> None:
        if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 0:
            raise PlanError(f"plan_cache must be an int of at least 0, got {show(size)}; 0 keeps no plans.")
        self.size = int(size)
        self.lookups = self.hits = 0
        self.hit_rate = 0.0
        self._plans: OrderedDict[Hashable, Planned] = OrderedDict()
        self._policy: BasePolicy | None = None

    def __len__(self) -> int:
        return len(self._plans)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._plans

    def clear(self) -> None:
        self._plans.clear()

    def find(self, key: Hashable, policy: BasePolicy) -> Planned | None:
        """Return the plan of a mini-batch, or None if it is not cached.

        Args:
            key: everything that a plan depends on except the policy.
            policy: the policy; if the user has given another one since, all plans are dropped.
        """
        if policy is not self._policy:
            # The user's policy may be the same one in a new wrapper, and then makes the same schedules.
            if self._policy is None or policy.given is not self._policy.given:
                self._plans.clear()
            self._policy = policy
        self.lookups += 1
        found = self._plans.get(key)
        if found is not None:
            self.hits += 1
            self._plans.move_to_end(key)
        self.hit_rate = self.hits / self.lookups
        return found

    def keep(self, key: Hashable, planned: Planned) -> None:
        """Keep a plan; if there are too many, drop the least recently used."""
        self._plans[key] = planned
        if len(self._plans) > self.size:
            self._plans.popitem(last=False)
