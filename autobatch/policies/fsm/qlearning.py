"""Learn a state machine by N-step tabular Q-learning on the simulator, and keep learning while it is in use.

An episode schedules one of the mini-batches from its first batch to its last. In each state it runs a random permitted
type with probability epsilon, and otherwise the type with the highest value. N batches later that value moves towards
the sum of the N rewards that followed. Regular rollouts without exploration evaluate the machine; the best one is kept.

`autobatch.policies.fsm.practice` plays the episodes, and defines the rewards. Source: ED-Batch (arXiv:2302.03851),
whose settings are the defaults; N-step returns from Sutton and Barto, chapter 7.

In use, new states are added to the tables. A plan in which the rule of `Score` decided a batch serves as an episode:
the type that ran in each state, and the number of batches that followed. Values move towards these returns, without
exploration: the same mini-batches in the same order give the same machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from autobatch._native import Course
from autobatch.arguments import check_arguments, check_int, refusal
from autobatch.arrays import IntArray
from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, chains_ahead, reverse, type_costs
from autobatch.keywords import suggesting
from autobatch.policies.fsm.machine import WAYS, Fsm, Machine, TypeNames, Way
from autobatch.policies.fsm.practice import (
    REWARDS,
    Exploration,
    LearningRules,
    Practice,
    Reward,
    Task,
    run_episode,
)
from autobatch.policies.fsm.table import Table, copy_table, make_table, with_room
from autobatch.policies.rules.directed import WAYS_OF, Direction
from autobatch.schedule.schedule import Policy

MOST_BATCHES = 2**31 - 1  # in a schedule
LEARNING = "policy learning"
"""The owner of options in messages: `learn` or `learn_policy`."""


@suggesting()
@dataclass(frozen=True)
class QLearning:
    """Settings of learning; the defaults are those that ED-Batch published.

    Attributes:
        episodes: the most episodes to play, at least 1.
        learning_rate: the fraction of the way that a value moves towards a return, above 0 and at most 1.
        discount: the discount of rewards, per batch, from 0 to 1.
        epsilon, epsilon_decay, epsilon_min: the probability of a random choice, its factor per episode, and its
            minimum, each from 0 to 1.
        n_steps: the number of rewards in a return, at least 1.
        evaluate_every: episodes between rollouts without exploration, at least 1.
        tolerance: learning stops when the cost of the batches is within this fraction of the chain bound, at least 0.
        reward: the reward for a batch. "critical" is 0 if the batch lowers the chain bound of the remaining nodes,
            else -1; "published" is -1 plus the number of nodes in the batch over the number of remaining nodes of its
            type that depend on no other of that type.
        bootstrap: add to a return the highest value of the state reached after `n_steps`. The learned machines were
            worse, with 12% to 15% more batches on lattices.
        optimism: give untried types a value of zero, which no return exceeds, so that they are tried first; otherwise
            only exploration tries them. Without it masked machines are 2% better on lattices.
    """

    episodes: int = 1000
    learning_rate: float = 0.4
    discount: float = 1.0
    epsilon: float = 0.5
    epsilon_decay: float = 0.9
    epsilon_min: float = 0.05
    n_steps: int = 10
    evaluate_every: int = 50
    tolerance: float = 0.01
    reward: Reward = "published"
    bootstrap: bool = False
    optimism: bool = True

    def __post_init__(self) -> None:
        # NaN is left to the limits below, which it fails: all comparisons with it are false.
        given = {name: x for name, x in vars(self).items() if not (isinstance(x, float) and math.isnan(x))}
        check_arguments(QLearning, given, LEARNING, dict.fromkeys(given, PolicyError))
        limits = {
            "episodes": (self.episodes >= 1, "at least 1"),
            "learning_rate": (0 < self.learning_rate <= 1, "above 0 and at most 1"),
            "discount": (0 <= self.discount <= 1, "from 0 to 1"),
            "epsilon": (0 <= self.epsilon <= 1, "from 0 to 1"),
            "epsilon_decay": (0 <= self.epsilon_decay <= 1, "from 0 to 1"),
            "epsilon_min": (0 <= self.epsilon_min <= 1, "from 0 to 1"),
            "n_steps": (self.n_steps >= 1, "at least 1"),
            "evaluate_every": (self.evaluate_every >= 1, "at least 1"),
            "tolerance": (self.tolerance >= 0, "at least 0"),
            "reward": (self.reward in REWARDS, f"one of {', '.join(REWARDS)}"),
        }
        for name, (good, words) in limits.items():
            if not good:
                raise refusal(f"{name} of {LEARNING}", words, getattr(self, name), PolicyError)

    def rules(self) -> LearningRules:
        return LearningRules(
            self.learning_rate, self.discount, min(self.n_steps, MOST_BATCHES), REWARDS.index(self.reward),
            int(self.bootstrap), int(self.optimism),
        )  # fmt: skip

    def exploration(self) -> Exploration:
        return Exploration(self.epsilon, self.epsilon_decay, self.epsilon_min)


@dataclass(frozen=True)
class Progress:
    """The result of a rollout without exploration.

    Attributes:
        episodes: the number of episodes played so far.
        batches: the mean over the measured mini-batches, which are the held-out ones if there are any; the mean cost of
            the batches, if types have costs.
        bound: the mean of their chain bounds, likewise.
        states: the number of states that the machine has met so far.
    """

    episodes: int
    batches: float
    bound: float
    states: int


class Lesson(NamedTuple):
    """The input of learning one table. Lessons are independent, so each may run in a process of its own.

    Attributes:
        dags: mini-batches, reversed if the direction is "backward".
        held_out: mini-batches that select the best table, reversed likewise.
        machine, settings: see `learn_fsm`.
        way: the direction of planning.
        seed: the seed of all lessons of a machine.
    """

    dags: Sequence[Dag]
    held_out: Sequence[Dag]
    machine: Machine
    settings: QLearning
    way: Way
    seed: int


@dataclass
class Learned:
    """The result of a lesson: the best table, and the progress of learning."""

    table: Table
    curve: list[Progress] = field(default_factory=list)


Report: TypeAlias = Callable[[Progress], None]
Each: TypeAlias = Callable[[Callable[[Lesson, Report], Learned], Sequence[Lesson], Report], Sequence[Learned]]
"""A function that applies another to each lesson, and returns the results in the order of the lessons."""


def in_turn(learn: Callable[[Lesson, Report], Learned], lessons: Sequence[Lesson], report: Report) -> list[Learned]:
    """Run one lesson after the other, in this process."""
    return [learn(lesson, report) for lesson in lessons]


def learn_fsm(
    dags: Sequence[Dag],
    types: TypeNames,
    machine: Machine = Machine(),  # noqa: B008, frozen
    settings: QLearning = QLearning(),
    *,
    direction: Direction = "forward",
    compact: bool = False,
    held_out: Sequence[Dag] = (),
    seed: int = 0,
    on_progress: Report = lambda progress: None,
) -> Fsm:
    """Learn a state machine on some mini-batches.

    Args:
        dags: the mini-batches, at least one; episodes take them in turn.
        types: the T types of the mini-batches.
        machine: the settings of the machine.
        settings: the settings of learning.
        direction: the direction of planning; "both" learns a table for each direction.
        compact: see `Directed`.
        held_out: mini-batches that select the table whose batches cost the least; by default `dags`.
        seed: the seed of the random choices.
        on_progress: called after every rollout.

    Raises:
        PolicyError: no mini-batch is given, or the seed is out of range.
    """
    lessons = make_lessons(dags, machine, settings, direction=direction, held_out=held_out, seed=seed)
    return to_fsm(lessons, in_turn(learn_table, lessons, on_progress), types, direction, compact)


def make_lessons(
    dags: Sequence[Dag],
    machine: Machine,
    settings: QLearning,
    *,
    direction: Direction,
    held_out: Sequence[Dag] = (),
    seed: int = 0,
) -> list[Lesson]:
    """Make a lesson for each direction of a machine; see `learn_fsm`.

    Raises:
        PolicyError: no mini-batch is given, or the seed is out of range.
    """
    if not dags:
        raise PolicyError("learning a policy: there must be at least one mini-batch, got none.")
    if direction not in WAYS_OF:
        raise refusal(f"direction of {LEARNING}", f"one of {', '.join(WAYS_OF)}", direction, PolicyError)
    seed = check_int(f"seed of {LEARNING}", seed, at_least=0, error=PolicyError, below=2**128)
    lessons = []
    for way in WAYS if direction == "both" else (direction,):
        turned, held = (dags, held_out) if way == "forward" else ([*map(reverse, dags)], [*map(reverse, held_out)])
        lessons.append(Lesson(turned, held, machine, settings, way, seed))
    return lessons


def learn_table(lesson: Lesson, on_progress: Report) -> Learned:
    """Learn the table of one direction."""
    settings = lesson.settings
    measured = [dag for dag in lesson.held_out or lesson.dags if dag.type_id.size]
    task = Task(lesson.dags, measured, lesson.machine, settings.rules(), settings.exploration())
    practice = Practice(task, [lesson.seed, lesson.way == "backward"])  # a stream per direction
    n_types = task.dags[0].n_types
    table = make_table(n_types, task.machine.width(n_types))
    bound = _mean([float(chains_ahead(dag).max(axis=0) @ type_costs(dag)) for dag in measured])
    best, fewest, curve, n_played = table, np.inf, [], 0
    while n_played < settings.episodes:
        n_more = min(settings.evaluate_every, settings.episodes - n_played)
        table = practice.learn(table, n_more)
        n_played += n_more
        batches = _mean(practice.measure(table))
        curve.append(Progress(n_played, batches, bound, int(table.n_states[0])))
        on_progress(curve[-1])
        if batches < fewest:
            # A copy, because later episodes write to the same arrays.
            best, fewest = copy_table(table), batches
        if batches <= (1 + settings.tolerance) * bound:
            break
    return Learned(best, curve)


def to_fsm(
    lessons: Sequence[Lesson], learned: Sequence[Learned], types: TypeNames, direction: Direction, compact: bool
) -> Fsm:
    """Make a state machine from the results of the lessons of its directions."""
    first = lessons[0]
    tables = {lesson.way: one.table for lesson, one in zip(lessons, learned, strict=True)}
    curves = {lesson.way: [*map(asdict, one.curve)] for lesson, one in zip(lessons, learned, strict=True)}
    about: dict[str, Any] = {
        "settings": asdict(first.settings), "seed": first.seed, "mini_batches": len(first.dags), "curves": curves,
    }  # fmt: skip
    turned = first.dags[0]
    example = turned if first.way == "forward" else reverse(turned)
    return Fsm(first.machine, types, tables, direction, compact, about, example=example)


def _mean(numbers: Sequence[float]) -> float:
    return float(np.mean(numbers)) if numbers else 0.0


@dataclass(frozen=True)
class Online:
    """Learn from plans in which the rule decided a batch."""

    settings: QLearning

    def __call__(self, machine: Machine, table: Table, dag: Dag, sequence: IntArray) -> Table:
        """Return the table after learning from this sequence of batches."""
        roomy = with_room(table, sequence.size)
        # Nothing is drawn from the generator, because the plan makes all choices.
        run_episode(Course(dag), roomy, machine.rules(), self.settings.rules(), 0.0, np.random.default_rng(0), sequence)
        return roomy


def keep_learning(policy: Policy, settings: QLearning = QLearning(reward="critical")) -> None:
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
