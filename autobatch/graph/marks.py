"""Which nodes of a graph, and which of their outputs, a loss depends on."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.ir.flows import FlowArrays
from autobatch.jit.arrays import IntArray
from autobatch.jit.loops import compiled

Array = NDArray[Any]


class Marks:
    """The nodes of a graph that a loss depends on, and their outputs; keeps its memory from one graph to the next.

    Attributes:
        nodes: bool[N], those of which it depends on an output.
        outputs: bool[N, the most outputs of a type].
        is_whole: whether it depends on all nodes.
    """

    def __init__(self) -> None:
        self._memory, self._wanted = np.zeros((0, 0), bool), np.zeros(0, bool)
        self.nodes, self.outputs, self.is_whole = np.zeros(0, bool), self._memory, True

    def mark(self, graph: Any, flows: FlowArrays, n_slots: int, slots: Collection[int]) -> None:
        """Mark all that something in these of the slots depends on.

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
        self.is_whole = bool(
            _mark(
                self.nodes, self.outputs, self._wanted, graph.out_node, graph.out_port, graph.out_slot, graph.type_id,
                graph.edge_ptr, graph.edge_src, graph.edge_out, graph.edge_in, flows,
            )
        )  # fmt: skip


@compiled
def _mark(
    nodes: Array, outputs: Array, wanted: Array, out_node: IntArray, out_port: IntArray, out_slot: IntArray,
    type_id: IntArray, edge_ptr: IntArray, edge_src: IntArray, edge_out: IntArray, edge_in: IntArray, flows: FlowArrays,
) -> bool:  # fmt: skip
    """Mark wanted outputs and all that these read where gradients flow, last node first; say whether that is all."""
    outputs[:] = False
    for k in range(out_node.size):
        if wanted[out_slot[k]]:
            outputs[out_node[k], out_port[k]] = True
    is_whole = True
    for node in range(nodes.size - 1, -1, -1):
        kind = type_id[node]
        nodes[node] = False
        for output in range(flows.n_outputs[kind]):
            if outputs[node, output]:
                nodes[node] = True
                first = flows.flow_ptr[kind] + output * flows.n_ports[kind]
                for e in range(edge_ptr[node], edge_ptr[node + 1]):
                    if flows.flow[first + edge_in[e]]:
                        outputs[edge_src[e], edge_out[e]] = True
        is_whole &= nodes[node]
    return is_whole
