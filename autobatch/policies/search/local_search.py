"""Improve a sequence of types by local search: perturb it, compact it, and keep the result unless it is longer.

A step inserts up to eight types within about twenty positions, or moves one entry, or swaps two; the perturbed sequence
is compacted from the left or from the right, at random (`autobatch.policies.sequences.compaction`). An inserted type
makes others superfluous, so most steps that improve are insertions. Results of equal length are also kept, so that the
search can cross plateaus. The budget counts steps, so the same seed gives the same sequence.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autobatch.graph.dag import Dag, reverse
from autobatch.jit.arrays import IntArray, blank, copied, turned
from autobatch.jit.loops import compiled, compiled_at_once
from autobatch.policies.sequences.compaction import compact, keep_from_left
from autobatch.policies.sequences.embedding import fill_mirrored, index_stops

DRAW_MODULUS, DRAW_FACTOR = 2**31 - 1, 48271  # Park, Miller, Stockmeyer 1993, Remarks on random number generators
SHARE_INSERTED = 0.9  # of all steps; the rest are half moves, half swaps
MAX_INSERTED = 8
INSERT_REACH = 10
SHIFT_REACH = 8


def local_search(
    dag: Dag, sequence: IntArray, rng: np.random.Generator, max_steps: int = 5000, enough: float = 0.0
) -> IntArray:
    """Search for a shorter sequence around one that finishes a graph.

    Args:
        dag: N nodes, T types: the graph, or the reduced one (`reduce_graph`), which the same sequences finish and on
            which steps are faster.
        sequence: int32[K] type ids; finishes `dag`.
        rng: supplies the seed, one number.
        max_steps: number of perturbed sequences to examine.
        enough: stop when the length reaches this, such as a lower bound.

    Returns:
        int32[K'] that finishes `dag`, with K' <= K.

    Raises:
        ScheduleError: the sequence does not finish the graph.

    Cost: O(N + E + K) per step, as one pass of compaction.

    >>> from autobatch.graph.dag import to_dag
    >>> from autobatch.graph import NamedTypes, make_graph
    >>> dag = to_dag(make_graph(NamedTypes(("a", "b")), [0, 1, 0, 0, 1], [(0, 1), (1, 2), (3, 4)]))
    >>> local_search(dag, np.array([1, 0, 1, 0, 1, 0], np.int32), np.random.default_rng(0)).tolist()
    [0, 1, 0]
    """
    state = np.array([rng.integers(1, DRAW_MODULUS)], np.int64)
    return _search(dag, reverse(dag), compact(dag, sequence), max_steps, enough, state)


@compiled_at_once
def _search(
    dag: Dag, backward: Dag, sequence: IntArray, n_steps: int, enough: float, state: NDArray[np.int64]
) -> IntArray:
    """Do `n_steps` steps; `state` is the state of the random numbers.

    Compacting from the right is compacting the reversed sequence for the reversed graph (`backward`) from the left.
    """
    current = sequence
    position = blank(dag.type_id.size)
    for _ in range(n_steps):
        if current.size <= enough or current.size == 0:
            break
        other = _disturb(current, dag.n_types, state)
        left = _draw(state, 2) == 0
        if not left:
            other = turned(other, other.size)
        kept = blank(other.size)
        count = _compact_once(dag if left else backward, other, position, kept)
        if 0 <= count <= current.size:
            current = copied(kept, count) if left else turned(kept, count)
    return current


@compiled
def _compact_once(dag: Dag, sequence: IntArray, position: IntArray, kept: IntArray) -> int:
    """Write what compaction from the left keeps to `kept`; return its length, or -1 if the graph is not finished."""
    n_nodes = dag.type_id.size
    if not fill_mirrored(dag, index_stops(turned(sequence, sequence.size), dag.n_types, n_nodes), position):
        return -1
    return keep_from_left(dag, index_stops(sequence, dag.n_types, n_nodes), position, kept)


@compiled
def _disturb(sequence: IntArray, n_types: int, state: NDArray[np.int64]) -> IntArray:
    """Insert some types, or move or swap entries; the sequence has at least one."""
    if _draw(state, 100) < 100 * SHARE_INSERTED:
        return _insert_some(sequence, n_types, state)
    result = copied(sequence, sequence.size)
    first = _draw(state, sequence.size)
    second = min(first + 1 + _draw(state, SHIFT_REACH), sequence.size - 1)
    what = _draw(state, 4)
    if what < 2:
        result[first], result[second] = sequence[second], sequence[first]
    elif what == 2:
        for k in range(first, second):
            result[k] = sequence[k + 1]
        result[second] = sequence[first]
    else:
        for k in range(first, second):
            result[k + 1] = sequence[k]
        result[first] = sequence[second]
    return result


@compiled
def _insert_some(sequence: IntArray, n_types: int, state: NDArray[np.int64]) -> IntArray:
    """Insert one to eight random types near a random place, each number half as often as the one before."""
    count = 1
    while count < MAX_INSERTED and _draw(state, 2) == 0:
        count += 1
    result = blank(sequence.size + count)
    for k in range(sequence.size):
        result[k] = sequence[k]
    base = _draw(state, sequence.size + 1)
    for size in range(sequence.size, result.size):
        place = min(max(base - INSERT_REACH + _draw(state, 2 * INSERT_REACH + 1), 0), size)
        for k in range(size, place, -1):
            result[k] = result[k - 1]
        result[place] = _draw(state, n_types)
    return result


@compiled
def _draw(state: NDArray[np.int64], n: int) -> int:
    """Draw a number from 0 to n - 1, and advance the state."""
    state[0] = state[0] * DRAW_FACTOR % DRAW_MODULUS
    return int(state[0] * n // DRAW_MODULUS)
