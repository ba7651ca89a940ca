"""Find the nodes of a graph, and their outputs, that a loss depends on."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from autobatch._native import mark_outputs
from autobatch.ir.flows import FlowArrays


class Marks:
    """The nodes of a graph that a loss depends on, and their outputs; reuses its memory from graph to graph.

    Attributes:
        nodes: bool[N], nodes with an output that the loss depends on.
        outputs: bool[N, the most outputs of a type].
        is_whole: whether the loss depends on all nodes.
    """

    def __init__(self) -> None:
        self._memory, self._wanted = np.zeros((0, 0), bool), np.zeros(0, bool)
        self.nodes, self.outputs, self.is_whole = np.zeros(0, bool), self._memory, True

    def mark(self, graph: Any, flows: FlowArrays, n_slots: int, slots: Collection[int]) -> None:
        """Mark all nodes and outputs that the values in the given slots depend on.

        Cost: O(nodes + edges * outputs of their node).
        """
        width = 1 + int(flows.n_outputs.max(initial=0))  # the first column marks the nodes
        if self._memory.shape[1] != width or len(self._memory) < graph.n_nodes:
            self._memory = np.empty((graph.n_nodes * 5 // 4, width), bool)
        if self._wanted.size != n_slots:
            self._wanted = np.zeros(n_slots, bool)
        self._wanted.fill(False)
        for slot in slots:
            self._wanted[slot] = True
        marks = self._memory[: graph.n_nodes]
        self.nodes, self.outputs = marks[:, 0], marks[:, 1:]
        self.is_whole = mark_outputs(graph.words, flows, self._wanted, marks)
