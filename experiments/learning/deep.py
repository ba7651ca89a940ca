"""Learn a network by deep reinforcement learning: MaskablePPO or DQN of stable-baselines3, on many graphs at once.

The network scores all types alike (`autobatch.policies.rules.network`), so the graphs need not have the same types: a
network learned on generated families (`learning.families`) can be used on any model. Each graph is played forward and
backward, so that one network plans in both directions. At intervals the network plans the graphs that it is measured
on; the best one is kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, chains_ahead, reverse
from autobatch.policies.fsm.practice import Reward
from autobatch.policies.fsm.qlearning import Progress
from autobatch.policies.rules.directed import Direction
from autobatch.policies.rules.network import Deep, Network
from autobatch.release import pip_install
from learning.families import draw_graphs

Algorithm: TypeAlias = Literal["ppo", "dqn"]
EXTRA = {"gymnasium": "rl", "stable_baselines3": "rl", "sb3_contrib": "rl", "torch": "rl"}


@dataclass(frozen=True)
class DeepLearning:
    """Settings of learning.

    Attributes:
        algorithm: "ppo" or "dqn".
        steps: total number of batches run, over all seats.
        seats: graphs played at once.
        hidden: the width of the network.
        learning_rate: initial value; it falls linearly to zero.
        discount: discount of rewards, per batch.
        reward: "critical" or "published", see `autobatch.policies.fsm.qlearning`.
        measure_every: steps from one measurement to the next.
    """

    algorithm: Algorithm = "ppo"
    steps: int = 100_000
    seats: int = 32
    hidden: int = 16
    learning_rate: float = 2e-3
    discount: float = 0.99
    reward: Reward = "critical"
    measure_every: int = 5_000

    def __post_init__(self) -> None:
        limits = {
            "algorithm": self.algorithm in get_args(Algorithm),
            "steps": self.steps >= 1,
            "seats": self.seats >= 1,
            "hidden": self.hidden >= 1,
            "learning_rate": self.learning_rate > 0,
            "discount": 0 <= self.discount <= 1,
            "measure_every": self.measure_every >= 1,
        }
        for name, good in limits.items():
            if not good:
                raise PolicyError(
                    f"learning a network: {name}={getattr(self, name)!r} is out of range; see DeepLearning."
                )


def learn_families(
    settings: DeepLearning = DeepLearning(),
    *,
    n_graphs: int = 256,
    n_held_out: int = 128,
    direction: Direction = "both",
    compact: bool = True,
    seed: int = 0,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    log_folder: str | os.PathLike[str] | None = None,
) -> Deep:
    """Learn a network on generated families only, to be used on any model.

    With its defaults, as in `autobatch policy learn families --algorithm ppo`, this learned the network of the package.

    Args:
        settings: settings of learning.
        n_graphs, n_held_out: numbers of graphs to learn from, and of others that decide which network is the best.
        direction, compact, seed, on_progress, log_folder: see `learn_deep`.

    Raises:
        PolicyError: a package is missing.
    """
    graphs, held_out = (draw_graphs(n, [seed, part]) for part, n in enumerate((n_graphs, n_held_out)))
    return learn_deep(
        graphs, settings, held_out=held_out, direction=direction, compact=compact, seed=seed, on_progress=on_progress,
        log_folder=log_folder,
    )  # fmt: skip


def learn_deep(
    dags: Sequence[Dag],
    settings: DeepLearning = DeepLearning(),
    *,
    held_out: Sequence[Dag] = (),
    direction: Direction = "both",
    compact: bool = True,
    seed: int = 0,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    log_folder: str | os.PathLike[str] | None = None,
) -> Deep:
    """Learn a network on some graphs.

    Args:
        dags: at least one; each is played forward and backward.
        settings: settings of learning.
        held_out: graphs that decide which network is the best; by default `dags`.
        direction, compact: see `Directed`.
        seed: the same seed gives the same network, with the same version of the libraries.
        on_progress: called after every measurement; it counts no states.
        log_folder: folder for TensorBoard scalars.

    Raises:
        PolicyError: there are no graphs, one has no nodes, or a package is missing.
    """
    require_packages(*(["tensorboard"] if log_folder is not None else []))
    import torch

    played = [*dags, *map(reverse, dags)]
    measured = [*(held_out or dags)]
    with _one_thread():
        torch.manual_seed(seed)
        model, scorer_of = _make_model(played, settings, seed, log_folder)
        best = _Best(measured, direction, compact, scorer_of, on_progress)
        best.measure(model)
        model.learn(settings.steps, callback=best.callback(settings.measure_every))
        best.measure(model)
    about = {
        "settings": asdict(settings),
        "seed": seed,
        "graphs": len(dags),
        "curve": [asdict(progress) for progress in best.curve],
    }
    return Deep(best.network, direction, compact, about)


def require_packages(*more: str) -> None:
    """Raise a PolicyError if a package is missing."""
    for package in (*EXTRA, *more):
        if find_spec(package) is None:
            raise PolicyError(
                f"learning a network: the package {package} is not installed; "
                f"{pip_install(EXTRA.get(package, package))}, or learn a policy that needs none, such as fsm."
            )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit torch to one thread: small networks are not faster with more, and sums are the same on all machines."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _make_model(
    dags: Sequence[Dag],
    settings: DeepLearning,
    seed: int,
    log_folder: str | os.PathLike[str] | None,
) -> tuple[Any, Callable[[Any], Any]]:
    """Make the learner, and a function that returns its scoring module."""
    from sb3_contrib import MaskablePPO
    from stable_baselines3.common.torch_layers import CombinedExtractor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

    from autobatch.policies.env import Batching
    from learning.torch_policy import make_actor_critic, make_masked_dqn

    n_types = max(dag.n_types for dag in dags)
    own = [dags[seat :: settings.seats] or [dags[seat % len(dags)]] for seat in range(settings.seats)]
    env = DummyVecEnv([partial(Batching, some, settings.reward, n_types) for some in own])
    shared: dict[str, Any] = {
        "env": VecMonitor(env),
        "learning_rate": lambda left: settings.learning_rate * left,
        "gamma": settings.discount,
        "policy_kwargs": {"features_extractor_class": CombinedExtractor},
        "tensorboard_log": None if log_folder is None else os.fspath(log_folder),
        "seed": seed,
        "device": "cpu",
    }
    if settings.algorithm == "ppo":
        model = MaskablePPO(
            make_actor_critic(settings.hidden), n_steps=128, batch_size=512, n_epochs=4, gae_lambda=0.9, **shared
        )
        return model, lambda learned: learned.policy.mlp_extractor.actor
    learner, policy = make_masked_dqn(settings.hidden)
    model = learner(
        policy, buffer_size=100_000, learning_starts=settings.seats * 32, batch_size=256, train_freq=4,
        gradient_steps=settings.seats // 8 + 1, target_update_interval=2000, exploration_fraction=0.3, **shared,
    )  # fmt: skip
    return model, lambda learned: learned.policy.q_net.scorer


class _Best:
    """Measures networks, and keeps the best."""

    def __init__(
        self,
        dags: Sequence[Dag],
        direction: Direction,
        compact: bool,
        scorer_of: Callable[[Any], Any],
        on_progress: Callable[[Progress], None],
    ) -> None:
        self.dags, self.direction, self.compact = dags, direction, compact
        self.scorer_of, self.on_progress = scorer_of, on_progress
        self.bound = float(np.mean([chains_ahead(dag).max(axis=0).sum() for dag in dags]))
        self.curve: list[Progress] = []
        self.episodes = 0
        self.fewest = np.inf
        self.network: Network

    def measure(self, model: Any) -> Progress:
        """Plan with what a model has learned so far."""
        from learning.torch_policy import to_weights

        network = to_weights(self.scorer_of(model))
        policy = Deep(network, self.direction, self.compact)
        batches = float(np.mean([len(policy.plan_best(dag)) for dag in self.dags]))
        if batches < self.fewest:
            self.network, self.fewest = network, batches
        progress = Progress(self.episodes, batches, self.bound, 0)
        self.curve.append(progress)
        self.on_progress(progress)
        return progress

    def callback(self, every: int) -> Any:
        """Make the callback that stable-baselines3 calls at every step."""
        from stable_baselines3.common.callbacks import BaseCallback

        best = self

        class Measure(BaseCallback):
            def _on_step(self) -> bool:
                best.episodes += int(self.locals["dones"].sum())
                if self.num_timesteps // every > (self.num_timesteps - self.training_env.num_envs) // every:
                    progress = best.measure(self.model)
                    self.logger.record("measured/batches", progress.batches)
                    self.logger.record("measured/bound", progress.bound)
                return True

        return Measure()


def plot_curve(policy: Deep, path: str | os.PathLike[str]) -> None:
    """Plot the learning curve as PNG: batches by episodes, and the chain bound.

    Raises:
        PolicyError: matplotlib is missing, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PolicyError(
            f"drawing how learning went to {os.fspath(path)!r}: the package matplotlib is not installed; "
            f"{pip_install('plot')}."
        ) from error
    curve = policy.about["curve"]
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="episodes", ylabel="batches per mini-batch, mean")
    axes.plot([p["episodes"] for p in curve], [p["batches"] for p in curve], label=policy.name)
    axes.plot([p["episodes"] for p in curve], [p["bound"] for p in curve], "--", label="chain bound")
    axes.legend()
    try:
        figure.savefig(Path(path), format="png")
    except OSError as error:
        raise PolicyError(
            f"drawing how learning went to {os.fspath(path)!r}: {error.strerror}; give a file that can be written."
        ) from error
