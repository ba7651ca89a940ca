"""Sequences of types: where the nodes of a graph run in one, and which of its positions are not needed.

Running a sequence executes, at each position, every ready node of the type there. So the first position at which a node
can run is the first of its type after the positions of all its inputs (its early position), and the sequence finishes
the graph exactly when the types of every path are a subsequence of it. Applied from the end to the reversed graph, the
same rule gives the last position at which a node can run such that all nodes after it can still run (its late
position). A node may run at any position of its type from the early to the late one that is after its inputs and before
its readers.

Compaction drops the positions of a sequence that are not needed to finish the graph.

Let L and R be the early and late positions of the nodes. Position k can be dropped exactly when no node has L = R = k.
Proof: place the nodes with R > k at their late positions and all others at their early positions. No node is then at k:
those with R = k have L < k. Every reader comes after its input: if the input is late (R > k), its reader is late too,
and R rises along edges, as does L; if the input is early and its reader late, the input lies before k and the reader
after it. Conversely, a node with L = R = k has no other position.

One pass from the left drops positions until none can be dropped. Dropping a position does not change R of the nodes
beyond it, so the late embedding is computed once. Position k is kept only if a node with R = k has not run at an
earlier kept position, which means that L = R = k for it by now. A kept position stays needed, because drops only raise
L and lower R. The mirrored pass goes from the right. The two passes find different sequences; the cheaper one is used.
"""

from __future__ import annotations

import numpy as np

from autobatch._native import batches_at, compact_sequence, embed
from autobatch.arrays import IntArray
from autobatch.errors import ScheduleError
from autobatch.graph.dag import Dag
from autobatch.schedule.schedule import Schedule

NOWHERE = -1  # the position of a node that a sequence does not run


def embed_early(dag: Dag, sequence: IntArray) -> IntArray:
    """Find the first position at which each node can run.

    By induction along the topological order: a node is ready once its last input ran, and runs at the next position of
    its type.

    Args:
        dag: N nodes in topological order, E edges, T types.
        sequence: int32[K] type ids; an id that is not a type of `dag` runs nothing.

    Returns:
        int32[N], positions 0 to K - 1; -1 for a node that the sequence does not run.

    Cost: O(N + E + K), plus up to min(T, K * T / N) steps per node to find the next position of its type.

    >>> import numpy as np
    >>> from autobatch.graph.dag import to_dag
    >>> from autobatch.graph import NamedTypes, make_graph
    >>> dag = to_dag(make_graph(NamedTypes(("cell", "add")), [0, 1, 0], [(0, 1), (1, 2)]))
    >>> embed_early(dag, np.array([0, 0, 1, 0, 0], np.int32)).tolist()
    [0, 2, 3]
    """
    position = embed(dag, sequence, False)
    return np.where(position == sequence.size, np.int32(NOWHERE), position)


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
    return embed(dag, sequence, True)


def finishes(dag: Dag, sequence: IntArray) -> bool:
    """Return whether running the sequence runs every node.

    Cost: as `embed_early`.

    >>> import numpy as np
    >>> from autobatch.graph.dag import to_dag
    >>> from autobatch.graph import NamedTypes, make_graph
    >>> dag = to_dag(make_graph(NamedTypes(("cell", "add")), [0, 1, 0], [(0, 1), (1, 2)]))
    >>> finishes(dag, np.array([0, 1, 0], np.int32)), finishes(dag, np.array([1, 0, 0], np.int32))
    (True, False)
    """
    return bool((embed(dag, sequence, False) < sequence.size).all())


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
    found = batches_at(dag, sequence, position)
    if isinstance(found, int):
        raise refused_place(dag, sequence, found, int(position[found]))
    return Schedule(*found)


def refused_place(dag: Dag, sequence: IntArray, node: int, position: int) -> ScheduleError:
    """Return the error for a node that cannot run at its position."""
    if position == NOWHERE:
        return ScheduleError(
            f"placing {dag.type_id.size} nodes in a sequence of {sequence.size} types: node {node} (type "
            f"{dag.type_id[node]}) has no position, so the sequence does not finish the graph; use a longer one."
        )
    there = f"has type {sequence[position]}" if 0 <= position < sequence.size else f"ends after {sequence.size} types"
    return ScheduleError(
        f"placing {dag.type_id.size} nodes in a sequence: node {node} of type {dag.type_id[node]} must run at a "
        f"position of its type, but at its position {position} the sequence {there}."
    )


def compact(dag: Dag, sequence: IntArray) -> IntArray:
    """Drop positions, from the left and from the right, until none can be dropped; return the cheaper result.

    Alternating early and late embeddings that drop unused positions, and then dropping single positions while any
    can be dropped, takes more passes and ends at about the same lengths (0.3% shorter over 16 sequences for lattices).

    Args:
        dag: N nodes in topological order, E edges, T types.
        sequence: int32[K] type ids; finishes `dag`.

    Returns:
        int32[K'], a subsequence that finishes `dag`, from which no position can be dropped; the result of the left pass
        if both cost the same.

    Raises:
        ScheduleError: the sequence does not finish the graph; the message names a node without a position.

    Cost: four passes, O(N + E + K) in all, plus the steps to find positions, see `embed_early`.

    >>> from autobatch.graph.dag import to_dag
    >>> from autobatch.graph import NamedTypes, make_graph
    >>> dag = to_dag(make_graph(NamedTypes(("a", "b")), [0, 1, 0, 0, 1], [(0, 1), (1, 2), (3, 4)]))
    >>> compact(dag, np.array([0, 0, 1, 0, 1, 0], np.int32)).tolist()
    [0, 1, 0]
    """
    shorter = compact_sequence(dag, sequence)
    if shorter is None:
        late = embed_late(dag, sequence)
        # NOWHERE is the least position, so this is a node that has none.
        raise refused_place(dag, sequence, int(np.argmin(late)), int(late.min()))
    return shorter
