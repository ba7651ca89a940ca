"""Compute the features that a network reads: a row of numbers for each type, and a few for the whole graph.

No feature depends on the number or numbering of types or on the size of the mini-batch, so a network that scores all
rows alike works on any graph. All lie between 0 and 1. A type without unrun nodes has a row of zeros. M, criticality
and shares at M are those of `autobatch.schedule.chains`, frontiers of G_a those of `autobatch.schedule.restricted`.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autobatch.jit.loops import compiled
from autobatch.policies.networks.fleet import Fleet

Rows: TypeAlias = NDArray[np.float32]

TYPE_FEATURES = (
    "unrun",  # 1: some node of the type is to be run
    "ready",  # 1: some node is ready
    "critical",  # 1: ready, and running it lowers the chain bound
    "ready_share",  # its ready nodes among its unrun ones
    "own_share",  # its share of the ready nodes at M
    "height",  # mean chains ahead of its ready nodes, relative to the largest such mean
    "chain",  # M among the M of all types
    "ratio",  # its ready nodes among the frontier of G_a
    "of_ready",  # its share of all ready nodes
    "of_unrun",  # its share of all unrun nodes
)
OVERALL_FEATURES = (
    "left",  # unrun nodes among all
    "ready",  # ready nodes among unrun ones
    "ready_types",  # types with ready nodes among those with unrun ones
    "critical_types",  # critical types among the ready ones
    "inverse_types",  # 1 / types with unrun nodes
)
UNRUN, READY, CRITICAL, READY_SHARE, OWN_SHARE, HEIGHT, CHAIN, RATIO, OF_READY, OF_UNRUN = range(10)
LEFT, ALL_READY, READY_TYPES, CRITICAL_TYPES, INVERSE_TYPES = range(5)


@compiled
def describe(fleet: Fleet, g: int, rows: Rows, overall: NDArray[np.float32]) -> None:
    """Describe dag `g` of a fleet.

    Args:
        fleet, g: the dag, of T types.
        rows: written, float32[T, features of a type].
        overall: written, float32[features of the whole].

    Cost: O(T).
    """
    head, tail, segment, node_ptr = fleet.sim.head, fleet.sim.tail, fleet.sim.segment, fleet.sim.node_ptr
    most, n_most, n_own_most = fleet.chains.most, fleet.chains.n_most, fleet.chains.n_own_most
    ready_height, frontier = fleet.chains.ready_height, fleet.restricted.frontier
    first, n_types = g * rows.shape[0], rows.shape[0]
    rows[:] = 0
    overall[:] = 0
    all_ready, all_unrun, all_chains, highest = 0, 0, 0, 0.0
    for kind in range(first, first + n_types):
        n_ready = tail[kind] - head[kind]
        all_ready += n_ready
        all_unrun += segment[kind + 1] - head[kind]
        all_chains += most[kind]
        if n_ready:
            highest = max(highest, ready_height[kind] / n_ready)
    if all_ready == 0:
        return
    n_unrun_types, n_ready_types, n_critical = 0, 0, 0
    for a in range(n_types):
        kind = first + a
        n_ready, n_unrun = tail[kind] - head[kind], segment[kind + 1] - head[kind]
        if n_unrun == 0:
            continue
        n_unrun_types += 1
        rows[a, UNRUN] = 1
        rows[a, CHAIN] = most[kind] / all_chains
        rows[a, OF_UNRUN] = n_unrun / all_unrun
        if n_ready == 0:
            continue
        critical = n_own_most[kind] == n_most[kind]
        n_ready_types += 1
        n_critical += critical
        rows[a, READY] = 1
        rows[a, CRITICAL] = critical
        rows[a, READY_SHARE] = n_ready / n_unrun
        rows[a, OWN_SHARE] = n_own_most[kind] / n_most[kind]
        rows[a, HEIGHT] = ready_height[kind] / (n_ready * highest)
        rows[a, RATIO] = n_ready / frontier[kind]
        rows[a, OF_READY] = n_ready / all_ready
    overall[LEFT] = all_unrun / (node_ptr[g + 1] - node_ptr[g])
    overall[ALL_READY] = all_ready / all_unrun
    overall[READY_TYPES] = n_ready_types / n_unrun_types
    overall[CRITICAL_TYPES] = n_critical / n_ready_types
    overall[INVERSE_TYPES] = 1 / n_unrun_types
