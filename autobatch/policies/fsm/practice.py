"""Play the episodes of Q-learning: one after the other on the CPU, or many at once on a GPU; and learn from them.

An episode schedules a mini-batch from its first batch to its last. N batches after a choice, the value of the chosen
type in that state moves towards the sum of the N rewards since.

On the CPU the table changes within an episode. On a GPU all episodes of a call of `learn` are played with one table;
then the CPU learns from them one by one, in order and by the same rule. So one seed leads to the same table on every
GPU.

The reward for a batch of type a, times its cost; learning maximises the sum over the batches of an episode:

    published   -1 + |F_a| / |frontier(G_a)|, zero for a choice without regret (`native/schedule/restricted.h`)
    critical    0 if a is critical, else -1: the sum is the chain bound minus the cost (`native/schedule/chains.h`)

Source: the first is ED-Batch's (arXiv:2302.03851).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias, get_args

import numpy as np

from autobatch._native import Course, learn_from_all, plan_by_machine
from autobatch.arrays import FloatArray, IntArray
from autobatch.devices.device import Device
from autobatch.graph.dag import Dag, cost_of
from autobatch.policies.fsm.device_simulator import (
    CHANCES,
    DeviceSimulator,
    Episodes,
    rank_all,
    rank_tried,
)
from autobatch.policies.fsm.machine import Machine, MachineRules
from autobatch.policies.fsm.table import Table, copy_table, with_room
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

    def spread(self, n: int) -> FloatArray:
        """Return the probabilities of n episodes that are played at once: from `epsilon` to `least`, by equal factors.

        The last episodes explore least, and count most in the learned values. Of 16 machines for two-type trees,
        learned in 20 rounds of 50 or 200 episodes, three got 9% to 40% more batches than the best where all episodes of
        a round had one probability, which decayed from round to round; with these probabilities the worst got 4% more.

        >>> Exploration(0.4, 0.9, 0.1).spread(3).tolist()
        [0.4, 0.2, 0.1]
        """
        share = np.linspace(0.0, 1.0, n)
        return self.epsilon ** (1 - share) * self.least**share


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


class Practice(Protocol):
    """A place to play episodes."""

    def learn(self, table: Table, n_episodes: int) -> Table:
        """Play `n_episodes` more episodes; return the table after learning from them."""

    def measure(self, table: Table) -> list[float]:
        """Add up the costs of the batches of each measured mini-batch, without exploration."""


class OnProcessor:
    """Play one episode after the other on the CPU; see `Practice`."""

    def __init__(self, task: Task, seeds: Sequence[int]) -> None:
        self._task, self._rng, self._exploration = task, np.random.default_rng(seeds), task.exploration
        self._courses = [Course(dag) for dag in task.dags]
        self._n_played = 0

    def learn(self, table: Table, n_episodes: int) -> Table:
        task = self._task
        for _ in range(n_episodes):
            number = self._n_played % len(self._courses)
            course, table = self._courses[number], with_room(table, task.dags[number].type_id.size)
            run_episode(course, table, task.machine.rules(), task.rules, self._exploration.epsilon, self._rng)
            self._exploration = self._exploration.later()
            self._n_played += 1
        return table

    def measure(self, table: Table) -> list[float]:
        machine = self._task.machine.rules()
        return [cost_of(dag, plan_by_machine(dag, table, machine, LEARNED)[0][0]) for dag in self._task.measured]


class OnDevice:
    """Play many episodes at once on a GPU; see `Practice`.

    Raises:
        PolicyError: the device cannot hold the mini-batches.
    """

    def __init__(self, task: Task, seeds: Sequence[int], device: Device) -> None:
        self._task, self._n_played = task, 0
        self._seed = int(np.random.SeedSequence(seeds).generate_state(1, np.uint64)[0] >> np.uint64(1))
        self._lesson = DeviceSimulator(task.dags, device, frontiers=task.rules.reward == PUBLISHED)
        self._measured = DeviceSimulator(task.measured, device) if task.measured else None

    def learn(self, table: Table, n_episodes: int) -> Table:
        task = self._task
        chances = np.round(task.exploration.spread(n_episodes) * CHANCES).astype(np.int64)
        ranked = rank_all(task.machine, table, bool(task.rules.optimism))
        played = self._lesson.play(ranked, Episodes(self._seed, self._n_played, chances))
        table = with_room(table, played.n_fresh)
        learn_from_all(table, task.rules, played.n_batches, played.steps, played.fresh)
        self._n_played += n_episodes
        return copy_table(table)  # without the room reserved for repeated states

    def measure(self, table: Table) -> list[float]:
        if self._measured is None:
            return []
        n_batches: list[float] = self._measured.run([rank_tried(self._task.machine, table)]).n_batches.tolist()
        return n_batches
