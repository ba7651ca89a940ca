"""Find a good sequence of types in milliseconds: beam search on the reduced graph, forward and backward.

Among the states that sequences of one length lead to, the `width` most promising are extended: those with the least
chain bound (`autobatch.policies.search.layered`). Other states look promising when the search goes backward, from
outputs to inputs, so both directions are searched, and the better result is compacted.
"""

from __future__ import annotations

import numpy as np

from autobatch.arrays import IntArray
from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, reverse, type_costs
from autobatch.policies.search.exact import ANY_COUNT
from autobatch.policies.search.layered import search_layers
from autobatch.policies.search.reduction import find_suffixes, reduce_graph
from autobatch.policies.sequences.compaction import compact

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
