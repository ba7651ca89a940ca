"""Many dags scheduled side by side, many steps per call; a dag that is finished starts again at its next step.

`autobatch.schedule.simulator.stack` joins the dags, and one simulation holds them all: type t of dag g has number g * T
+ t. Calls from Python cost microseconds, steps cost nanoseconds per node; so a call takes k steps of every dag, with
the types to run given, drawn at random or chosen by the rule of `Score`. Each step is that of a dag simulated alone.

A `Fleet` is a simulation with all that is kept beside it, for what looks at more than the ready nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autobatch.graph.dag import Dag
from autobatch.jit.arrays import IntArray
from autobatch.jit.loops import compiled
from autobatch.policies.rules.rules import Weights, highest_score, is_ready
from autobatch.schedule.chains import Chains, follow, restart_chains, start_chains
from autobatch.schedule.restricted import Restricted, restart_stacked, start_all_restricted, unblock
from autobatch.schedule.simulator import Simulator, restart, stack, start_all, step


class Fleet(NamedTuple):
    """G stacked dags of T types each: their simulation, and what is kept beside it."""

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
    """Go back to where nothing of dag `g` has run. Cost: O(T * (its nodes + edges))."""
    restart(fleet.sim, fleet.dag, g)
    restart_chains(fleet.chains, fleet.sim, g)
    restart_stacked(fleet.restricted, fleet.dag, fleet.sim.node_ptr, g)


@compiled
def advance(fleet: Fleet, kind: int) -> None:
    """Run every ready node of type `kind`, counted through all dags; there is one."""
    batch = step(fleet.sim, kind)
    follow(fleet.chains, fleet.sim, batch)
    unblock(fleet.restricted, fleet.sim, batch)


@compiled
def step_each(sim: Simulator, choices: IntArray) -> int:
    """Take k steps of every dag, of given types.

    Args:
        sim: of G dags of T types each.
        choices: int32[k, G], the type that each dag runs at each step, from 0 to T - 1. Where nothing of it is ready,
            or where it is -1, nothing runs.

    Returns:
        The nodes that ran.
    """
    n_graphs = sim.n_batches.size
    n_types = sim.head.size // n_graphs
    n_nodes = 0
    for g in range(n_graphs):
        for i in range(choices.shape[0]):
            kind = g * n_types + choices[i, g]
            if choices[i, g] >= 0 and is_ready(sim, kind):
                n_nodes += step(sim, kind).size
    return n_nodes


@compiled
def step_at_random(sim: Simulator, dag: Dag, n_steps: int, rng: np.random.Generator) -> int:
    """Take `n_steps` steps of every dag, each of a ready type drawn with equal chance; give the nodes that ran."""
    n_graphs = sim.n_batches.size
    n_types = sim.head.size // n_graphs
    n_nodes = 0
    for g in range(n_graphs):
        for _ in range(n_steps):
            kind = _any_ready(sim.head, sim.tail, g * n_types, (g + 1) * n_types, rng)
            if kind < 0:
                restart(sim, dag, g)
                kind = _any_ready(sim.head, sim.tail, g * n_types, (g + 1) * n_types, rng)
            if kind >= 0:
                n_nodes += step(sim, kind).size
    return n_nodes


@compiled
def step_by_score(sim: Simulator, chains: Chains, dag: Dag, n_steps: int, weights: Weights) -> int:
    """Take `n_steps` steps of every dag, each of the type that `Score` names; give the nodes that ran."""
    n_graphs = sim.n_batches.size
    n_types = sim.head.size // n_graphs
    n_nodes = 0
    for g in range(n_graphs):
        for _ in range(n_steps):
            kind = highest_score(sim, chains, g * n_types, (g + 1) * n_types, weights)
            if kind < 0:
                restart(sim, dag, g)
                restart_chains(chains, sim, g)
                kind = highest_score(sim, chains, g * n_types, (g + 1) * n_types, weights)
            if kind >= 0:
                batch = step(sim, kind)
                follow(chains, sim, batch)
                n_nodes += batch.size
    return n_nodes


@compiled
def _any_ready(head: IntArray, tail: IntArray, first: int, end: int, rng: np.random.Generator) -> int:
    """Draw one of the ready types among `first` to `end`; -1 if there is none."""
    n_ready = 0
    for kind in range(first, end):
        n_ready += head[kind] < tail[kind]
    left = int(rng.random() * n_ready) if n_ready > 1 else 0
    for kind in range(first, end):
        if head[kind] < tail[kind]:
            if left == 0:
                return kind
            left -= 1
    return -1
