"""Stop gradients at node outputs that no loss depends on and whose gradient may not be finite.

A cell may return, besides a value that the loss uses, the logarithm of a number that is 0. The gradient of the loss is
finite, but the backward stage of the type would multiply the gradient of the logarithm, 0, by infinity. So such a node
gets a type of its own, which differs in that these outputs pass no gradient on. All other types and their batches stay
the same; most models have no such outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autobatch.graph.graph import Graph
from autobatch.graph.marks import Marks
from autobatch.graph.words import Encoded
from autobatch.ir.flows import FlowArrays
from autobatch.ir.typetable import TypeTable


class Stopping:
    """Change the types of nodes with singular outputs that no loss depends on to types that stop gradients there.

    Args:
        types: the table of all graphs; new types are added to it.
    """

    def __init__(self, types: TypeTable) -> None:
        self._types, self._marks = types, Marks()

    def stop(self, graph: Graph, singular_types: Sequence[int], flows: FlowArrays, n_slots: int, slot: int) -> Graph:
        """Return the graph with these nodes' types changed; the graph itself if it has no such nodes.

        Args:
            graph: as recorded or merged.
            singular_types: the types with singular outputs.
            flows: the gradient flows of its types.
            n_slots: the number of slots of results.
            slot: the slot of the loss.

        Cost: that of `Marks.mark`; only a pass over the types of the nodes if no node has such outputs.
        """
        present = np.flatnonzero(np.bincount(graph.type_id))
        singular_types = np.intersect1d(present, singular_types, assume_unique=True).tolist()
        if not singular_types:
            return graph
        self._marks.mark(graph, flows, n_slots, [slot])
        words = graph.words.copy()
        type_ids = Encoded(words).type_id
        for type_id in singular_types:
            singular = self._types[type_id].singular
            nodes = np.flatnonzero((graph.type_id == type_id) & self._marks.nodes)
            used = self._marks.outputs[nodes]  # outputs that another thread has added meanwhile are unused
            unused = np.stack([~used[:, o] if o < used.shape[1] else np.ones(nodes.size, bool) for o in singular], 1)
            with_unused = unused.any(1)
            nodes, unused = nodes[with_unused], unused[with_unused]
            for pattern in np.unique(unused, axis=0):
                outputs = tuple(
                    output for output, is_unused in zip(singular, pattern.tolist(), strict=True) if is_unused
                )
                type_ids[nodes[(unused == pattern).all(1)]] = self._types.stopped(type_id, outputs)
        return Graph(words, graph.floats, graph.types, graph.structures, graph.keys)
