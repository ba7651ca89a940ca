"""Search for the cheapest sequence of types, breadth first: all sequences grow by one step at a time.

A state is the remaining work, an antichain of suffixes (`autobatch.policies.search.suffix`); a layer holds the states
that sequences of one length lead to. A state is dropped if another state of its layer costs no more and leaves
only suffixes within those of the first. This rule matters most: few states of a layer survive it. A state is also
dropped if its cost plus the chain bound of its remaining work exceeds a limit. If a layer has more than `width` states,
only those with the least such sum are kept, and among equals those with the fewest suffixes. As long as this drops no
state, no sequence up to the limit is missed: the search is a breadth-first heuristic search (Zhou and Hansen 2006,
Artificial Intelligence 170). Otherwise it is a beam search.
"""

from __future__ import annotations

from typing import NamedTuple

from autobatch._native import search_layers as search_in_layers
from autobatch.arrays import FloatArray, IntArray
from autobatch.policies.search.suffix import Suffixes

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
        A sequence of the least cost up to the limit, unless `unseen` is less than its cost.

    Cost: per state O(T) steps and bounds, W = S/64 words for each suffix left, and a walk over the states kept.
    """
    return Outcome(*search_in_layers(suffixes, cost, limit, width, max_states))
