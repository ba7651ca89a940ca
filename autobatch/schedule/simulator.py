"""Stack dags, so that the core simulates them as one: each gets its own types and its own range of nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autobatch.graph.dag import Dag
from autobatch.jit.arrays import IntArray


def stack(dags: Sequence[Dag]) -> tuple[Dag, IntArray]:
    """Join dags of T types each into one of G * T types, in which type t of dag g has number g * T + t.

    Returns:
        The joined dag, and node_ptr int32[G+1], the range of nodes of each.
    """
    n_types = dags[0].n_types
    assert all(dag.n_types == n_types for dag in dags), "stacked dags share one table of types"
    node_ptr = np.cumsum([0, *(dag.type_id.size for dag in dags)])
    first_edge = np.cumsum([0, *(dag.edge_src.size for dag in dags)])
    edge_ptr = [dag.edge_ptr[:-1] + e for dag, e in zip(dags, first_edge, strict=False)]
    edge_src = [dag.edge_src + n for dag, n in zip(dags, node_ptr, strict=False)]
    joined = Dag(
        np.concatenate([dag.type_id + g * n_types for g, dag in enumerate(dags)]).astype(np.int32),
        np.concatenate([*edge_ptr, first_edge[-1:]]).astype(np.int32),
        np.concatenate(edge_src).astype(np.int32),
        n_types * len(dags),
    )
    return joined, node_ptr.astype(np.int32)
