"""The simulation behind the environments: many graphs scheduled at once, one per seat, with rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag
from autobatch.jit.arrays import IntArray
from autobatch.jit.loops import compiled
from autobatch.policies.fsm.rewards import REWARDS, Reward, reward_of
from autobatch.policies.networks.features import OVERALL_FEATURES, TYPE_FEATURES, describe
from autobatch.policies.networks.fleet import Fleet, advance, make_fleet, restart_dag
from autobatch.policies.rules.rules import is_ready
from autobatch.schedule.chains import is_critical
from autobatch.schedule.simulator import is_done

NO_TYPE = -1
WASTED = -1.0  # the reward for a type of which nothing is ready: nothing runs


class Seats(NamedTuple):
    """S seats, each with a dag of a fleet of T types; written by `play` and `sit_down`."""

    dag: IntArray  # [S] the dag of each seat; all different
    types: NDArray[np.float32]  # [S, T, features of a type]
    overall: NDArray[np.float32]  # [S, features of the whole]
    mask: NDArray[np.int8]  # [S, T] 1: the type is ready
    rewards: NDArray[np.float64]  # [S] of the last move
    done: NDArray[np.bool_]  # [S] all nodes have run
    wasted: IntArray  # [S] moves in which nothing ran
    n_batches: IntArray  # [S] moves in which something ran


@dataclass(frozen=True)
class Game:
    """A fleet, its seats, and the dags that each seat plays in turn.

    Attributes:
        fleet: of all dags.
        seats: S of them.
        own: per seat the numbers of its dags.
        reward: a number of `REWARDS`.
    """

    fleet: Fleet
    seats: Seats
    own: Sequence[Sequence[int]]
    reward: int

    def deal(self, seat: int, rng: np.random.Generator) -> None:
        """Start one of its dags at a seat, drawn uniformly."""
        sit_down(self.fleet, self.seats, seat, self.own[seat][int(rng.integers(len(self.own[seat])))])

    def move(self, actions: object) -> None:
        """Run a type at every seat; numbers that are not types run nothing.

        Raises:
            PolicyError: the actions are not one int per seat.
        """
        chosen, (n_seats, n_types) = np.asarray(actions), self.seats.mask.shape
        if chosen.size != n_seats or chosen.dtype.kind not in "iu":
            raise PolicyError(
                f"a move in an environment of {n_seats} seats takes an int for each, from 0 to {n_types - 1}, and not "
                f"{actions!r}; give the number of a type."
            )
        known = np.where((chosen >= 0) & (chosen < n_types), chosen, NO_TYPE).astype(np.int32)
        play(self.fleet, self.seats, known.reshape(-1), self.reward)

    def stuck(self) -> NDArray[np.bool_]:
        """Say which seats have wasted more moves than their unfinished dags have nodes: bool[S]."""
        ptr, seats = self.fleet.sim.node_ptr, self.seats
        stuck: NDArray[np.bool_] = ~seats.done & (seats.wasted > ptr[seats.dag + 1] - ptr[seats.dag])
        return stuck


def make_game(dags: Sequence[Dag], n_seats: int, reward: Reward, max_types: int | None) -> Game:
    """Stack the dags, and give each seat every S-th of them; seats left without a dag get copies.

    Raises:
        PolicyError: there are no dags, a dag has no nodes or more types than `max_types`, or the reward is unknown.
    """
    if not dags or not all(dag.type_id.size for dag in dags):
        raise PolicyError("making an environment: there are no graphs, or one has no nodes; give some that have.")
    most = max(dag.n_types for dag in dags)
    n_types = most if max_types is None else max_types
    if most > n_types:
        raise PolicyError(f"making an environment: a graph has {most} types, but max_types={n_types}; raise it.")
    if reward not in REWARDS:
        raise PolicyError(f"making an environment: reward={reward!r} is none of {', '.join(REWARDS)}.")
    dealt = [*dags, *(dags[seat % len(dags)] for seat in range(len(dags), n_seats))]
    seats = Seats(
        np.zeros(n_seats, np.int32),
        np.zeros((n_seats, n_types, len(TYPE_FEATURES)), np.float32),
        np.zeros((n_seats, len(OVERALL_FEATURES)), np.float32),
        np.zeros((n_seats, n_types), np.int8),
        np.zeros(n_seats),
        np.zeros(n_seats, np.bool_),
        np.zeros(n_seats, np.int32),
        np.zeros(n_seats, np.int32),
    )
    own = [range(seat, len(dealt), n_seats) for seat in range(n_seats)]
    return Game(make_fleet(dealt, n_types), seats, own, REWARDS.index(reward))


@compiled
def sit_down(fleet: Fleet, seats: Seats, seat: int, g: int) -> None:
    """Restart dag `g` at a seat."""
    restart_dag(fleet, g)
    seats.dag[seat] = g
    seats.wasted[seat] = seats.n_batches[seat] = 0
    _look(fleet, seats, seat)


@compiled
def play(fleet: Fleet, seats: Seats, actions: IntArray, reward: int) -> None:
    """Run a type at every seat: int32[S], from 0 to T - 1; or `NO_TYPE`, which wastes the move."""
    for seat in range(seats.dag.size):
        kind = seats.dag[seat] * seats.mask.shape[1] + actions[seat]
        if actions[seat] != NO_TYPE and is_ready(fleet.sim, kind):
            seats.rewards[seat] = reward_of(
                reward, fleet.sim.tail[kind] - fleet.sim.head[kind],
                fleet.restricted.frontier[kind], is_critical(fleet.chains, kind),
            )  # fmt: skip
            seats.n_batches[seat] += 1
            advance(fleet, kind)
        else:
            seats.rewards[seat] = WASTED
            seats.wasted[seat] += 1
        _look(fleet, seats, seat)


@compiled
def _look(fleet: Fleet, seats: Seats, seat: int) -> None:
    g = seats.dag[seat]
    describe(fleet, g, seats.types[seat], seats.overall[seat])
    n_types = seats.mask.shape[1]
    for a in range(n_types):
        seats.mask[seat, a] = is_ready(fleet.sim, g * n_types + a)
    seats.done[seat] = is_done(fleet.sim, g)
