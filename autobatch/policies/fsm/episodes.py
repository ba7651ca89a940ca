"""Play episodes of Q-learning on the processor, and learn from them.

An episode schedules a mini-batch from its first batch to its last. N batches after a choice, the value of that type in
that state moves towards the sum of the N rewards since.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.graph.dag import Dag
from autobatch.jit.arrays import FloatArray, IntArray
from autobatch.jit.loops import compiled
from autobatch.policies.fsm.encoding import encode
from autobatch.policies.fsm.machine import MachineRules, allow
from autobatch.policies.fsm.rewards import reward_of
from autobatch.policies.fsm.table import Table, add_state
from autobatch.schedule.chains import Chains, follow, is_critical, restart_chains, start_chains
from autobatch.schedule.restricted import Restricted, restart_restricted, start_restricted, unblock
from autobatch.schedule.simulator import Simulator, restart, start, step

NO_PLAN = np.empty(0, np.int32)


class LearningRules(NamedTuple):
    """A `QLearning` for compiled loops."""

    learning_rate: float
    discount: float
    n_steps: int
    reward: int
    bootstrap: int
    optimism: int


class Episode(NamedTuple):
    """What happened, with room for N batches."""

    visited: IntArray  # [N] the state before each batch
    chosen: IntArray  # [N] the type that ran
    rewards: FloatArray  # [N]


class Course(NamedTuple):
    """A mini-batch to learn on: its simulation, and its last episode."""

    dag: Dag
    sim: Simulator
    chains: Chains
    restricted: Restricted
    episode: Episode


@compiled
def start_course(dag: Dag) -> Course:
    """Set up a mini-batch to learn on."""
    sim = start(dag)
    return Course(dag, sim, start_chains(dag, sim), start_restricted(dag), start_episode(dag.type_id.size))


@compiled
def start_episode(n_batches: int) -> Episode:
    """Make room for an episode."""
    return Episode(np.empty(n_batches, np.int32), np.empty(n_batches, np.int32), np.empty(n_batches))


@compiled
def run_episode(
    course: Course,
    table: Table,
    machine: MachineRules,
    rules: LearningRules,
    epsilon: float,
    rng: np.random.Generator,
    plan: IntArray,
) -> None:
    """Schedule the mini-batch once, by `plan` unless that is empty, and learn from it.

    The table has room for a state per batch.
    """
    dag, sim, chains, restricted, episode = course
    restart(sim, dag, 0)
    restart_chains(chains, sim, 0)
    restart_restricted(restricted, dag)
    n_types = table.values.shape[1]
    state, allowed = np.zeros(table.states.shape[1], np.int16), np.zeros(n_types, np.bool_)
    t = 0
    while allow(sim, chains, machine.mask, allowed):
        encode(sim, chains, n_types, machine.encoding, state)
        number = add_state(table, state)
        if t >= rules.n_steps:
            ahead = table.values[number, _best(table, number, allowed, rules.optimism)] if rules.bootstrap else 0.0
            _update(episode, table, rules, t - rules.n_steps, t, ahead)
        if plan.size > 0:
            type_id = plan[t]
        elif rng.random() < epsilon:
            type_id = _any_of(allowed, rng)
        else:
            type_id = _best(table, number, allowed, rules.optimism)
        n_ready, critical = sim.tail[type_id] - sim.head[type_id], is_critical(chains, type_id)
        episode.visited[t], episode.chosen[t] = number, type_id
        episode.rewards[t] = reward_of(rules.reward, n_ready, restricted.frontier[type_id], critical)
        batch = step(sim, type_id)
        follow(chains, sim, batch)
        unblock(restricted, sim, batch)
        t += 1
    for first in range(max(0, t - rules.n_steps), t):
        _update(episode, table, rules, first, t, 0.0)


@compiled
def learn_from(episode: Episode, n_batches: int, table: Table, rules: LearningRules) -> None:
    """Learn from an episode that was played before: as `run_episode` does by a plan, without bootstrapping."""
    for first in range(n_batches):
        _update(episode, table, rules, first, min(first + rules.n_steps, n_batches), 0.0)


@compiled
def _update(episode: Episode, table: Table, rules: LearningRules, first: int, end: int, ahead: float) -> None:
    """Move the value of what ran at `first` towards the rewards from there to `end`, and what lies ahead then."""
    total = ahead
    for t in range(end - 1, first - 1, -1):
        total = episode.rewards[t] + rules.discount * total
    number, type_id = episode.visited[first], episode.chosen[first]
    table.values[number, type_id] += rules.learning_rate * (total - table.values[number, type_id])
    table.updates[number, type_id] += 1


@compiled
def _best(table: Table, number: int, allowed: NDArray[np.bool_], optimism: int) -> int:
    """Find the allowed type of the highest value, of equal ones the lowest id; without optimism, tried ones first."""
    best = -1
    for a in range(allowed.size):
        if allowed[a]:
            tried = optimism or table.updates[number, a] > 0
            known = best >= 0 and (optimism or table.updates[number, best] > 0)
            if best < 0 or (tried and not known) or (tried and table.values[number, a] > table.values[number, best]):
                best = a
    return best


@compiled
def _any_of(allowed: NDArray[np.bool_], rng: np.random.Generator) -> int:
    """Draw an allowed type."""
    left = int(rng.random() * allowed.sum())
    for a in range(allowed.size):
        if allowed[a]:
            if left == 0:
                return a
            left -= 1
    return -1
