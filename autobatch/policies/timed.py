"""Minimise predicted time instead of the number of batches: plan in several ways and keep the fastest.

A policy minimises the number of batches. Where rows cost time too, or small batches are inefficient, a schedule with
more batches can be faster, and nodes that may wait save more in small batches than in large ones. So the policy's
schedule (of each direction, if it plans in both) competes with schedules of its sequence, compacted or not, with rows
assigned early, late or levelled.
Source: DESIGN, section 5.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from copy import copy
from typing import final, get_args

import numpy as np

from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, to_dag
from autobatch.graph.graph import Graph, Types
from autobatch.graph.graph_check import check_order
from autobatch.jit.arrays import IntArray
from autobatch.policies.cost import CostModel, MeasuredCosts, find_costs
from autobatch.policies.fsm.machine import WAYS
from autobatch.policies.rules.directed import Directed
from autobatch.policies.search.local_search import local_search
from autobatch.policies.sequences.compaction import compact
from autobatch.policies.sequences.embedding import to_schedule_at
from autobatch.policies.sequences.levelling import Assign, assign_rows
from autobatch.schedule.make import make_schedule
from autobatch.schedule.schedule import Policy, Schedule, revision_of
from autobatch.system.trust import trusted


@final
@trusted
class Timed:
    """Gives the schedule of least predicted time among variations of a policy's schedule.

    Args:
        policy: makes the schedules to begin with.
        costs: costs of the types of the graphs, or measured costs; None: those that `autobatch doctor --calibrate`
            measured for the model on this machine and `backend`.
        search_steps: steps of local search for faster sequences, from the best one found; 0 for none.
        seed: of the random steps.
        backend: the name of the one that will run the schedules.

    Raises:
        PolicyError: `search_steps` is negative.

    Cost: for each direction a plan, a compaction, and twice `assign_rows` in three ways (in one way if a row costs the
        same in any batch); a compaction per search step.

    Example: a batch of one row costs as much as one of two, and one of three nodes that can run first may wait for a
    fourth.

    >>> from autobatch import policies
    >>> from autobatch.graph import NamedTypes, make_graph
    >>> graph = make_graph(NamedTypes(("a", "b")), [0, 0, 0, 1, 0], [(0, 3), (3, 4)])
    >>> costs = CostModel([5.0, 5.0], [1.0, 1.0], [2.0, 0.0])
    >>> rule = policies.get("score")
    >>> timed = Timed(rule, costs)
    >>> timed.name, costs.schedule_us(rule.schedule(graph)), costs.schedule_us(timed.schedule(graph))
    ('timed(score)', 21.0, 20.0)
    """

    rule = "timed"

    def __init__(
        self,
        policy: Policy,
        costs: CostModel | MeasuredCosts | None = None,
        search_steps: int = 0,
        seed: int = 0,
        backend: str = "reference",
    ) -> None:
        if search_steps < 0:
            raise PolicyError(f"making policy 'timed': {search_steps} steps are less than none.")
        self.policy, self.search_steps, self.seed = policy, search_steps, seed
        self._costs, self._backend = costs, backend

    @property
    def name(self) -> str:
        """`timed(...)` with the policy's name."""
        return f"{self.rule}({self.policy.name})"

    @property
    def revision(self) -> Hashable:
        """The revision of the policy."""
        return revision_of(self.policy)

    @property
    def unseen_share(self) -> float | None:
        """That of the policy; None if it does not learn."""
        return getattr(self.policy, "unseen_share", None)

    def schedule(self, graph: Graph) -> Schedule:
        """Plan, and keep the schedule of least predicted time; among equals, the one with fewer batches.

        Raises:
            PolicyError: no costs were given, and none were measured for the model on the backend; or the policy refuses
                the graph.
            GraphError: the graph has a cycle.
        """
        check_order(graph)
        costs, dag = self._costs_of(graph.types), to_dag(graph)
        best = min(self._candidates(graph, dag, costs), key=lambda s: (costs.schedule_us(s), len(s)))
        if not self.search_steps:
            return best
        rng = np.random.default_rng(self.seed)
        sequence = local_search(dag, best.batch_type, rng, self.search_steps, costs)
        found = [best, *(_assign(dag, sequence, assign, costs) for assign in get_args(Assign))]
        return min(found, key=lambda s: (costs.schedule_us(s), len(s)))

    def _candidates(self, graph: Graph, dag: Dag, costs: CostModel) -> Iterator[Schedule]:
        """Give the policy's schedules, and those of their sequences, compacted or not, with rows reassigned."""
        schedules = [make_schedule(graph, policy) for policy in _ways(self.policy)]
        sequences: dict[bytes, IntArray] = {}
        yield from schedules
        for schedule in schedules:
            for sequence in (schedule.batch_type, compact(dag, schedule.batch_type)):
                sequences[sequence.tobytes()] = sequence
        linear = costs.efficient_rows.max(initial=0.0) <= 1
        for sequence in sequences.values():
            for assign in ("early",) if linear else get_args(Assign):  # where a row costs the same in any batch
                yield _assign(dag, sequence, assign, costs)

    def _costs_of(self, types: Types) -> CostModel:
        if self._costs is None:
            self._costs = find_costs(types.outlines, self._backend)
        return self._costs.of(types.outlines) if isinstance(self._costs, MeasuredCosts) else self._costs


def _ways(policy: Policy) -> Iterator[Policy]:
    """Split a policy that plans in both directions into one per direction; give any other as it is."""
    if not isinstance(policy, Directed) or policy.direction != "both":
        yield policy
        return
    for direction in WAYS:
        way = copy(policy)
        way.direction, way.compact = direction, False
        yield way


def _assign(dag: Dag, sequence: IntArray, assign: Assign, costs: CostModel) -> Schedule:
    return to_schedule_at(dag, sequence, assign_rows(dag, sequence, assign, costs))
