"""Batching as a Gymnasium environment: an episode schedules a graph, and an action is the type to run next.

Observations describe each type by numbers that do not depend on the number of types
(`autobatch.policies.networks.features`), padded with rows of zeros to `max_types`. `BatchingVector` plays many graphs
at once in one compiled simulation; each seat behaves like a `Batching`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag
from autobatch.policies.fsm.rewards import Reward
from autobatch.policies.networks.features import OVERALL_FEATURES, TYPE_FEATURES
from autobatch.policies.rl.families import draw
from autobatch.policies.rl.seats import Seats, make_game

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.utils import seeding
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ImportError as missing:
    raise PolicyError(
        "making an environment: the package gymnasium is not installed; install autobatch[rl], or learn a policy "
        "that needs none, such as fsm."
    ) from missing

Observation: TypeAlias = dict[str, NDArray[Any]]
Family: TypeAlias = str | Callable[[np.random.Generator], Dag]

POOL = 64  # graphs drawn from a family


@final
class Batching(gymnasium.Env[Observation, Any]):
    """Schedule one graph after another.

    Observation: "types" float32[max_types, features], "overall" float32[features], "mask" int8[max_types], 1 for every
    type that is ready. Action: a type. A type that is not ready, or a number that is not a type, runs nothing and gives
    a reward of -1; after more such moves than the graph has nodes the episode is truncated. The episode ends when all
    nodes have run. The mask is also given by `action_masks` and, with the number of batches so far, in `info`.

    Args:
        dags: the graphs; each episode draws one uniformly.
        family: instead of `dags`: a name known to `autobatch.policies.rl.families.draw`, or a function that draws a
            graph; graphs are drawn once.
        n_dags: how many graphs to draw.
        family_seed: same seed, same graphs.
        reward: "critical" or "published", see `autobatch.policies.fsm.qlearning`.
        max_types: the rows of an observation; by default the most types of any graph.

    Raises:
        PolicyError: no graphs, both graphs and a family, more types than `max_types`, or an unknown reward.

    Cost: about 30 us per step, mostly overhead of the call from Python; see `BatchingVector`.

    >>> from autobatch.graph.sketch import Sketch
    >>> sketch = Sketch(2)
    >>> sketch.add(1, [sketch.add(0), sketch.add(0)])
    2
    >>> env = gymnasium.make("autobatch.policies.env:autobatch/Batching-v0", dags=[sketch.to_dag()])
    >>> observation, info = env.reset(seed=0)
    >>> info["action_mask"].tolist()
    [1, 0]
    >>> observation, reward, terminated, truncated, info = env.step(0)
    >>> info["action_mask"].tolist(), info["n_batches"], terminated
    ([0, 1], 1, False)
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012, as Gymnasium declares it

    def __init__(
        self,
        dags: Sequence[Dag] | None = None,
        family: Family | None = None,
        n_dags: int = POOL,
        family_seed: int = 0,
        reward: Reward = "critical",
        max_types: int | None = None,
    ) -> None:
        self._game = make_game(draw_dags(dags, family, n_dags, family_seed), 1, reward, max_types)
        self.observation_space, self.action_space = make_spaces(self._game.seats)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start a graph."""
        super().reset(seed=seed, options=options)
        self._game.deal(0, self.np_random)
        return observe_seat(self._game.seats, 0), inform_seat(self._game.seats, 0)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Run every ready node of type `action`.

        Raises:
            PolicyError: the action is no int.
        """
        self._game.move(action)
        seats = self._game.seats
        reward, done, stuck = float(seats.rewards[0]), bool(seats.done[0]), bool(self._game.stuck()[0])
        return observe_seat(seats, 0), reward, done, stuck, inform_seat(seats, 0)

    def action_masks(self) -> NDArray[np.bool_]:
        """Say which types are ready: bool[max_types], in the form that MaskablePPO needs."""
        masks: NDArray[np.bool_] = self._game.seats.mask[0].astype(np.bool_)
        return masks


