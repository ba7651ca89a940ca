"""Find where the nodes of a graph run in a sequence of types: as early as possible, or as late as possible.

Running a sequence executes, at each position, every ready node of the type there. So the first position at which a node
can run is the first of its type after the positions of all its inputs (its early position), and the sequence finishes
the graph exactly when the types of every path are a subsequence of it. Applied from the end to the reversed graph, the
same rule gives the last position at which a node can run such that all nodes after it can still run (its late
position). A node may run at any position of its type from the early to the late one that is after its inputs and before
its readers.
"""

from __future__ import annotations

from typing import NamedTuple

from autobatch.errors import ScheduleError
from autobatch.graph.dag import Dag
from autobatch.jit.arrays import IntArray, blank, copied, filled, turned
from autobatch.jit.loops import compiled
from autobatch.schedule.schedule import Schedule

NOWHERE = -1  # the position of a node that a sequence does not run
INDEX_INTS_PER_ITEM = 2  # approximate ints per node and position in the index of a sequence


class Stops(NamedTuple):
    """A sequence and its index: the next position of each type, stored for every 2**shift-th position."""

    sequence: IntArray  # [K]
    first: IntArray  # [(K >> shift) + 2, T] flat: the first position of a type at or after row << shift; K if none
    shift: int
    n_types: int


@compiled
def embed_early(dag: Dag, sequence: IntArray) -> IntArray:
    """Find the first position at which each node can run.

    By induction along the topological order: a node is ready once its last input ran, and runs at the next position of
    its type.

    Args:
        dag: N nodes in topological order, E edges, T types.
        sequence: int32[K] type ids; an id that is not a type of `dag` runs nothing.

    Returns:
        int32[N], positions 0 to K - 1; -1 for a node that the sequence does not run.

    Cost: O(N + E + K), plus for N nodes up to min(T, K * T / N) steps to the next position of a type.

    >>> import numpy as np
    >>> from autobatch.graph.dag import to_dag
    >>> from autobatch.graph import NamedTypes, make_graph
    >>> dag = to_dag(make_graph(NamedTypes(("cell", "add")), [0, 1, 0], [(0, 1), (1, 2)]))
    >>> embed_early(dag, np.array([0, 0, 1, 0, 0], np.int32)).tolist()
    [0, 2, 3]
    """
    position = blank(dag.type_id.size)
    if not fill_early(dag, index_stops(sequence, dag.n_types, dag.type_id.size), position):
        for node in range(position.size):
            if position[node] == sequence.size:
                position[node] = NOWHERE
    return position


@compiled
def embed_late(dag: Dag, sequence: IntArray) -> IntArray:
    """Find the last position at which each node can run so that every node after it can still run.

    `embed_early` on the reversed graph and sequence.

    Args:
        dag: N nodes in topological order, E edges, T types.
        sequence: int32[K] type ids.

    Returns:
        int32[N], positions 0 to K - 1; -1 for a node that starts a path which is not a subsequence of the sequence.

    Cost: as `embed_early`.

    >>> import numpy as np
    >>> from autobatch.graph.dag import to_dag
    >>> from autobatch.graph import NamedTypes, make_graph
    >>> dag = to_dag(make_graph(NamedTypes(("cell", "add")), [0, 1, 0], [(0, 1), (1, 2)]))
    >>> embed_late(dag, np.array([0, 0, 1, 0, 0], np.int32)).tolist()
    [1, 2, 4]
    """
    position = blank(dag.type_id.size)
    fill_mirrored(dag, index_stops(turned(sequence, sequence.size), dag.n_types, dag.type_id.size), position)
    for node in range(position.size):
        position[node] = sequence.size - 1 - position[node]
    return position


@compiled
def finishes(dag: Dag, sequence: IntArray) -> bool:
    """Say whether running the sequence runs every node.

    Cost: as `embed_early`.

    >>> import numpy as np
    >>> from autobatch.graph.dag import to_dag
    >>> from autobatch.graph import NamedTypes, make_graph
    >>> dag = to_dag(make_graph(NamedTypes(("cell", "add")), [0, 1, 0], [(0, 1), (1, 2)]))
    >>> finishes(dag, np.array([0, 1, 0], np.int32)), finishes(dag, np.array([1, 0, 0], np.int32))
    (True, False)
    """
    position = blank(dag.type_id.size)
    return fill_early(dag, index_stops(sequence, dag.n_types, dag.type_id.size), position)


def to_schedule_at(dag: Dag, sequence: IntArray, position: IntArray) -> Schedule:
    """Make the schedule in which each node runs at its position; positions without nodes are dropped.

    Args:
        dag: N nodes, T types.
        sequence: int32[K] type ids.
        position: int32[N], from `embed_early` or `embed_late`; whether nodes come after their inputs is left to
            `check_schedule`.

    Returns:
        A schedule of at most K batches, nodes of a batch in their order in `dag`.

    Raises:
        ScheduleError: a node has no position, or one where another type runs.

    Cost: O(N + K).

    >>> import numpy as np
    >>> from autobatch.graph.dag import to_dag
    >>> from autobatch.graph import NamedTypes, make_graph
    >>> dag = to_dag(make_graph(NamedTypes(("cell", "add")), [0, 1, 0], [(0, 1), (1, 2)]))
    >>> sequence = np.array([0, 0, 1, 0, 0], np.int32)
    >>> print(to_schedule_at(dag, sequence, embed_early(dag, sequence)))
    Schedule(batches=3, nodes=3)
      0: type 0 x 1: 0
      1: type 1 x 1: 1
      2: type 0 x 1: 2
    """
    batch_type, batch_ptr, order, misplaced = _gather_batches(dag.type_id, sequence, position)
    if misplaced >= 0:
        raise refused_place(dag, sequence, int(misplaced), int(position[misplaced]))
    return Schedule(batch_type, batch_ptr, order)


