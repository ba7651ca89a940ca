"""Which nodes a loss depends on: the others have no gradient, even where theirs would not be finite."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch._jit import compiled
from autobatch.plan import Plan

Array = NDArray[Any]


class Activity:
    """The nodes of a plan that a loss depends on; keeps its memory from one plan to the next.

    Attributes:
        nodes: bool[N].
        is_whole: whether it depends on all of them.
    """

    def __init__(self) -> None:
        self._memory, self._wanted = np.zeros(0, bool), np.zeros(0, bool)
        self.nodes, self.is_whole = self._memory, True

    def mark(self, plan: Plan, slots: Collection[int]) -> None:
        """Mark all nodes that something in these slots depends on. Cost: O(nodes + edges)."""
        graph, self._plan = plan.graph, plan
        if self._memory.size < graph.n_nodes:
            self._memory = np.empty(graph.n_nodes * 5 // 4, bool)
        if self._wanted.size != len(plan.slot_rows):
            self._wanted = np.zeros(len(plan.slot_rows), bool)
        self._wanted.fill(False)
        for slot in slots:
            self._wanted[slot] = True
        self.nodes = self._memory[: graph.n_nodes]
        self.is_whole = bool(
            mark_nodes(self.nodes, self._wanted, graph.out_node, graph.out_slot, graph.edge_ptr, graph.edge_src)
        )

    def rows(self, kind: int, start: int, end: int) -> Array:
        """Of these rows of a type, which the loss depends on: bool[end - start]."""
        first = int(self._plan.type_ptr[kind])
        found: Array = self.nodes[self._plan.node_at[first + start : first + end]]
        return found


@compiled
def mark_nodes(
    nodes: Array, wanted: Array, out_node: Array, out_slot: Array, edge_ptr: Array, edge_src: Array
) -> bool:  # fmt: skip
    """Mark the nodes of wanted outputs and everything that these read, last node first; say whether those are all."""
    nodes[:] = False
    for output in range(out_node.size):
        if wanted[out_slot[output]]:
            nodes[out_node[output]] = True
    is_whole = True
    for node in range(nodes.size - 1, -1, -1):
        if nodes[node]:
            for e in range(edge_ptr[node], edge_ptr[node + 1]):
                nodes[edge_src[e]] = True
        else:
            is_whole = False
    return is_whole
