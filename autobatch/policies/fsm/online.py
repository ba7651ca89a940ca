"""Keep learning while a state machine is in use: add new states to its tables.

A plan in which the rule of `Score` decided a batch serves as an episode: the type that ran in each state, and the
number of batches that followed. Values move towards these returns, as in `autobatch.policies.fsm.qlearning` but without
exploration: the same mini-batches in the same order give the same machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autobatch._native import Course
from autobatch.arrays import IntArray
from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag
from autobatch.policies.fsm.machine import Fsm, Machine
from autobatch.policies.fsm.practice import run_episode
from autobatch.policies.fsm.qlearning import QLearning
from autobatch.policies.fsm.table import Table, with_room
from autobatch.schedule.schedule import Policy


@dataclass(frozen=True)
class Online:
    """Learn from plans in which the rule decided a batch."""

    settings: QLearning

    def __call__(self, machine: Machine, table: Table, dag: Dag, sequence: IntArray) -> Table:
        """Return the table after learning from this sequence of batches."""
        roomy = with_room(table, sequence.size)
        run_episode(Course(dag), roomy, machine.rules(), self.settings.rules(), 0.0, np.random.default_rng(0), sequence)
        return roomy


def keep_learning(policy: Policy, settings: QLearning = QLearning(reward="critical")) -> None:  # noqa: B008, frozen
    """Make a policy learn from each mini-batch in which it meets an unknown state.

    Set `policy.learner` to None to stop.

    Args:
        policy: the policy, which is changed.
        settings: only the reward, learning rate and number of steps matter.

    Raises:
        PolicyError: the policy is not a state machine.

    Cost: for each mini-batch with an unknown state, about as much as planning it once more.
    """
    if not isinstance(policy, Fsm):
        raise PolicyError(
            f"the policy must be a state machine to keep learning, got {policy.name!r}; learn or load one."
        )
    policy.learner = Online(settings)
