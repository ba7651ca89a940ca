"""Play episodes of Q-learning on the CPU, and learn from them.

An episode schedules a mini-batch from its first batch to its last. N batches after a choice, the value of the chosen
type in that state moves towards the sum of the N rewards since.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autobatch._native import Course
from autobatch.arrays import IntArray
from autobatch.policies.fsm.machine import MachineRules
from autobatch.policies.fsm.table import Table

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
