"""Use a second policy, with a warning, when the first rejects a graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from typing import final

from autobatch.errors import PolicyError
from autobatch.graph.graph import Graph
from autobatch.schedule.make import make_schedule
from autobatch.schedule.schedule import BasePolicy, Policy, Schedule, adapt
from autobatch.system.unchecked import unchecked


@final
@unchecked
class Otherwise(BasePolicy):
    """Plan with the first policy until it rejects a graph, and with the second from then on.

    Args:
        make_first: makes or loads the first policy.
        second: the policy to use once making the first, or planning with it, has raised a `PolicyError`.
    """

    def __init__(self, make_first: Callable[[], Policy], second: Policy) -> None:
        self._second = self._used = adapt(second)
        try:
            self._used = adapt(make_first())
        except PolicyError as error:
            self._give_up(error)

    @property
    def name(self) -> str:
        return self._used.name

    @property
    def revision(self) -> Hashable:
        """Return a value that changes when the first policy is given up, and with the revision of the policy in use."""
        return self._used is self._second, self._used.revision

    @property
    def unseen_share(self) -> float | None:
        return self._used.unseen_share

    def schedule(self, graph: Graph) -> Schedule:
        if self._used is not self._second:
            try:
                return make_schedule(graph, self._used)
            except PolicyError as error:
                self._give_up(error)
        return make_schedule(graph, self._second)

    def _give_up(self, error: PolicyError) -> None:
        self._used = self._second
        warnings.warn(f"{error} Using {self.name} instead.", stacklevel=2)
