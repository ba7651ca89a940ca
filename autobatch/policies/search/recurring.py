"""Reuse schedules of recurring mini-batches: a sequence of types for each, found once and looked up by a digest.

A sequence names the type to run at each step, on all nodes that are ready. The digest covers the types and edges of a
graph, but not its data or the type ids of the process: the same structures with other words have the same digest.
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
from autobatch.policies.sequences import embed_early, to_schedule_at
from autobatch.schedule.schedule import Policy, Schedule
from autobatch.system.unchecked import unchecked


class Structure(NamedTuple):
    """The digest of a graph, and its types.

    Attributes:
        digest: the digest of the types, by their outlines, and of the edges.
        types: [T] the types that occur, in the order of their first nodes; sequences number them in this order.
    """

    digest: str
    types: IntArray


@final
@unchecked
class Recurring(Directed):
    """Run recurring mini-batches by schedules found beforehand, and all others by the rule `Score`.

    `Recurring.of` makes one. Saved to a file of its own or with a model, it spares the next process the search. A
    mini-batch recurs if one of the same structures, in the same order, was given; its data may differ.

    Args:
        sequences: sequences of types, by digest.
        direction, compact: options of the rule, see `Score`.

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
            graphs: the graphs of the mini-batches, from `Batched.merged`.
            policy: the policy that schedules them; None for `Search()`.
            direction, compact: options of the rule for all other mini-batches.
        """
        found, search = dict[str, list[int]](), Search() if policy is None else policy
        for graph in graphs:
            digest, types = structure_of(graph)
            number = np.zeros(graph.n_types, np.int32)
            number[types] = np.arange(types.size)  # from type ids to places in `types`
            found[digest] = number[search.schedule(graph).batch_type].tolist()
        return cls(found, direction, compact)

    @property
    def unseen_share(self) -> float:
        """Return 1 if the rule made the last schedule, else 0."""
        return float(self._is_unseen)

    def describe(self) -> dict[str, Any]:
        return {"sequences": {digest: sequence.tolist() for digest, sequence in self._sequences.items()}}

    @classmethod
    def rebuild(cls, content: Mapping[str, Any], direction: Direction, compact: bool) -> Recurring:
        if not all(type(x) is int and x >= 0 for sequence in content["sequences"].values() for x in sequence):
            raise PolicyError("sequences must be lists of type numbers, ints of at least 0")
        return cls(content["sequences"], direction, compact)

    def plan(self, dag: Dag) -> Batches:
        return self._rule.plan(dag)

    def schedule(self, graph: Graph) -> Schedule:
        """Return the known schedule of a graph, or plan it by the rule.

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
        # A number beyond the types of the graph, from a changed file, becomes -1, which runs nothing. If the sequence
        # then does not finish the graph, `to_schedule_at` says so.
        sequence = np.append(types, np.int32(-1))[np.minimum(known, types.size)]
        return to_schedule_at(dag, sequence, embed_early(dag, sequence))


def structure_of(graph: Graph) -> Structure:
    """Digest the types and edges of a graph, in the order of its nodes."""
    dag, outlines = to_dag(graph), graph.types.outlines
    # Types are renumbered in the order of their first nodes, so that ids of the process do not count.
    present, first, number = np.unique(dag.type_id, return_index=True, return_inverse=True)
    by_place = np.argsort(first)
    rank = np.zeros(present.size, np.int32)
    rank[by_place] = np.arange(present.size)
    types = present[by_place].astype(np.int32)
    digest = hashlib.sha256(json.dumps([outlines[int(t)] for t in types]).encode())
    for part in (rank[number], dag.edge_ptr, dag.edge_src):
        digest.update(part.astype("<i4").tobytes())
    return Structure(digest.hexdigest(), types)
