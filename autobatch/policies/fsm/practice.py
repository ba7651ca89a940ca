"""Where the episodes of Q-learning are played: on the processor one after the other, or on a device many at once.

On the processor the table changes within an episode. On a device the episodes of a call of `learn` are played with one
table, and then the processor learns from one after the other, in their order, by the same rule. So the same seed gives
the same table, on any device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from autobatch._native import Course, learn_from_all, plan_by_machine
from autobatch.arrays import FloatArray
from autobatch.devices.device import Device
from autobatch.graph.dag import Dag
from autobatch.policies.fsm.device_simulator import (
    CHANCES,
    DeviceSimulator,
    Episodes,
    rank_all,
    rank_tried,
)
from autobatch.policies.fsm.episodes import LearningRules, run_episode
from autobatch.policies.fsm.machine import Machine
from autobatch.policies.fsm.rewards import PUBLISHED
from autobatch.policies.fsm.table import Table, copy_table, with_room
from autobatch.policies.rules.rules import LEARNED


class Exploration(NamedTuple):
    """Chances of a random choice: of one episode after the other `epsilon`, times `decay` each, down to `least`."""

    epsilon: float
    decay: float
    least: float

    def later(self) -> Exploration:
        """The chances from the next episode on."""
        return self._replace(epsilon=max(self.epsilon * self.decay, self.least))

    def spread(self, n: int) -> FloatArray:
        """The chances of episodes that are played at once: from `epsilon` to `least`, by equal factors.

        What explores least comes last, and counts most in the values that are learned. Of 16 machines for two-type
        trees, learned in 20 rounds of 50 or 200 episodes, three got 9% to 40% more batches than the best where all
        episodes of a round had one chance, which decayed from round to round; with these the worst got 4% more.

        >>> Exploration(0.4, 0.9, 0.1).spread(3).tolist()
        [0.4, 0.2, 0.1]
        """
        share = np.linspace(0.0, 1.0, n)
        return self.epsilon ** (1 - share) * self.least**share


class Task(NamedTuple):
    """What is to be learned.

    Attributes:
        dags: mini-batches of T types, which episodes take in turn.
        measured: mini-batches that say how good a table is.
        machine: what it sees, and what it may choose.
        rules: of learning.
        exploration: how much is tried.
    """

    dags: Sequence[Dag]
    measured: Sequence[Dag]
    machine: Machine
    rules: LearningRules
    exploration: Exploration


class Practice(Protocol):
    """Plays episodes."""

    def learn(self, table: Table, n_episodes: int) -> Table:
        """Play so many more episodes; give the table, which has learned from them."""

    def measure(self, table: Table) -> list[int]:
        """Count the batches of each of the mini-batches that are measured on, without exploration."""


class OnProcessor:
    """Plays one episode after the other; see `Practice`."""

    def __init__(self, task: Task, seeds: Sequence[int]) -> None:
        self._task, self._rng, self._exploration = task, np.random.default_rng(seeds), task.exploration
        self._courses = [Course(dag) for dag in task.dags]
        self._n_played = 0

    def learn(self, table: Table, n_episodes: int) -> Table:
        """See `Practice`."""
        task = self._task
        for _ in range(n_episodes):
            number = self._n_played % len(self._courses)
            course, table = self._courses[number], with_room(table, task.dags[number].type_id.size)
            run_episode(course, table, task.machine.rules(), task.rules, self._exploration.epsilon, self._rng)
            self._exploration = self._exploration.later()
            self._n_played += 1
        return table

    def measure(self, table: Table) -> list[int]:
        """See `Practice`."""
        task = self._task
        return [plan_by_machine(dag, table, task.machine.rules(), LEARNED)[0][0].size for dag in task.measured]


class OnDevice:
    """Plays many episodes at once; see `Practice`.

    Raises:
        PolicyError: the device cannot hold the mini-batches.
    """

    def __init__(self, task: Task, seeds: Sequence[int], device: Device) -> None:
        self._task, self._n_played = task, 0
        self._seed = int(np.random.SeedSequence(seeds).generate_state(1, np.uint64)[0] >> np.uint64(1))
        self._lesson = DeviceSimulator(task.dags, device, frontiers=task.rules.reward == PUBLISHED)
        self._measured = DeviceSimulator(task.measured, device) if task.measured else None

    def learn(self, table: Table, n_episodes: int) -> Table:
        """See `Practice`."""
        task = self._task
        chances = np.round(task.exploration.spread(n_episodes) * CHANCES).astype(np.int64)
        ranked = rank_all(task.machine, table, bool(task.rules.optimism))
        played = self._lesson.play(ranked, Episodes(self._seed, self._n_played, chances))
        table = with_room(table, played.n_fresh)
        learn_from_all(table, task.rules, played.n_batches, played.steps, played.fresh)
        self._n_played += n_episodes
        return copy_table(table)  # without the room for states that came again and again

    def measure(self, table: Table) -> list[int]:
        """See `Practice`."""
        if self._measured is None:
            return []
        n_batches: list[int] = self._measured.run([rank_tried(self._task.machine, table)]).n_batches.tolist()
        return n_batches
