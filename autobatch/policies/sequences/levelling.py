"""Choose the position in a sequence at which each node runs: as early as possible, as late as possible, or levelled.

A batch with fewer rows than keep the machine busy costs as much as one with that many. So moving rows from large
batches to small ones of the same type saves time, and a node may move anywhere between its inputs and its readers. A
pass visits every node in topological order or in reverse, and moves it to the batch where it is cheapest; among batches
of equal cost, to the smallest, if that makes the two more even. Every move lowers the predicted time, or else the sum
of squared row counts, so the passes terminate.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np

from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, reverse_edges
from autobatch.jit.arrays import FloatArray, IntArray
from autobatch.jit.loops import compiled
from autobatch.policies.cost import CostModel, batch_cost
from autobatch.policies.sequences.embedding import NOWHERE, embed_early, embed_late, refused_place

Assign: TypeAlias = Literal["early", "late", "level"]

MAX_PASSES = 32
ROUNDING = 1e-9  # microseconds: smaller differences count as zero


def assign_rows(dag: Dag, sequence: IntArray, assign: Assign = "early", costs: CostModel | None = None) -> IntArray:
    """Give each node a position of a sequence, from which `to_schedule_at` makes a schedule.

    Args:
        dag: N nodes, T types.
        sequence: int32[K] type ids; finishes `dag`.
        assign: "early" or "late", as far as the sequence allows; "level", the cheapest of these two and of the results
            of moving nodes from either.
        costs: costs of batches; "level" needs them.

    Returns:
        int32[N] positions.

    Raises:
        PolicyError: `assign` is unknown, or needs costs.
        ScheduleError: the sequence does not finish the graph; names a node.

    Cost: O(N + E + K); "level": at most 32 times O(E + N * S), where S positions lie between a node's neighbours.
    Source: DESIGN, section 5.

    Example: of three nodes that can all run first, one may wait for a fourth that cannot.

    >>> from autobatch.graph.dag import to_dag
    >>> from autobatch.graph import NamedTypes, make_graph
    >>> dag = to_dag(make_graph(NamedTypes(("a", "b")), [0, 0, 0, 1, 0], [(0, 3), (3, 4)]))
    >>> sequence = np.array([0, 1, 0], np.int32)
    >>> costs = CostModel([5.0, 5.0], [1.0, 1.0], [2.0, 0.0])
    >>> for assign in ("early", "late", "level"):
    ...     position = assign_rows(dag, sequence, assign, costs)
    ...     print(position.tolist(), predict_us(dag, sequence, position, costs))
    [0, 0, 0, 1, 2] 21.0
    [0, 2, 2, 1, 2] 21.0
    [0, 0, 2, 1, 2] 20.0
    """
    if assign not in get_args(Assign):
        raise PolicyError(f"assigning rows: assign={assign!r} is none of {', '.join(get_args(Assign))}.")
    if assign == "level" and costs is None:
        raise PolicyError("assigning rows: assign='level' weighs batches, but costs is None; give a CostModel.")
    position = embed_late(dag, sequence) if assign == "late" else embed_early(dag, sequence)
    if position.size and position.min() == NOWHERE:
        raise refused_place(dag, sequence, int(np.argmin(position)), NOWHERE)
    if assign != "level" or costs is None:
        return position
    starts = [position, embed_late(dag, sequence)]
    table = costs.array()
    levelled = [_level(dag, sequence, start, table) for start in starts]
    return min([*starts, *levelled], key=lambda position: predict_us(dag, sequence, position, costs))


def predict_us(dag: Dag, sequence: IntArray, position: IntArray, costs: CostModel) -> float:
    """Predict the time of the batches of an assignment of rows, in microseconds."""
    rows = np.bincount(position, minlength=sequence.size)
    used = np.flatnonzero(rows)
    kind = sequence[used]
    padded = np.maximum(rows[used], costs.efficient_rows[kind])
    return float((costs.launch_us[kind] + costs.row_us[kind] * padded).sum())


@compiled
def _level(dag: Dag, sequence: IntArray, start: IntArray, costs: FloatArray) -> IntArray:
    """Move nodes between batches until no single move helps, or for `MAX_PASSES`."""
    type_id, edge_ptr, edge_src, n_types = dag
    reader_ptr, reader = reverse_edges(edge_ptr, edge_src)
    position = start.copy()
    rows = np.zeros(sequence.size, np.int32)
    for place in position:
        rows[place] += 1
    before, after = _neighbours(sequence, n_types)
    unchanged = 0
    for turn in range(MAX_PASSES):
        changed = False
        for i in range(type_id.size):
            node = type_id.size - 1 - i if turn % 2 == 0 else i
            low, high = -1, sequence.size
            for e in range(edge_ptr[node], edge_ptr[node + 1]):
                low = max(low, position[edge_src[e]])
            for r in range(reader_ptr[node], reader_ptr[node + 1]):
                high = min(high, position[reader[r]])
            here = position[node]
            best = _best_place(here, low, high, rows, before, after, costs, type_id[node])
            if best != here:
                rows[here] -= 1
                rows[best] += 1
                position[node] = best
                changed = True
        unchanged = 0 if changed else unchanged + 1
        if unchanged == 2:
            break
    return position


@compiled
def _best_place(
    here: int, low: int, high: int, rows: IntArray, before: IntArray, after: IntArray, costs: FloatArray, kind: int
) -> int:
    """Find the best position between `low` and `high` for a node of a type now at `here`; `here` if none is better."""
    best, fewest = here, rows[here] - 1
    least = _row_cost(costs, kind, fewest)
    for step in (before, after):
        place = step[here]
        while low < place < high:
            cost = _row_cost(costs, kind, rows[place])
            if cost < least - ROUNDING or (cost < least + ROUNDING and rows[place] < fewest):
                best, least, fewest = place, cost, rows[place]
            place = step[place]
    return best


@compiled
def _row_cost(costs: FloatArray, kind: int, n_rows: int) -> float:
    """Predict the cost of one more row in a batch of `n_rows`; the first row includes the launch."""
    more = batch_cost(costs, kind, n_rows + 1)
    return more - batch_cost(costs, kind, n_rows) if n_rows > 0 else more


@compiled
def _neighbours(sequence: IntArray, n_types: int) -> tuple[IntArray, IntArray]:
    """Give for each position the previous and the next of its type; -1 and K if there is none."""
    last = sequence.size
    before, after = np.full(last, -1, np.int32), np.full(last, last, np.int32)
    latest = np.full(n_types, -1, np.int32)
    for k in range(last):
        if 0 <= sequence[k] < n_types:
            before[k] = latest[sequence[k]]
            if before[k] >= 0:
                after[before[k]] = k
            latest[sequence[k]] = k
    return before, after
