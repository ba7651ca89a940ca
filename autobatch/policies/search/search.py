"""Search for a cheap schedule, for mini-batches that run many times; one with few batches, if all types cost the same.

A rule comes first: if its sequence costs no more than the chain bound, it is optimal, and most graphs need no search.
Otherwise the search works on the reduced graph, a smaller graph that the same sequences of types finish. Rules in both
directions and a beam search find starting sequences. Local search spends half of the steps on these, in equal shares,
and the rest on the best result; it stops at the bound.

Local search perturbs a sequence of types, compacts it, and keeps the result unless it costs more.

A step inserts up to eight types within about twenty positions, or moves one entry, or swaps two; the perturbed sequence
is compacted from the left or from the right, at random (`autobatch.policies.sequences`). An inserted type makes others
superfluous, so most improvements are insertions. Results of equal cost are also kept, so that the search can cross
plateaus. The budget counts steps, so the same seed gives the same sequence.
"""

from __future__ import annotations

from typing import final

import numpy as np

from autobatch._native import local_search as search_locally
from autobatch.arrays import IntArray
from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, cost_of, to_dag
from autobatch.graph.graph import Graph
from autobatch.graph.graph_check import check_order
from autobatch.keywords import checked
from autobatch.policies.rules.rules import Agenda, Score
from autobatch.policies.search.bounds import chain_bound
from autobatch.policies.search.exact import TOLERANCE, WIDTH, beam_search
from autobatch.policies.search.reduction import reduce_graph
from autobatch.policies.sequences import compact, embed_early, to_schedule_at
from autobatch.schedule.schedule import BasePolicy, Schedule
from autobatch.system.unchecked import unchecked

MOST_SEED = 2**31 - 1  # as in `native/policies/local_search.h`


def local_search(
    dag: Dag, sequence: IntArray, rng: np.random.Generator, max_steps: int = 5000, enough: float = 0.0
) -> IntArray:
    """Search for a cheaper sequence around one that finishes a graph.

    Args:
        dag: N nodes, T types: the graph or, for faster steps, the reduced one (`reduce_graph`), which the same
            sequences finish.
        sequence: int32[K] type ids; finishes `dag`.
        rng: the source of the seed, one number.
        max_steps: number of perturbed sequences to examine.
        enough: stop when the cost reaches this, such as a lower bound.

    Returns:
        int32[K'] that finishes `dag`, and does not cost more.

    Raises:
        ScheduleError: the sequence does not finish the graph.

    Cost: O(N + E + K) per step, as one pass of compaction.

    >>> from autobatch.graph.dag import to_dag
    >>> from autobatch.graph import NamedTypes, make_graph
    >>> dag = to_dag(make_graph(NamedTypes(("a", "b")), [0, 1, 0, 0, 1], [(0, 1), (1, 2), (3, 4)]))
    >>> local_search(dag, np.array([1, 0, 1, 0, 1, 0], np.int32), np.random.default_rng(0)).tolist()
    [0, 1, 0]
    """
    return search_locally(dag, compact(dag, sequence), int(rng.integers(1, MOST_SEED)), max_steps, enough)


STEPS = 5000


@final
@unchecked
class Search(BasePolicy):
    """Beam search and local search on the reduced graph.

    The budget counts steps instead of seconds, so the same arguments give the same schedule on every machine. A step
    takes 10 to 30 microseconds for about thirty trees or lattices.

    Args:
        steps: number of steps of local search.
        width: width of the beam.
        seed: seed of the random steps.

    Raises:
        PolicyError: `steps` is negative.
    """

    rule = "search"

    @checked()
    def __init__(self, steps: int = STEPS, width: int = WIDTH, seed: int = 0) -> None:
        if steps < 0:
            raise PolicyError(f"making policy 'search': steps must be at least 0, got {steps}.")
        self.steps, self.width, self.seed = steps, width, seed

    @property
    def name(self) -> str:
        """Return `search`, with the number of steps unless it is the default."""
        return self.rule if self.steps == STEPS else f"{self.rule}+{self.steps}"

    def schedule(self, graph: Graph) -> Schedule:
        """Schedule a graph by the sequence that the search finds.

        Raises:
            GraphError: the graph has a cycle.
        """
        dag = to_dag(graph)
        check_order(graph)
        sequence = self.sequence(dag)
        return to_schedule_at(dag, sequence, embed_early(dag, sequence))

    def sequence(self, dag: Dag) -> IntArray:
        """Search for a cheap sequence of types that finishes a dag."""
        enough, rng = chain_bound(dag) * (1 + TOLERANCE), np.random.default_rng(self.seed)
        first, _, _ = Score().plan(dag)
        if cost_of(dag, first) <= enough:
            return first
        reduced = reduce_graph(dag).dag
        starts = [rule("both", compact=True).plan_best(reduced).batch_type for rule in (Score, Agenda)]
        starts.append(beam_search(reduced, self.width))
        share = self.steps // (2 * len(starts))
        found = [local_search(reduced, start, rng, share, enough=enough) for start in starts]
        best = min(found, key=lambda sequence: cost_of(dag, sequence))
        return local_search(reduced, best, rng, self.steps - share * len(starts), enough=enough)
