"""Find the cheapest sequence of types that finishes a graph, with a proof; or a lower bound, if the budget runs out.

The reduced graph and its reverse are searched with a narrow beam (`autobatch.policies.search.layered`), which gives a
sequence. Then the one with fewer states is searched for a cheaper sequence, up to a cost limit that starts at the chain
bound and rises whenever a complete search finds none. Each limit that was searched completely is a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autobatch.arrays import FloatArray, IntArray
from autobatch.graph.dag import Dag, reverse, type_costs
from autobatch.policies.search.layered import TOLERANCE, Outcome, search_layers
from autobatch.policies.search.reduction import find_suffixes, reduce_graph
from autobatch.policies.search.suffix import Suffixes

MAX_STATES = 200_000
"""The states that a search creates in about one second, on graphs of a suitable size."""

_FIRST_WIDTH = 16
_TRIAL_STATES = 2000
_N_LIMITS = 16
ANY_COUNT = 2**62


@dataclass(frozen=True, eq=False)
class Exact:
    """The result of an exact search within its budget of states.

    Attributes:
        sequence: int32[K], the cheapest sequence found; it finishes the graph.
        cost: the cost of that sequence; its length, if all types cost 1.
        lower_bound: the largest proven lower bound on the cost.
        n_states: number of states created.
    """

    sequence: IntArray
    cost: float
    lower_bound: float
    n_states: int

    @property
    def proven(self) -> bool:
        """Return whether no sequence is cheaper than this one."""
        return self.lower_bound >= self.cost - TOLERANCE * (1 + self.cost)


def find_shortest(dag: Dag, max_states: int = MAX_STATES, *, least: float = 0.0) -> Exact:
    """Search for a cheapest sequence of types that finishes a graph, and for a proof of optimality.

    Args:
        dag: N nodes, E edges, T types.
        max_states: the total number of states that may be created; a beam of 16 always runs.
        least: a known lower bound, from which the search starts.

    Raises:
        PolicyError: the reduced graph is too large to be compared.

    Cost: 2 to 10 µs a state, more the more states a layer has; their number can grow exponentially. 256 two-type trees
    take 1,500 to 12,000 states, 32 lattices with variadic sums 120,000.
    Source: iterative deepening as in Korf 1985, Artificial Intelligence 27, over layers of states.

    >>> dag = Dag(*(np.array(a, np.int32) for a in ([0, 1, 1, 0], [0, 0, 1, 1, 2], [0, 2])), 2)
    >>> exact = find_shortest(dag)
    >>> exact.sequence.tolist(), exact.proven
    ([0, 1, 0], True)
    """
    reduced = reduce_graph(dag).dag
    both = (find_suffixes(reduced), find_suffixes(reverse(reduced)))
    return search_both(both, type_costs(dag), max_states, least=least)


def search_both(
    both: tuple[Suffixes, Suffixes], cost: FloatArray, max_states: int, *, least: float = 0.0, enough: float = 0.0
) -> Exact:
    """Search the suffixes of a reduced graph and of its reverse, until the result is proven or the budget used up.

    Args:
        both: the suffixes of the reduced graph, and of its reverse.
        cost: float64[T].
        max_states: the most states created in total.
        least: a known lower bound.
        enough: stop when a sequence of at most this cost is found, proven or not.
    """
    beams = [search_layers(suffixes, cost, np.inf, _FIRST_WIDTH, ANY_COUNT) for suffixes in both]
    backward = bool(beams[1].cost < beams[0].cost)
    best, sequence = beams[backward].cost, _turn(beams[backward].sequence, backward)
    lower = max(least, *(min(beam.unseen, beam.cost) for beam in beams))
    n_states = sum(beam.n_states for beam in beams)
    slack = TOLERANCE * (1 + best)
    rise = max(float(cost.min()), (best - lower) / _N_LIMITS)
    limit, share = lower, _TRIAL_STATES
    while lower < best - slack and best > enough + slack and n_states < max_states:
        limit = min(limit, best - slack)
        outcome, backward, made = _search_either(both, backward, cost, limit, share, max_states - n_states)
        n_states += made
        share = max(share, 8 * outcome.n_states)
        if outcome.cost < best:
            best, sequence = outcome.cost, _turn(outcome.sequence, backward)
        lower = max(lower, min(outcome.unseen, best))
        limit = max(lower, limit + rise)
    return Exact(sequence, best, lower, n_states)


def _search_either(
    both: tuple[Suffixes, Suffixes], backward: bool, cost: FloatArray, limit: float, share: int, max_states: int
) -> tuple[Outcome, bool, int]:
    """Search in one direction with a share of the budget, then in the other, then with larger shares, until one ends.

    Returns:
        The result, its direction, and the total number of states created.
    """
    n_states = 0
    while True:
        outcome = search_layers(both[backward], cost, limit, ANY_COUNT, min(share, max_states - n_states))
        n_states += outcome.n_states
        if not outcome.gave_up or n_states >= max_states:
            return outcome, backward, n_states
        backward = not backward
        share *= 2


def _turn(sequence: IntArray, backward: bool) -> IntArray:
    return sequence[::-1].copy() if backward else sequence
