"""Check a schedule from the definition: every node runs once, after its inputs, in a batch of its type."""

from __future__ import annotations

import numpy as np

from autobatch.errors import ScheduleError
from autobatch.graph.graph import Graph
from autobatch.keywords import checked
from autobatch.schedule.schedule import Schedule


@checked()
def check_schedule(graph: Graph, schedule: Schedule) -> None:
    """Check that every node runs once, after its inputs, in a batch of its own type.

    Raises:
        ScheduleError: names the first batch and node for which this does not hold.

    Cost: O(N + E), in NumPy; in Python for an invalid schedule.
    """
    ptr = schedule.batch_ptr
    rises = ptr.size == schedule.n_batches + 1 and ptr[0] == 0 and ptr[-1] == schedule.n_nodes
    if not rises or (np.diff(ptr) < 1).any():
        raise ScheduleError(
            f"checking a schedule: batch_ptr {ptr} must rise from 0 to {schedule.n_nodes} in {schedule.n_batches} "
            f"steps; a batch holds at least one node."
        )
    if not _runs(graph, schedule):
        _explain(graph, schedule)


def _runs(graph: Graph, schedule: Schedule) -> bool:
    """Return whether the batches run every node once, in a valid order."""
    n_nodes, order = graph.n_nodes, schedule.order
    if order.size != n_nodes or ((order < 0) | (order >= n_nodes)).any():
        return False
    sizes = np.diff(schedule.batch_ptr)
    ran_in = np.full(n_nodes, -1)
    ran_in[order] = np.repeat(np.arange(schedule.n_batches), sizes)
    # `order` has as many entries as there are nodes, so if every node occurs, each occurs once.
    if (ran_in < 0).any() or (graph.type_id[order] != np.repeat(schedule.batch_type, sizes)).any():
        return False
    # Strictly less: the nodes of one batch run together, so none may read another.
    return bool((ran_in[graph.edge_src] < np.repeat(ran_in, np.diff(graph.edge_ptr))).all())


def _explain(graph: Graph, schedule: Schedule) -> None:
    """Raise the error that names the first invalid batch and node."""
    ran_in: dict[int, int] = {}
    for k, (type_id, nodes) in enumerate(schedule):
        _check_batch(graph, k, type_id, nodes.tolist(), ran_in)
    unrun = [node for node in range(graph.n_nodes) if node not in ran_in]
    raise ScheduleError(
        f"checking a schedule: {len(unrun)} of {graph.n_nodes} nodes are in no batch, the first is node {unrun[0]} "
        f"({graph.type_of(unrun[0])!r}); a schedule runs every node once."
    )


def _check_batch(graph: Graph, k: int, type_id: int, nodes: list[int], ran_in: dict[int, int]) -> None:
    """Check batch k against `ran_in` (node to batch, for earlier batches), and add its nodes there."""
    for node in nodes:
        if not 0 <= node < graph.n_nodes:
            raise _refused(graph, k, type_id, nodes, f"node {node}, but the graph has nodes 0..{graph.n_nodes - 1}")
        if graph.type_id[node] != type_id:
            raise _refused(graph, k, type_id, nodes, _named(graph, node))
        if node in ran_in:
            raise _refused(
                graph, k, type_id, nodes, f"{_named(graph, node)}, which already runs in batch {ran_in[node]}"
            )
        ran_in[node] = k
    for node in nodes:
        # A source waits if it has not run, or if it is in this batch, whose nodes are in `ran_in` already.
        waiting = [source for source in graph.inputs_of(node) if ran_in.get(source, k) == k]
        if waiting:
            raise _refused(graph, k, type_id, nodes, f"{_named(graph, node)} while inputs {waiting} are unfinished")


def _refused(graph: Graph, k: int, type_id: int, nodes: list[int], what: str) -> ScheduleError:
    name = graph.types.names[type_id] if 0 <= type_id < graph.n_types else f"type {type_id}"
    return ScheduleError(
        f"batch {k} ({name!r} x {len(nodes)}) takes {what}; a batch holds ready, unrun nodes of one type."
    )


def _named(graph: Graph, node: int) -> str:
    return f"node {node} ({graph.type_of(node)!r})"
