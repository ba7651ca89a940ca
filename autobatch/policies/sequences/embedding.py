"""Find where the nodes of a graph run in a sequence of types: as early as possible, or as late as possible.

Running a sequence executes, at each position, every ready node of the type there. So the first position at which a node
can run is the first of its type after the positions of all its inputs (its early position), and the sequence finishes
the graph exactly when the types of every path are a subsequence of it. Applied from the end to the reversed graph, the
same rule gives the last position at which a node can run such that all nodes after it can still run (its late
position). A node may run at any position of its type from the early to the late one that is after its inputs and before
its readers.
"""

from __future__ import annotations

import numpy as np

from autobatch._native import batches_at, embed
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

    Cost: O(N + E + K), plus for N nodes up to min(T, K * T / N) steps to the next position of a type.

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
