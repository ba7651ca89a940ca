"""Improve a sequence of types by local search: perturb it, compact it, and keep the result unless it costs more.

A step inserts up to eight types within about twenty positions, or moves one entry, or swaps two; the perturbed sequence
is compacted from the left or from the right, at random (`autobatch.policies.sequences.compaction`). An inserted type
makes others superfluous, so most improvements are insertions. Results of equal cost are also kept, so that the
search can cross plateaus. The budget counts steps, so the same seed gives the same sequence.
"""

from __future__ import annotations

import numpy as np

from autobatch._native import local_search as search_locally
from autobatch.arrays import IntArray
from autobatch.graph.dag import Dag
from autobatch.policies.sequences.compaction import compact

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