def refused_place(dag: Dag, sequence: IntArray, node: int, position: int) -> ScheduleError:
    """Make the error for a node that cannot run at its position."""
    if position == NOWHERE:
        return ScheduleError(
            f"placing {dag.type_id.size} nodes in a sequence of {sequence.size} types: node {node} (type "
            f"{dag.type_id[node]}) finds no place, so the sequence does not finish the graph; use a longer one."
        )
    there = f"type {sequence[position]}" if 0 <= position < sequence.size else f"the sequence has {sequence.size} types"
    return ScheduleError(
        f"placing {dag.type_id.size} nodes in a sequence: node {node} is of type {dag.type_id[node]}, but at its "
        f"position {position} {there}; a node runs at a position of its own type."
    )


@compiled
def index_stops(sequence: IntArray, n_types: int, n_nodes: int) -> Stops:
    """Index a sequence for `next_stop`; more sparsely for long sequences of many types, so that the size stays linear.

    Cost: O(K + min(K * T, N + K) + T) time and ints.
    """
    shift = 0
    while (sequence.size >> shift) * n_types > INDEX_INTS_PER_ITEM * (n_nodes + sequence.size):
        shift += 1
    rows = (sequence.size >> shift) + 2
    first = blank(rows * n_types)
    for at in range((rows - 1) * n_types, rows * n_types):
        first[at] = sequence.size
    for row in range(rows - 2, -1, -1):
        at = row * n_types
        for type_id in range(n_types):
            first[at + type_id] = first[at + n_types + type_id]
        for position in range(min((row + 1) << shift, sequence.size) - 1, (row << shift) - 1, -1):
            if 0 <= sequence[position] < n_types:
                first[at + sequence[position]] = position
    return Stops(sequence, first, shift, n_types)


@compiled
def next_stop(stops: Stops, type_id: int, position: int) -> int:
    """Find the first position of a type at or after one (0 to K); K if there is none. Cost: O(2**shift)."""
    row = (position + (1 << stops.shift) - 1) >> stops.shift
    for near in range(position, min(row << stops.shift, stops.sequence.size)):
        if stops.sequence[near] == type_id:
            return near
    return int(stops.first[row * stops.n_types + type_id])


@compiled
def fill_early(dag: Dag, stops: Stops, position: IntArray) -> bool:
    """Write each node's first position, K if it has none; say whether all have one. Cost: O(N + E)."""
    type_id, edge_ptr, edge_src, _ = dag
    last = stops.sequence.size
    finished = True
    for node in range(type_id.size):
        ready = 0
        for e in range(edge_ptr[node], edge_ptr[node + 1]):
            ready = max(ready, position[edge_src[e]] + 1)
        position[node] = next_stop(stops, type_id[node], min(ready, last))
        finished &= position[node] < last
    return finished


@compiled
def fill_mirrored(dag: Dag, stops: Stops, position: IntArray) -> bool:
    """Apply `fill_early` to the reversed graph, given the stops of the reversed sequence. Cost: O(N + E).

    A node's position counts from the end of the sequence; until the node is visited, `position` holds where it becomes
    ready.
    """
    type_id, edge_ptr, edge_src, _ = dag
    last = stops.sequence.size
    finished = True
    for node in range(type_id.size):
        position[node] = 0
    for node in range(type_id.size - 1, -1, -1):
        place = next_stop(stops, type_id[node], position[node])
        position[node] = place
        finished &= place < last
        ready = min(place + 1, last)
        for e in range(edge_ptr[node], edge_ptr[node + 1]):
            position[edge_src[e]] = max(position[edge_src[e]], ready)
    return finished


@compiled
def bucket(position: IntArray, n_positions: int) -> tuple[IntArray, IntArray]:
    """List the nodes by position, those of one position in node order: bucket_ptr[K+1], order[N]. Cost: O(N + K)."""
    ptr = filled(n_positions + 2, 0)
    for place in position:
        ptr[place + 2] += 1
    for place in range(2, ptr.size):
        ptr[place] += ptr[place - 1]
    order = blank(position.size)
    for node in range(position.size):
        place = position[node] + 1
        order[ptr[place]] = node
        ptr[place] += 1
    return ptr[:-1], order


@compiled
def _gather_batches(
    type_id: IntArray, sequence: IntArray, position: IntArray
) -> tuple[IntArray, IntArray, IntArray, int]:
    """Make batch_type, batch_ptr and order; last, a node whose position is not one of its type, or -1."""
    batch_type, batch_ptr = blank(sequence.size), filled(sequence.size + 1, 0)
    for node in range(type_id.size):
        place = position[node]
        if not 0 <= place < sequence.size or sequence[place] != type_id[node]:
            return batch_type, batch_ptr, position, node
    ptr, order = bucket(position, sequence.size)
    k = 0
    for place in range(sequence.size):
        if ptr[place] < ptr[place + 1]:
            batch_type[k], batch_ptr[k + 1] = sequence[place], ptr[place + 1]
            k += 1
    return copied(batch_type, k), copied(batch_ptr, k + 1), order, -1
