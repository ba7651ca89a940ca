"""Plan with a second policy where the first one refuses a graph: a warning instead of an error."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from typing import final

from autobatch.errors import PolicyError
from autobatch.graph.graph import Graph
from autobatch.schedule.make import make_schedule, repeat_schedule
from autobatch.schedule.schedule import Policy, Schedule, revision_of
from autobatch.system.trust import trusted


@final
@trusted
class Otherwise:
    """Plans with the first policy until it refuses a graph, then with the second one, and warns once.

    Args:
        make_first: makes or loads the policy.
        second: for where that, or planning with it, ends in a `PolicyError`.
    """

    def __init__(self, make_first: Callable[[], Policy], second: Policy) -> None:
        self.second = second
        try:
            self.first: Policy | None = make_first()
        except PolicyError as error:
            self._give_up(error)

    @property
    def name(self) -> str:
        """That of the policy which plans now."""
        return (self.first or self.second).name

    @property
    def revision(self) -> Hashable:
        """Changes when the first policy is given up, and when the one that plans now does."""
        return self.first is None, revision_of(self.first or self.second)

    @property
    def unseen_share(self) -> float | None:
        """As of the policy which plans now; None, if that does not learn."""
        return getattr(self.first or self.second, "unseen_share", None)

    def schedule(self, graph: Graph) -> Schedule:
        """Plan with the first policy, unless it was refused before or is now."""
        if self.first is not None:
            try:
                return make_schedule(graph, self.first)
            except PolicyError as error:
                self._give_up(error)
        return make_schedule(graph, self.second)

    def repeat(self, graph: Graph, schedule: Schedule) -> None:
        """Tell the policy which plans now of a schedule that runs again."""
        repeat_schedule(self.first or self.second, graph, schedule)

    def _give_up(self, error: PolicyError) -> None:
        self.first = None
        warnings.warn(f"{error} Going on with {self.second.name}.", stacklevel=2)
