"""Distill a policy into one that is cheaper to run, from its choices: a state machine, or the rule of `Score`.

The policy plans some mini-batches. For a machine, each choice is a vote for a type in the state in which it was made,
and the type with the most votes wins. For a rule, weights are fitted so that the chosen types score higher than the
other ready types: they are the most likely weights if types are drawn with probabilities proportional to exp(score).
This problem is convex, and solved by Newton's method. The loss in quality is measured in batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from autobatch._native import Simulation, add_states, visit_states
from autobatch.arrays import FloatArray, IntArray, LongArray
from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, reverse
from autobatch.policies.fsm.machine import WAYS, Fsm, Machine, TypeNames, Way
from autobatch.policies.fsm.table import Table, make_table, with_room
from autobatch.policies.rules.directed import Directed
from autobatch.policies.rules.network import TYPE_FEATURES
from autobatch.policies.rules.rules import Score, Weights

P = TypeVar("P", Fsm, Score)

RIDGE = 1e-5
"""Weight of the squared weights relative to the mean log-likelihood: keeps them finite if choices are separable."""
STEPS = 50
SEEN = [TYPE_FEATURES.index(name) for name in ("critical", "ready_share", "own_share", "height")]
"""The features of the terms of `Score`."""


@dataclass(frozen=True)
class Distilled(Generic[P]):
    """A policy made from another.

    Attributes:
        policy: the new policy; it plans in the same directions as the other, and compacts if the other does.
        before, after: mean batches per mini-batch of the two.
        measured: number of mini-batches that they were measured on.
    """

    policy: P
    before: float
    after: float
    measured: int

    def __str__(self) -> str:
        return (
            f"{self.policy.name}: {self.after:.2f} batches per mini-batch where the other takes {self.before:.2f} "
            f"({self.after / self.before - 1:+.1%}, mean of {self.measured})"
        )


def distill_fsm(
    policy: Directed,
    dags: Sequence[Dag],
    types: TypeNames,
    machine: Machine = Machine("sort", critical=True),  # noqa: B008, frozen
    held_out: Sequence[Dag] = (),
) -> Distilled[Fsm]:
    """Make a state machine that imitates a policy.

    Args:
        policy: such as `autobatch.policies.rules.network.Deep`.
        dags: mini-batches to watch it on, with the same table of types.
        types: the names of these types.
        machine: what the machine sees.
        held_out: mini-batches that the two are measured on; by default `dags`.

    Raises:
        PolicyError: there are no mini-batches.

    Cost: that of the policy's plans, and O(T * (N + E + K)).
    """
    ways = _ways(policy, dags)
    tables: dict[Way, Table] = {}
    for way in ways:
        table = make_table(len(types.names), machine.width(len(types.names)))
        for dag in dags if way == WAYS[0] else map(reverse, dags):
            sequence = policy.plan(dag)[0]
            table = with_room(table, sequence.size)
            _vote(dag, sequence, table, machine)
        n_states = int(table.n_states[0])
        table.values[:n_states] = table.updates[:n_states] / table.updates[:n_states].sum(axis=1, keepdims=True)
        tables[way] = table
    about = {"distilled_from": policy.name, "mini_batches": len(dags)}
    return _compare(policy, Fsm(machine, types, tables, policy.direction, policy.compact, about), held_out or dags)


def distill_rule(policy: Directed, dags: Sequence[Dag], held_out: Sequence[Dag] = ()) -> Distilled[Score]:
    """Fit the weights of `Score` to a policy's choices.

    Args:
        policy: such as `autobatch.policies.rules.network.Deep`.
        dags: mini-batches to watch it on; their types need not be the same.
        held_out: mini-batches that the two are measured on; by default `dags`.

    Raises:
        PolicyError: there are no mini-batches, or the policy never had a choice.
    """
    rows, ends, chosen, seen = [], [], [], 0
    for way in _ways(policy, dags):
        for dag in dags if way == WAYS[0] else map(reverse, dags):
            some, until, which = _list_choices(dag, policy.plan(dag)[0])
            rows.append(some)
            ends.append(until + seen)
            chosen.append(which + seen)
            seen += len(some)
    if seen == 0:
        raise PolicyError("distilling a policy: it never had a choice on these mini-batches; give other ones.")
    starts = np.concatenate([[0], *ends])[:-1]
    weights = fit_choices(np.concatenate(rows), starts, np.concatenate(chosen))
    rule = Score(policy.direction, policy.compact, Weights(*map(float, weights)))
    rule.about = {"distilled_from": policy.name, "mini_batches": len(dags)}
    return _compare(policy, rule, held_out or dags)


def fit_choices(rows: FloatArray, starts: LongArray, chosen: LongArray) -> FloatArray:
    """Find the weights under which the choices are most likely.

    Args:
        rows: float64[M, F], the options, those of one choice adjacent.
        starts: int[C], where each choice starts.
        chosen: int[C], the row that was chosen.

    Returns:
        float64[F].
    """
    sizes = np.diff(starts, append=len(rows))
    weights = np.zeros(rows.shape[1])
    for _ in range(STEPS):
        scores = rows @ weights
        chance = np.exp(scores - np.repeat(np.maximum.reduceat(scores, starts), sizes))
        chance /= np.repeat(np.add.reduceat(chance, starts), sizes)
        mean = np.add.reduceat(rows * chance[:, None], starts)
        gradient = (rows[chosen] - mean).mean(axis=0) - RIDGE * weights
        spread = rows - np.repeat(mean, sizes, axis=0)
        curvature = (spread * chance[:, None]).T @ spread / len(starts) + RIDGE * np.eye(weights.size)
        weights = weights + np.linalg.solve(curvature, gradient)
    return weights


def _ways(policy: Directed, dags: Sequence[Dag]) -> Sequence[Way]:
    """List the directions that a policy plans in."""
    if not dags:
        raise PolicyError("distilling a policy: no mini-batches; give at least one.")
    return WAYS if policy.direction == "both" else (policy.direction,)


def _compare(policy: Directed, made: P, dags: Sequence[Dag]) -> Distilled[P]:
    before, after = (float(np.mean([len(one.plan_best(dag)) for dag in dags])) for one in (policy, made))
    return Distilled(made, before, after, len(dags))


def _vote(dag: Dag, sequence: IntArray, table: Table, machine: Machine) -> None:
    """Count, by state, which types a sequence runs; the table must have room for a state per batch."""
    states = visit_states(dag, sequence, table.values.shape[1], machine.rules(), table.states.shape[1])
    np.add.at(table.updates, (add_states(table, states), sequence), 1)


def _list_choices(dag: Dag, sequence: IntArray) -> tuple[FloatArray, LongArray, LongArray]:
    """List the ready types' features for each choice between several, where each choice ends, and the chosen row."""
    sim, rows, ends, chosen, n_rows = Simulation(dag), [np.empty((0, len(SEEN)))], list[int](), list[int](), 0
    for kind in sequence:
        ready = np.flatnonzero(sim.ready())
        if ready.size > 1:
            rows.append(sim.features()[0][ready][:, SEEN].astype(np.float64))
            chosen.append(n_rows + int(np.searchsorted(ready, kind)))
            n_rows += ready.size
            ends.append(n_rows)
        sim.step(int(kind))
    return np.concatenate(rows), np.array(ends, np.int64), np.array(chosen, np.int64)
