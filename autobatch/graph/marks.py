"""Find the nodes of a graph, and their outputs, that a loss depends on."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.graph.words import OUTPUT, sections
from autobatch.ir.flows import FlowArrays
from autobatch.jit.arrays import IntArray
from autobatch.jit.loops import compiled

Array = NDArray[Any]


class Marks:
    """The nodes of a graph that a loss depends on, and their outputs; reuses its memory from graph to graph.

    Attributes:
        nodes: bool[N], nodes with an output that the loss depends on.
        outputs: bool[N, the most outputs of a type].
        is_whole: whether it depends on all nodes.
    """

    def __init__(self) -> None:
        self._memory, self._wanted = np.zeros((0, 0), bool), np.zeros(0, bool)
        self.nodes, self.outputs, self.is_whole = np.zeros(0, bool), self._memory, True

    def mark(self, graph: Any, flows: FlowArrays, n_slots: int, slots: Collection[int]) -> None:
        """Mark all nodes and outputs that the values in the given slots depend on.

        Cost: O(nodes + edges * outputs of their node).
        """
        width = 1 + int(flows.n_outputs.max(initial=0))  # the first column is of the nodes
        if self._memory.shape[1] != width or len(self._memory) < graph.n_nodes:
            self._memory = np.empty((graph.n_nodes * 5 // 4, width), bool)
        if self._wanted.size != n_slots:
            self._wanted = np.zeros(n_slots, bool)
        self._wanted.fill(False)
        for slot in slots:
            self._wanted[slot] = True
        marks = self._memory[: graph.n_nodes]
        self.nodes, self.outputs = marks[:, 0], marks[:, 1:]
        self.is_whole = bool(_mark(graph.words, flows, self._wanted, self.nodes, self.outputs))


@compiled
def _mark(words: IntArray, flows: FlowArrays, wanted: Array, nodes: Array, outputs: Array) -> bool:
    """Mark wanted outputs and, last node first, all that gradients flow to; say whether all nodes are marked."""
    graph = sections(words)
    outputs[:] = False
    for k in range(graph.out_node.size):
        if wanted[graph.out_slot[k]]:
            outputs[graph.out_node[k], graph.out_port[k] & OUTPUT] = True
    is_whole = True
    for node in range(nodes.size - 1, -1, -1):
        type_id = graph.type_id[node]
        nodes[node] = False
        for output in range(flows.n_outputs[type_id]):
            if outputs[node, output]:
                nodes[node] = True
                first = flows.flow_ptr[type_id] + output * flows.n_ports[type_id]
                for e in range(graph.edge_ptr[node], graph.edge_ptr[node + 1]):
                    if flows.flow[first + graph.edge_in[e]]:
                        outputs[graph.edge_src[e], graph.edge_out[e] & OUTPUT] = True
        is_whole &= nodes[node]
    return is_whole
