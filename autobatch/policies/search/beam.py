"""Find a good sequence of types in milliseconds: beam search on the reduced graph, forward and backward.

Among the states that sequences of one length lead to, the `width` most promising are extended: those with the least
chain bound (`autobatch.policies.search.layered`). Backward, from outputs to inputs, other states look promising. So
both directions are searched, and the better result is compacted.
"""

from __future__ import annotations

import numpy as np

from autobatch.arrays import FloatArray, IntArray
from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, reverse
from autobatch.policies.search.exact import ANY_COUNT, check_cost
from autobatch.policies.search.layered import search_layers
from autobatch.policies.search.reduction import find_suffixes, reduce_graph
from autobatch.policies.sequences.compaction import compact

WIDTH = 16


def beam_search(dag: Dag, width: int = WIDTH, cost: FloatArray | None = None) -> IntArray:
    """Find a short sequence of types that finishes a graph.

    Args:
        dag: N nodes, E edges, T types.
        width: the most states of a layer that are extended, at least 1.
        cost: float64[T], of a batch of each type, above 0; 1 if not given, so that few batches are sought.

    Returns:
        int32[K], compacted; the same for the same arguments; the forward search's, if both cost the same.

    Raises:
        PolicyError: `width` is not positive, `cost` not one positive number per type, or the reduced graph too large.

    Cost: that of the reduced graph, and for each of K layers and both directions about `width` * T states, of about a
    microsecond.

    >>> dag = Dag(*(np.array(a, np.int32) for a in ([0, 1, 1, 0], [0, 0, 1, 1, 2], [0, 2])), 2)
    >>> beam_search(dag).tolist()
    [0, 1, 0]
    """
    if width < 1:
        raise PolicyError(f"searching with a beam: a width of {width} keeps no state; give 1 or more.")
    cost = check_cost(cost, dag.n_types)
    reduced = reduce_graph(dag).dag
    forward = search_layers(find_suffixes(reduced), cost, np.inf, width, ANY_COUNT)
    backward = search_layers(find_suffixes(reverse(reduced)), cost, np.inf, width, ANY_COUNT)
    return compact(reduced, backward.sequence[::-1].copy() if backward.cost < forward.cost else forward.sequence)
