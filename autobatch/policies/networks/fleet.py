"""Schedule many dags at once: one simulation of all, with the quantities that features are computed from.

`autobatch.schedule.simulator.stack` joins the dags: type t of dag g has number g * T + t. Each dag goes through the
same steps as when simulated alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from autobatch.graph.dag import Dag
from autobatch.jit.arrays import IntArray
from autobatch.jit.loops import compiled
from autobatch.schedule.chains import Chains, follow, restart_chains, start_chains
from autobatch.schedule.restricted import Restricted, restart_stacked, start_all_restricted, unblock
from autobatch.schedule.simulator import Simulator, restart, stack, start_all, step


class Fleet(NamedTuple):
    """G stacked dags of T types each: their simulation, and the quantities maintained with it."""

    dag: Dag
    sim: Simulator
    chains: Chains
    restricted: Restricted


def make_fleet(dags: Sequence[Dag], n_types: int | None = None) -> Fleet:
    """Stack dags and start them.

    Args:
        dags: G of them, at least one; they may differ in their numbers of types.
        n_types: T, at least the most of any of them; by default that number. Types that a dag lacks are never ready.

    Cost: O(T * (N + E)).
    """
    most = max(dag.n_types for dag in dags) if n_types is None else n_types
    return start_fleet(*stack([dag._replace(n_types=most) for dag in dags]))


@compiled
def start_fleet(dag: Dag, node_ptr: IntArray) -> Fleet:
    """Start stacked dags; `dag` and `node_ptr` are what `stack` gives. Cost: O(T * (N + E))."""
    sim = start_all(dag, node_ptr)
    return Fleet(dag, sim, start_chains(dag, sim), start_all_restricted(dag, node_ptr))


@compiled
def restart_dag(fleet: Fleet, g: int) -> None:
    """Reset dag `g` to the state in which nothing has run. Cost: O(T * (its nodes + edges))."""
    restart(fleet.sim, fleet.dag, g)
    restart_chains(fleet.chains, fleet.sim, g)
    restart_stacked(fleet.restricted, fleet.dag, fleet.sim.node_ptr, g)


@compiled
def advance(fleet: Fleet, kind: int) -> None:
    """Run every ready node of type `kind`, numbered over all dags; at least one is ready."""
    batch = step(fleet.sim, kind)
    follow(fleet.chains, fleet.sim, batch)
    unblock(fleet.restricted, fleet.sim, batch)
