"""Play the episodes of Q-learning, one after the other, and learn from them.

An episode schedules a mini-batch from its first batch to its last. N batches after a choice, the value of the chosen
type in that state moves towards the sum of the N rewards since.

The reward for a batch of type a is one of these, times the cost of the batch; learning maximizes its sum over an
episode:

    published   -1 + |F_a| / |frontier(G_a)|, zero for a choice without regret (`native/schedule/restricted.h`)
    critical    0 if a is critical, else -1: the sum is the chain bound minus the cost (`native/schedule/chains.h`)

Source: the first is ED-Batch's (arXiv:2302.03851).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from autobatch._native import Course, plan_by_machine
from autobatch.arrays import IntArray
from autobatch.graph.dag import Dag, cost_of
from autobatch.policies.fsm.machine import Machine, MachineRules
from autobatch.policies.fsm.table import Table, with_room
from autobatch.policies.rules.rules import LEARNED

Reward: TypeAlias = Literal["published", "critical"]
REWARDS: tuple[Reward, ...] = get_args(Reward)
PUBLISHED, CRITICAL = range(2)  # as in `native/policies/learning.h`


NO_PLAN = np.empty(0, np.int32)


class LearningRules(NamedTuple):
    """The settings of `QLearning` as numbers, for the core."""

    learning_rate: float
    discount: float
    n_steps: int
    reward: int
    bootstrap: int
    optimism: int


def run_episode(
    course: Course,
    table: Table,
    machine: MachineRules,
    rules: LearningRules,
    epsilon: float,
    rng: np.random.Generator,
    plan: IntArray = NO_PLAN,
) -> None:
    """Schedule the mini-batch of a course once, by `plan` unless that is empty, and learn from it.

    The table must have room for a new state per batch.
    """
    generator = rng.bit_generator
    # The core draws through the bit generator's C interface, which does not take the lock that NumPy's draws hold.
    with generator.lock:
        course.run(table, machine, rules, epsilon, generator, plan)


class Exploration(NamedTuple):
    """Probabilities of a random choice.

    The first episode has `epsilon`, each further one `decay` times as much, down to `least`.
    """

    epsilon: float
    decay: float
    least: float

    def later(self) -> Exploration:
        return self._replace(epsilon=max(self.epsilon * self.decay, self.least))


class Task(NamedTuple):
    """The input of learning one table.

    Attributes:
        dags: mini-batches of T types, which episodes take in turn.
        measured: mini-batches on which tables are evaluated.
        machine: the settings of the machine.
        rules: the settings of learning.
        exploration: the probabilities of random choices.
    """

    dags: Sequence[Dag]
    measured: Sequence[Dag]
    machine: Machine
    rules: LearningRules
    exploration: Exploration


class Practice:
    """Play episodes for a task, and learn from them."""

    def __init__(self, task: Task, seeds: Sequence[int]) -> None:
        self._task, self._rng, self._exploration = task, np.random.default_rng(seeds), task.exploration
        self._courses = [Course(dag) for dag in task.dags]
        self._n_played = 0

    def learn(self, table: Table, n_episodes: int) -> Table:
        """Play `n_episodes` more episodes; return the table after learning from them."""
        task = self._task
        for _ in range(n_episodes):
            number = self._n_played % len(self._courses)
            course, table = self._courses[number], with_room(table, task.dags[number].type_id.size)
            run_episode(course, table, task.machine.rules(), task.rules, self._exploration.epsilon, self._rng)
            self._exploration = self._exploration.later()
            self._n_played += 1
        return table

    def measure(self, table: Table) -> list[float]:
        """Add up the costs of the batches of each measured mini-batch, without exploration."""
        machine = self._task.machine.rules()
        return [cost_of(dag, plan_by_machine(dag, table, machine, LEARNED)[0][0]) for dag in self._task.measured]
