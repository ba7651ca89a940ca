"""Learn a state machine by N-step tabular Q-learning on the simulator.

An episode schedules one of the mini-batches from its first batch to its last. In each state it runs, with probability
epsilon, any type that may run, and else the one of the highest value. N batches later that value moves towards the sum
of the N rewards that followed. From time to time a rollout without exploration says how good the machine is; the best
is kept.

Rewards, per batch of type a:
    published   -1 + |F_a| / |frontier(G_a)|, zero for a choice that cannot be regretted (`schedule.restricted`)
    critical    0 if a is critical, else -1: the sum is the chain bound less the batches (`schedule.chains`)
    time        minus the predicted time of the batch, in units of the mean, over types, of a batch of one row
Source: ED-Batch (arXiv:2302.03851), whose settings are the defaults; N-step returns from Sutton and Barto, chapter 7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, chains_ahead, reverse
from autobatch.jit.arrays import IntArray
from autobatch.jit.loops import compiled
from autobatch.policies.cost import EFFICIENT, LAUNCH, ROW, CostModel, batch_cost
from autobatch.policies.fsm.encoding import encode
from autobatch.policies.fsm.machine import WAYS, Fsm, Machine, MachineRules, TypeNames, allow, run_machine
from autobatch.policies.fsm.table import Table, add_state, copy_table, make_table, with_room
from autobatch.policies.rules.directed import Direction
from autobatch.policies.rules.rules import LEARNED
from autobatch.schedule.chains import Chains, follow, is_critical, restart_chains, start_chains
from autobatch.schedule.restricted import Restricted, restart_restricted, start_restricted, unblock
from autobatch.schedule.schedule import Schedule
from autobatch.schedule.simulator import Simulator, restart, start, step

Reward: TypeAlias = Literal["published", "critical", "time"]
REWARDS: tuple[Reward, ...] = get_args(Reward)
PUBLISHED, CRITICAL, TIME = range(3)
NO_PLAN = np.empty(0, np.int32)


@dataclass(frozen=True)
class QLearning:
    """How to learn; the defaults are ED-Batch's published settings.

    Attributes:
        episodes: at most so many.
        learning_rate: how far a value moves towards a return.
        discount: of rewards, per batch.
        epsilon, epsilon_decay, epsilon_min: chance of a random choice, its factor per episode, and the least.
        n_steps: rewards that a return adds up.
        evaluate_every: episodes between rollouts without exploration.
        tolerance: learning stops when the batches, or their time, are within this fraction of the chain bound.
        reward: see the module.
        bootstrap: returns add the highest value of the state that is reached after `n_steps`. Learned worse machines:
            12% to 15% more batches on lattices.
        optimism: a type that was never tried in a state counts as zero there, which no return exceeds, so that it is
            tried first; otherwise only exploration tries it. Without it masked machines are 2% better on lattices.
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
        limits = {
            "episodes": self.episodes >= 1,
            "learning_rate": 0 < self.learning_rate <= 1,
            "discount": 0 <= self.discount <= 1,
            "epsilon": 0 <= self.epsilon <= 1,
            "epsilon_decay": 0 <= self.epsilon_decay <= 1,
            "epsilon_min": 0 <= self.epsilon_min <= 1,
            "n_steps": self.n_steps >= 1,
            "evaluate_every": self.evaluate_every >= 1,
            "tolerance": self.tolerance >= 0,
            "reward": self.reward in REWARDS,
        }
        for name, good in limits.items():
            if not good:
                raise PolicyError(f"learning a policy: {name}={getattr(self, name)!r} is out of range; see QLearning.")

    def rules(self) -> LearningRules:
        """Give what compiled loops need."""
        return LearningRules(
            self.learning_rate, self.discount, self.n_steps, REWARDS.index(self.reward),
            int(self.bootstrap), int(self.optimism),
        )  # fmt: skip


@dataclass(frozen=True)
class Progress:
    """One rollout without exploration.

    Attributes:
        episodes: learned from so far.
        batches: per mini-batch that is measured on (held-out ones if there are any), mean.
        bound: the same, of the chain bound.
        states: that the machine has met.
    """

    episodes: int
    batches: float
    bound: float
    states: int


@dataclass
class Learned:
    """What learning gave for one direction: the best table, and how it went."""

    table: Table
    curve: list[Progress] = field(default_factory=list)


