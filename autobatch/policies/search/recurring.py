"""Schedules of mini-batches that recur, found once: a sequence of types for each, known by what it is of.

A sequence says which type runs at each step, on all nodes that are ready. It belongs to a graph by a digest of types
and edges, without the numbers of the process and without data: the same structures with other words have it too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, final

import numpy as np

from autobatch.arrays import IntArray
from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, to_dag
from autobatch.graph.graph import Graph
from autobatch.keywords import checked
from autobatch.policies.rules.directed import Batches, Directed, Direction
from autobatch.policies.rules.rules import Score
from autobatch.policies.search.search import Search
from autobatch.policies.sequences.embedding import embed_early, to_schedule_at
from autobatch.schedule.schedule import Policy, Schedule
from autobatch.system.trust import trusted


class Structure(NamedTuple):
    """What a sequence is known by.

    Attributes:
        digest: of the types, by their outlines, and the edges of a graph.
        types: [T] the types that it has, in the order in which nodes first have them; sequences number them so.
    """

    digest: str
    types: IntArray


@final
@trusted
class Recurring(Directed):
    """Run mini-batches that recur by schedules found beforehand, and all others by the rule `Score`.

    `Recurring.of` makes one. Saved, or in the file of a model, it spares the next process the search. A mini-batch has
    a schedule if one of the same structures was given, in the same order; its data may differ.

    Args:
        sequences: of types, by digest.
        direction, compact: of the rule, see `Score`.

    >>> import autobatch as ab
    >>> @ab.cell
    ... def step(h, x):
    ...     return h + x
    >>> def chain(xs):
    ...     h = 0.0
    ...     for x in xs:
    ...         h = step(h, x)
    ...     return h
    >>> run = ab.batched(chain, backend="reference")
    >>> run.policy = ab.policies.Recurring.of([run.merged([[1.0, 2.0], [3.0]])])
    >>> run([[1.0, 2.0], [3.0]]).tolist(), run.policy.unseen_share
    ([3.0, 3.0], 0.0)
    """

    rule: ClassVar[str] = "recurring"

    @checked(direction=PolicyError)
    def __init__(
        self, sequences: Mapping[str, Sequence[int]], direction: Direction = "forward", compact: bool = False
    ) -> None:
        super().__init__(direction, compact)
        self._sequences = {digest: np.array(sequence, np.int32) for digest, sequence in sequences.items()}
        self._rule = Score(direction, compact)
        self._is_unseen = False

    @classmethod
    @checked(direction=PolicyError)
    def of(
        cls,
        graphs: Iterable[Graph],
        policy: Policy | None = None,
        direction: Direction = "forward",
        compact: bool = False,
    ) -> Recurring:
        """Schedule mini-batches, and keep the sequences.

        Args:
            graphs: of the mini-batches, as `Batched.merged` gives them.
            policy: what schedules them; None for `Search()`.
            direction, compact: of the rule for all others.
        """
        found, search = dict[str, list[int]](), Search() if policy is None else policy
        for graph in graphs:
            digest, types = structure_of(graph)
            number = np.zeros(graph.n_types, np.int32)
            number[types] = np.arange(types.size)
            found[digest] = number[search.schedule(graph).batch_type].tolist()
        return cls(found, direction, compact)

    @property
    def unseen_share(self) -> float:
        """1 if the rule made the last schedule, else 0."""
        return float(self._is_unseen)

    def describe(self) -> dict[str, Any]:
        """The sequences, by digest."""
        return {"sequences": {digest: sequence.tolist() for digest, sequence in self._sequences.items()}}

    @classmethod
    def rebuild(cls, content: Mapping[str, Any], direction: Direction, compact: bool) -> Recurring:
        """Make the policy of a file's content."""
        if not all(type(x) is int and x >= 0 for sequence in content["sequences"].values() for x in sequence):
            raise PolicyError("a sequence has what is no number of a type")
        return cls(content["sequences"], direction, compact)

    def plan(self, dag: Dag) -> Batches:
        """Plan by the rule."""
        return self._rule.plan(dag)

    def schedule(self, graph: Graph) -> Schedule:
        """Give the schedule of a graph that is known, and plan others by the rule.

        Raises:
            ScheduleError: the sequence of a known graph does not finish it, because a file was changed.
            GraphError: the graph has a cycle.
        """
        digest, types = structure_of(graph)
        known = self._sequences.get(digest)
        self._is_unseen = known is None
        if known is None:
            return super().schedule(graph)
        dag = to_dag(graph)
        sequence = np.append(types, np.int32(-1))[np.minimum(known, types.size)]
        return to_schedule_at(dag, sequence, embed_early(dag, sequence))


def structure_of(graph: Graph) -> Structure:
    """Digest the types and edges of a graph, in the order of its nodes."""
    dag, outlines = to_dag(graph), graph.types.outlines
    present, first, number = np.unique(dag.type_id, return_index=True, return_inverse=True)
    by_place = np.argsort(first)
    rank = np.zeros(present.size, np.int32)
    rank[by_place] = np.arange(present.size)
    types = present[by_place].astype(np.int32)
    digest = hashlib.sha256(json.dumps([outlines[int(t)] for t in types]).encode())
    for part in (rank[number], dag.edge_ptr, dag.edge_src):
        digest.update(part.astype("<i4").tobytes())
    return Structure(digest.hexdigest(), types)
