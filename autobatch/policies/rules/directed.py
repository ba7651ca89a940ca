"""Plan from the inputs, from the outputs, or both; then compact the schedule.

A sequence of types finishes a dag exactly when the types along every path are a subsequence of it. So a plan of the
reversed dag, read from its end, is a plan of the dag; and superfluous batches of any sequence can be deleted.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from autobatch._native import plan_by_rule
from autobatch.arrays import IntArray
from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, cost_of, reverse, to_dag
from autobatch.graph.graph import Graph
from autobatch.graph.graph_check import naming_cycles
from autobatch.keywords import checked
from autobatch.policies.files import save_policy
from autobatch.policies.sequences import compact as compact_sequence
from autobatch.policies.sequences import embed_early, to_schedule_at
from autobatch.schedule.schedule import BasePolicy, CoreRule, Schedule

Direction: TypeAlias = Literal["forward", "backward", "both"]
Batches: TypeAlias = tuple[IntArray, IntArray, IntArray]  # batch_type[K], batch_ptr[K+1], order[N]

WAYS_OF: dict[Direction, int] = {"forward": 1, "backward": 2, "both": 3}  # as in `native/policies/directed.h`


class Directed(BasePolicy):
    """A policy that can plan in either direction; subclasses implement `plan`.

    Args:
        direction: "forward" plans from the inputs, "backward" from the outputs; "both" does both and keeps the cheaper
            plan (by default, the one with fewer batches), or the forward one if both cost the same.
        compact: whether to delete superfluous batches, before the two directions are compared.

    Attributes:
        about: a description of how the policy was learned, as JSON values.

    Raises:
        PolicyError: `direction` is unknown.
    """

    rule: ClassVar[str]

    @checked(direction=PolicyError)
    def __init__(self, direction: Direction = "forward", compact: bool = False) -> None:
        self.direction, self.compact = direction, compact
        self.about: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """Return the rule and its options, in the form that `autobatch.policies.get` reads."""
        direction = "" if self.direction == "forward" else f"+{self.direction}"
        return self.rule + direction + ("+compact" if self.compact else "")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the learned policy to a JSON file, which `autobatch.policies.load` reads.

        Raises:
            PolicyError: nothing was learned, or the file cannot be written; an existing file at `path` then stays
                unchanged.
        """
        save_policy(self, path)

    def describe(self) -> dict[str, Any] | None:
        """Return the learned content as JSON values; None if nothing was learned."""
        return None

    @abstractmethod
    def plan(self, dag: Dag) -> Batches:
        """Schedule a dag from its inputs; return the `batch_type`, `batch_ptr` and `order` of a `Schedule`."""

    def plan_backward(self, dag: Dag) -> Batches:
        """Schedule a dag from its outputs; return the same arrays as `plan`."""
        return mirror(self.plan(reverse(dag)))

    def plans(self, dag: Dag) -> Iterator[Batches]:
        """Yield the plan of each requested direction."""
        if self.direction != "backward":
            yield self.plan(dag)
        if self.direction != "forward":
            yield self.plan_backward(dag)

    def schedule(self, graph: Graph) -> Schedule:
        """Schedule a graph; see `plan_best`.

        Raises:
            GraphError: the graph has a cycle.
        """
        with naming_cycles(graph):
            return self.plan_best(to_dag(graph))

    def plan_best(self, dag: Dag) -> Schedule:
        """Plan in the requested directions, compact if requested, and keep the cheapest schedule."""
        plans = [Schedule(*plan) for plan in self.plans(dag)]
        if not self.compact:
            return min(plans, key=lambda plan: cost_of(dag, plan.batch_type))
        compacted = [compact_sequence(dag, plan.batch_type) for plan in plans]
        plan, shortest = min(zip(plans, compacted, strict=True), key=lambda pair: cost_of(dag, pair[1]))
        if shortest.size == plan.n_batches:
            return plan
        return to_schedule_at(dag, shortest, embed_early(dag, shortest))


class Ruled(Directed):
    """A policy that follows a rule of the native core.

    Attributes:
        number: the number of the rule in `native/policies/rules.h`.
    """

    number: ClassVar[int]

    @property
    def core_rule(self) -> CoreRule:
        return self._use(self.direction, self.compact)

    def plan(self, dag: Dag) -> Batches:
        return plan_by_rule(dag, self._use("forward", compact=False))

    def plan_backward(self, dag: Dag) -> Batches:
        return plan_by_rule(dag, self._use("backward", compact=False))

    def plan_best(self, dag: Dag) -> Schedule:
        return Schedule(*plan_by_rule(dag, self.core_rule))

    def _weights(self) -> tuple[float, float, float, float]:
        """Return the weights of the rule; zeros if it has none."""
        return 0.0, 0.0, 0.0, 0.0

    def _use(self, direction: Direction, compact: bool) -> CoreRule:
        return CoreRule(self.number, WAYS_OF[direction], compact, self._weights())


def mirror(batches: Batches) -> Batches:
    """Turn a plan of the reversed dag into a plan of the dag, by reading it from its end. Cost: O(N)."""
    batch_type, batch_ptr, order = batches
    # Node n of the reversed dag is node N - 1 - n of the dag.
    last = np.int32(order.size)
    return batch_type[::-1].copy(), last - batch_ptr[::-1], last - np.int32(1) - order[::-1]