@final
class BatchingVector(VectorEnv[Observation, NDArray[Any], NDArray[Any]]):
    """Schedule many graphs at once; a seat that finishes its graph starts the next one in the same step.

    Seat i plays graphs i, i + num_envs, ... of `dags`, and is seeded with `seed + i`: the same as vectors of `Batching`
    with those graphs. `info` has for each seat "action_mask" and "n_batches", and where an episode ended "final_obs"
    and "final_info".

    Args:
        num_envs: seats.
        dags, family, n_dags, family_seed, reward, max_types: see `Batching`.

    Raises:
        PolicyError: see `Batching`.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012, the same

    def __init__(
        self,
        num_envs: int = 1,
        dags: Sequence[Dag] | None = None,
        family: Family | None = None,
        n_dags: int = POOL,
        family_seed: int = 0,
        reward: Reward = "critical",
        max_types: int | None = None,
    ) -> None:
        self.num_envs = num_envs
        self._game = make_game(draw_dags(dags, family, n_dags, family_seed), num_envs, reward, max_types)
        self.single_observation_space, self.single_action_space = make_spaces(self._game.seats)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._rngs = [seeding.np_random(None)[0] for _ in range(num_envs)]

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start a graph at every seat."""
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed or [None] * self.num_envs
        for seat, number in enumerate(seeds):
            if number is not None:
                self._rngs[seat] = seeding.np_random(number)[0]
            self._game.deal(seat, self._rngs[seat])
        return observe(self._game.seats), self._info()

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[Observation, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Run a type at every seat.

        Raises:
            PolicyError: the actions are not one int per seat.
        """
        seats = self._game.seats
        self._game.move(actions)
        rewards, terminated = seats.rewards.copy(), seats.done.copy()
        truncated = self._game.stuck()
        over = terminated | truncated
        infos: dict[str, Any] = {}
        for seat in map(int, np.flatnonzero(over)):
            last = {"final_obs": observe_seat(seats, seat), "final_info": inform_seat(seats, seat)}
            infos = self._add_info(infos, last, seat)
            self._game.deal(seat, self._rngs[seat])
        return observe(seats), rewards, terminated, truncated, infos | self._info()

    def action_masks(self) -> NDArray[np.bool_]:
        """Say which types are ready: bool[num_envs, max_types]."""
        return self._game.seats.mask.astype(np.bool_)

    def _info(self) -> dict[str, Any]:
        seats, everyone = self._game.seats, np.ones(self.num_envs, np.bool_)
        return {
            "action_mask": seats.mask.copy(),
            "_action_mask": everyone,
            "n_batches": seats.n_batches.copy(),
            "_n_batches": everyone,
        }


def draw_dags(dags: Sequence[Dag] | None, family: Family | None, n_dags: int, seed: int) -> Sequence[Dag]:
    """Give the graphs of an environment, drawn from a family if none are given.

    Raises:
        PolicyError: both or neither of `dags` and `family` are given.
    """
    if (dags is None) == (family is None):
        raise PolicyError("making an environment: give either dags=, some graphs, or family=, a source of graphs.")
    if family is None:
        return dags or ()
    rng = np.random.default_rng(seed)
    return [draw(family, rng) if isinstance(family, str) else family(rng) for _ in range(n_dags)]


def make_spaces(seats: Seats) -> tuple[Any, spaces.Discrete]:
    """Give the observation and action spaces of a seat."""
    n_types = seats.mask.shape[1]
    seen = {
        "mask": spaces.MultiBinary(n_types),
        "overall": spaces.Box(0, 1, (len(OVERALL_FEATURES),), np.float32),
        "types": spaces.Box(0, 1, (n_types, len(TYPE_FEATURES)), np.float32),
    }
    return spaces.Dict(seen), spaces.Discrete(n_types)


def observe(seats: Seats) -> Observation:
    """Copy the observations of all seats."""
    return {"mask": seats.mask.copy(), "overall": seats.overall.copy(), "types": seats.types.copy()}


def observe_seat(seats: Seats, seat: int) -> Observation:
    """Copy the observation of one seat."""
    return {"mask": seats.mask[seat].copy(), "overall": seats.overall[seat].copy(), "types": seats.types[seat].copy()}


def inform_seat(seats: Seats, seat: int) -> dict[str, Any]:
    """Say which types are ready at a seat, and how many batches have run."""
    return {"action_mask": seats.mask[seat].copy(), "n_batches": int(seats.n_batches[seat])}


def register(name: str) -> None:
    """Register both environments in Gymnasium under a name, unless it is registered."""
    if name not in gymnasium.registry:
        gymnasium.register(name, entry_point=f"{__name__}:Batching", vector_entry_point=f"{__name__}:BatchingVector")
