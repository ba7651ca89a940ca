"""Search for a cheap schedule, for mini-batches that run many times; one with few batches, if all types cost the same.

A rule comes first: if its sequence costs no more than the chain bound, that is proven optimal, and most graphs need
no more. Otherwise the search works on the reduced graph, a smaller graph that the same sequences of types finish. Rules
in both directions and a beam search find starting sequences. Local search spends half of the steps on these, in equal
shares, and the rest on the best result; it stops at the bound.
"""

from __future__ import annotations

from typing import final

import numpy as np

from autobatch.arrays import IntArray
from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, cost_of, to_dag
from autobatch.graph.graph import Graph
from autobatch.graph.graph_check import check_order
from autobatch.keywords import checked
from autobatch.policies.rules.heuristics import Agenda
from autobatch.policies.rules.rules import Score
from autobatch.policies.search.beam import WIDTH, beam_search
from autobatch.policies.search.bounds import chain_bound
from autobatch.policies.search.layered import TOLERANCE
from autobatch.policies.search.local_search import local_search
from autobatch.policies.search.reduction import reduce_graph
from autobatch.policies.sequences.embedding import embed_early, to_schedule_at
from autobatch.schedule.schedule import BasePolicy, Schedule
from autobatch.system.unchecked import unchecked

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
