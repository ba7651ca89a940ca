"""The predicted work of nodes, in multiply-adds: what the time of a batch is nearly proportional to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autobatch.graph.graph import Graph

PER_NODE = 2e3  # multiply-adds that take as long as a node beside its products


def work_of(graph: Graph) -> NDArray[np.float64]:
    """The work of each node of a graph, in multiply-adds."""
    found: NDArray[np.float64] = PER_NODE + graph.types.arrays().product_work[graph.type_id].astype(np.float64)
    return found
