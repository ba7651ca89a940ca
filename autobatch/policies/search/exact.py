"""Find a cheap sequence of types that finishes a graph: the cheapest with a proof, or a good one by a beam search.

All searches go breadth first: all sequences grow by one step at a time. A state is the remaining work, an antichain of
suffixes (`autobatch.policies.search.reduction`); a layer holds the states that sequences of one length lead to. A state
is dropped if another state of its layer costs no more and leaves only suffixes within those of the first. This rule
matters most: few states of a layer survive it. A state is also dropped if its cost plus the chain bound of its
remaining work exceeds a limit. If a layer has more than `width` states, only those with the least such sum are kept,
and among equals those with the fewest suffixes. As long as this drops no state, no sequence up to the limit is missed:
the search is a breadth-first heuristic search (Zhou and Hansen 2006, Artificial Intelligence 170). Otherwise it is a
beam search.

The exact search begins with a narrow beam on the reduced graph and its reverse, which gives a sequence. Then the one
with fewer states is searched for a cheaper sequence, up to a cost limit that starts at the chain bound and rises
whenever a complete search finds none. Each limit that was searched completely is a lower bound.

A beam search finds a good sequence in milliseconds. Among the states that sequences of one length lead to, the `width`
most promising are extended: those with the least chain bound. Other states look promising when the search goes
backward, from outputs to inputs, so both directions are searched, and the better result is compacted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autobatch._native import search_layers as search_in_layers
from autobatch.arrays import FloatArray, IntArray
from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, reverse, type_costs
from autobatch.policies.search.reduction import Suffixes, find_suffixes, reduce_graph
from autobatch.policies.sequences import compact

TOLERANCE = 1e-9
"""Costs with a smaller relative difference count as equal, because a sum of floats depends on its order."""


class Outcome(NamedTuple):
    """The result of a search, and what remains open."""

    sequence: IntArray  # int32[K], the cheapest that was found
    cost: float  # its cost; inf if none was found
    unseen: float  # a lower bound on the cost of all sequences not examined
    n_states: int  # states created
    gave_up: bool  # whether there were too many states; `unseen` is then meaningless


def search_layers(suffixes: Suffixes, cost: FloatArray, limit: float, width: int, max_states: int) -> Outcome:
    """Search for the cheapest sequence that finishes the graph of the suffixes.

    Args:
        suffixes: S suffixes of T types, compared.
        cost: float64[T], the positive cost of a batch of each type.
        limit: sequences that cost more are not examined.
        width: the most states of a layer that are kept.
        max_states: give up when more states than this are created.

    Returns:
        The cheapest sequence up to the limit; if `unseen` is less than its cost, a cheaper one may exist.

    Cost: per state O(T) steps and bounds, W = S/64 words for each suffix left, and a walk over the states kept.
    """
    return Outcome(*search_in_layers(suffixes, cost, limit, width, max_states))


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

    Cost: 2 to 10 µs per state, rising with the number of states in a layer; the number of states can grow
    exponentially. 256 two-type trees take 1,500 to 12,000 states, 32 lattices with variadic sums 120,000.
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
    """Search the suffixes of a reduced graph and of its reverse, until the result is proven or the budget is used up.

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
    # At least the cheapest batch, so that limits do not creep; and large enough for about `_N_LIMITS` of them.
    rise = max(float(cost.min()), (best - lower) / _N_LIMITS)
    limit, share = lower, _TRIAL_STATES
    while lower < best - slack and best > enough + slack and n_states < max_states:
        # Only cheaper sequences are of interest.
        limit = min(limit, best - slack)
        outcome, backward, made = _search_either(both, backward, cost, limit, share, max_states - n_states)
        n_states += made
        share = max(share, 8 * outcome.n_states)
        # If the search gave up, its cost is inf and `unseen` is -inf, so that neither `best` nor `lower` changes.
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


WIDTH = 16


def beam_search(dag: Dag, width: int = WIDTH) -> IntArray:
    """Find a cheap sequence of types that finishes a graph.

    Args:
        dag: N nodes, E edges, T types.
        width: the most states extended per layer, at least 1.

    Returns:
        int32[K], compacted and deterministic; the result of the forward search if both cost the same.

    Raises:
        PolicyError: `width` is not positive, or the reduced graph is too large.

    Cost: that of the reduced graph, and about `width` * T states per layer and direction, at about 1 µs each.

    >>> dag = Dag(*(np.array(a, np.int32) for a in ([0, 1, 1, 0], [0, 0, 1, 1, 2], [0, 2])), 2)
    >>> beam_search(dag).tolist()
    [0, 1, 0]
    """
    if width < 1:
        raise PolicyError(f"searching with a beam: width must be at least 1, got {width}.")
    reduced, cost = reduce_graph(dag).dag, type_costs(dag)
    forward = search_layers(find_suffixes(reduced), cost, np.inf, width, ANY_COUNT)
    backward = search_layers(find_suffixes(reverse(reduced)), cost, np.inf, width, ANY_COUNT)
    return compact(reduced, backward.sequence[::-1].copy() if backward.cost < forward.cost else forward.sequence)