def learn_fsm(
    dags: Sequence[Dag],
    types: TypeNames,
    machine: Machine = Machine(),  # noqa: B008, frozen
    settings: QLearning = QLearning(),
    *,
    direction: Direction = "forward",
    compact: bool = False,
    held_out: Sequence[Dag] = (),
    costs: CostModel | None = None,
    seed: int = 0,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Fsm:
    """Learn a state machine on some mini-batches.

    Args:
        dags: the mini-batches, at least one; episodes take them in turn.
        types: what their types are; T.
        machine: what it sees, and what it may choose.
        settings: of the learning.
        direction: of planning; "both" learns a table for each.
        compact: see `Directed`.
        held_out: mini-batches that decide which table is the best, the one of the fewest batches or, for the reward
            "time", of the least predicted time; by default those learned on.
        costs: of the T types, for the reward "time".
        seed: same seed, same table.
        on_progress: is told of every rollout.

    Raises:
        PolicyError: no mini-batches, or the reward "time" without costs.
    """
    if not dags:
        raise PolicyError("learning a policy: no mini-batches; give at least one.")
    if settings.reward == "time" and costs is None:
        raise PolicyError('learning a policy: the reward "time" needs costs=, a CostModel.')
    tables, curves = {}, {}
    for way in WAYS if direction == "both" else (direction,):
        turned, held = (dags, held_out) if way == "forward" else ([*map(reverse, dags)], [*map(reverse, held_out)])
        rng = np.random.default_rng([seed, way == "backward"])
        learned = _learn(turned, held, machine, settings, costs, rng, on_progress)
        tables[way], curves[way] = learned.table, [asdict(progress) for progress in learned.curve]
    about: dict[str, Any] = {"settings": asdict(settings), "seed": seed, "mini_batches": len(dags), "curves": curves}
    return Fsm(machine, types, tables, direction, compact, about)


def _learn(
    dags: Sequence[Dag],
    held_out: Sequence[Dag],
    machine: Machine,
    settings: QLearning,
    costs: CostModel | None,
    rng: np.random.Generator,
    on_progress: Callable[[Progress], None],
) -> Learned:
    """Learn the table of one direction."""
    measured = [dag for dag in held_out or dags if dag.type_id.size]
    n_types = dags[0].n_types
    table = make_table(n_types, machine.width(n_types))
    prices = costs if costs is not None and settings.reward == "time" else CostModel.counting(n_types)
    courses = [start_course(dag, prices.array()) for dag in dags]
    lengths = [chains_ahead(dag).max(axis=0) for dag in measured]
    bound = _mean([chain.sum() for chain in lengths])
    least = _mean(
        [prices.least_us(c, np.bincount(d.type_id, minlength=n_types)) for c, d in zip(lengths, measured, strict=True)]
    )
    best, fastest, curve = table, np.inf, []
    epsilon = settings.epsilon
    rules = settings.rules()
    for episode in range(settings.episodes):
        course = courses[episode % len(courses)]
        table = with_room(table, course.dag.type_id.size)
        run_episode(course, table, machine.rules(), rules, epsilon, rng, NO_PLAN)
        epsilon = max(epsilon * settings.epsilon_decay, settings.epsilon_min)
        if (episode + 1) % settings.evaluate_every == 0 or episode + 1 == settings.episodes:
            plans = [Schedule(*run_machine(dag, table, machine.rules(), LEARNED)[0]) for dag in measured]
            curve.append(Progress(episode + 1, _mean([len(plan) for plan in plans]), bound, int(table.n_states[0])))
            on_progress(curve[-1])
            us = _mean([prices.schedule_us(plan) for plan in plans])
            if us < fastest:
                best, fastest = copy_table(table), us
            if us <= (1 + settings.tolerance) * least:
                break
    return Learned(best, curve)


def _mean(numbers: Sequence[float]) -> float:
    return float(np.mean(numbers)) if numbers else 0.0


class Course(NamedTuple):
    """A mini-batch to learn on: its simulation, and room for the N batches of an episode."""

    dag: Dag
    sim: Simulator
    chains: Chains
    restricted: Restricted
    prices: NDArray[np.float64]  # [3, T]
    visited: IntArray  # [N] the state before each batch
    chosen: IntArray  # [N] the type that ran
    rewards: NDArray[np.float64]  # [N]


class LearningRules(NamedTuple):
    """A `QLearning` for compiled loops."""

    learning_rate: float
    discount: float
    n_steps: int
    reward: int
    bootstrap: int
    optimism: int


@compiled
def start_course(dag: Dag, prices: NDArray[np.float64]) -> Course:
    """Set up a mini-batch to learn on."""
    n_nodes, sim = dag.type_id.size, start(dag)
    visited, chosen = np.empty(n_nodes, np.int32), np.empty(n_nodes, np.int32)
    return Course(dag, sim, start_chains(dag, sim), start_restricted(dag), prices, visited, chosen, np.empty(n_nodes))


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
    dag, sim, chains, restricted, prices, visited, chosen, rewards = course
    restart(sim, dag, 0)
    restart_chains(chains, sim, 0)
    restart_restricted(restricted, dag)
    n_types = table.values.shape[1]
    state, allowed = np.zeros(table.states.shape[1], np.int16), np.zeros(n_types, np.bool_)
    unit = np.mean(prices[LAUNCH] + prices[ROW] * np.maximum(1.0, prices[EFFICIENT]))
    t = 0
    while allow(sim, chains, machine.mask, allowed):
        encode(sim, chains, n_types, machine.encoding, state)
        number = add_state(table, state)
        if t >= rules.n_steps:
            ahead = table.values[number, _best(table, number, allowed, rules.optimism)] if rules.bootstrap else 0.0
            _update(course, table, rules, t - rules.n_steps, t, ahead)
        if plan.size > 0:
            kind = plan[t]
        elif rng.random() < epsilon:
            kind = _any_of(allowed, rng)
        else:
            kind = _best(table, number, allowed, rules.optimism)
        visited[t], chosen[t] = number, kind
        n_ready = sim.tail[kind] - sim.head[kind]
        if rules.reward == PUBLISHED:
            rewards[t] = n_ready / restricted.frontier[kind] - 1
        elif rules.reward == CRITICAL:
            rewards[t] = is_critical(chains, kind) - 1
        else:
            rewards[t] = -batch_cost(prices, kind, n_ready) / unit
        batch = step(sim, kind)
        follow(chains, sim, batch)
        unblock(restricted, sim, batch)
        t += 1
    for first in range(max(0, t - rules.n_steps), t):
        _update(course, table, rules, first, t, 0.0)


@compiled
def _update(course: Course, table: Table, rules: LearningRules, first: int, end: int, ahead: float) -> None:
    """Move the value of what ran at `first` towards the rewards from there to `end`, and what lies ahead then."""
    total = ahead
    for t in range(end - 1, first - 1, -1):
        total = course.rewards[t] + rules.discount * total
    number, kind = course.visited[first], course.chosen[first]
    table.values[number, kind] += rules.learning_rate * (total - table.values[number, kind])
    table.updates[number, kind] += 1


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
