"""Learn a policy from mini-batches: one call for every algorithm, with defaults that do best on mini-batches unseen.

What ED-Batch published is `learn(..., **PUBLISHED)`: it does not tell which types are critical, and plans from the
inputs only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast

from autobatch.dag import Dag, to_dag
from autobatch.errors import PolicyError
from autobatch.graph import Graph
from autobatch.policies.cost import CostModel
from autobatch.policies.directed import Directed, Direction
from autobatch.policies.encoding import Encoding
from autobatch.policies.fsm import Fsm, Machine, TypeNames
from autobatch.policies.qlearning import Progress, QLearning, Reward, learn_fsm

T = TypeVar("T")
PUBLISHED: Mapping[str, Any] = MappingProxyType(
    {
        "critical": False,
        "mask": False,
        "reward": "published",
        "optimism": True,
        "direction": "forward",
        "compact": False,
    }
)


@dataclass(frozen=True)
class Lesson:
    """What to learn from, whatever the algorithm.

    Attributes:
        dags: mini-batches, at least one, with one table of types.
        held_out: mini-batches that decide which of the policies met on the way is the best; by default `dags`.
        types: of all of them.
        direction, compact: see `Directed`.
        seed: same seed, same policy.
        on_progress: is told of every measurement.
    """

    dags: Sequence[Dag]
    held_out: Sequence[Dag]
    types: TypeNames
    direction: Direction = "both"
    compact: bool = True
    seed: int = 0
    on_progress: Callable[[Progress], None] = field(default=lambda progress: None)


class Algorithm(NamedTuple):
    """A way to learn.

    Attributes:
        learn: takes a lesson, and options by keyword.
        summary: what it learns, in a few words.
        options: the names of those that the command line has.
    """

    learn: Callable[..., Directed]
    summary: str
    options: tuple[str, ...]


def learn(
    graphs: Sequence[Graph],
    algorithm: str = "q",
    *,
    held_out: Sequence[Graph] = (),
    direction: Direction = "both",
    compact: bool = True,
    seed: int = 0,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    **options: Any,
) -> Directed:
    """Learn a policy from the graphs of mini-batches.

    Args:
        graphs: at least one, with one table of types, such as `Batched.merged` gives.
        algorithm: one of `ALGORITHMS`.
        held_out, direction, compact, seed, on_progress: see `Lesson`.
        options: of the algorithm: see `learn_machine`, `Evolution` and `DeepLearning`.

    Raises:
        PolicyError: there is no such algorithm or option, one is out of range, or there are no graphs.
    """
    if algorithm not in ALGORITHMS:
        raise PolicyError(f"learning a policy: algorithm {algorithm!r} is none of {', '.join(ALGORITHMS)}.")
    if not graphs:
        raise PolicyError("learning a policy: no mini-batches; give at least one.")
    if any(graph.types is not graphs[0].types for graph in [*graphs, *held_out]):
        raise PolicyError("learning a policy: the mini-batches are not of one model; take them from one ab.batched.")
    types = TypeNames.of(graphs[0].types)
    dags, held = ([to_dag(g)._replace(n_types=len(types.names)) for g in some] for some in (graphs, held_out))
    lesson = Lesson(dags, held, types, direction, compact, seed, on_progress)
    return ALGORITHMS[algorithm].learn(lesson, **options)


def learn_machine(
    lesson: Lesson,
    *,
    encoding: Encoding = "sort",
    critical: bool = True,
    mask: bool = True,
    reward: Reward = "critical",
    optimism: bool = False,
    costs: CostModel | None = None,
    **settings: Any,
) -> Fsm:
    """Learn a state machine by Q-learning.

    Args:
        lesson: what from.
        encoding, critical, mask: see `Machine`.
        reward, optimism, settings: see `QLearning`.
        costs: for the reward "time".
    """
    made = make_settings(QLearning, {"reward": reward, "optimism": optimism, **settings})
    return learn_fsm(lesson.dags, lesson.types, Machine(encoding, critical, mask), made, costs=costs, **_terms(lesson))


def learn_weights(lesson: Lesson, **settings: Any) -> Directed:
    """Learn the weights of the rule `score`; settings are those of `Evolution`."""
    from autobatch.policies.evolution import Evolution, learn_rule

    return learn_rule(lesson.dags, make_settings(Evolution, settings), **_terms(lesson))


def learn_network(lesson: Lesson, algorithm: str, **settings: Any) -> Directed:
    """Learn a network by "dqn" or "ppo"; settings are those of `DeepLearning`."""
    from autobatch.policies.deep import DeepLearning, learn_deep

    costs = settings.pop("costs", None)
    made = make_settings(DeepLearning, {"algorithm": algorithm, **settings})
    return learn_deep(lesson.dags, made, costs=costs, **_terms(lesson))


def _terms(lesson: Lesson) -> dict[str, Any]:
    return {
        "held_out": lesson.held_out,
        "direction": lesson.direction,
        "compact": lesson.compact,
        "seed": lesson.seed,
        "on_progress": lesson.on_progress,
    }


def make_settings(kind: type[T], given: Mapping[str, Any]) -> T:
    """Make settings of a kind; PolicyError for one that it does not have."""
    names = [setting.name for setting in fields(cast(Any, kind))]
    unknown = given.keys() - set(names)
    if unknown:
        raise PolicyError(
            f"learning a policy: there is no option {min(unknown)!r}; the settings of {kind.__name__} are "
            f"{', '.join(names)}."
        )
    return kind(**given)


@contextmanager
def show_learning(visible: bool) -> Iterator[Callable[[Progress], None]]:
    """Show on standard error how learning goes; what it gives is to be told."""
    if not visible:
        yield lambda progress: None
        return
    from rich.console import Console

    with Console(stderr=True).status("learning") as status:
        yield lambda progress: status.update(describe_progress(progress))


def describe_progress(progress: Progress) -> str:
    """Write a measurement.

    >>> describe_progress(Progress(episodes=50, batches=31.5, bound=30.0, states=17))
    '50 episodes, 31.5 batches, bound 30.0, 17 states'
    """
    return (
        f"{progress.episodes} episodes, {progress.batches:.1f} batches, bound {progress.bound:.1f}, "
        f"{progress.states} states"
    )


ALGORITHMS = {
    "q": Algorithm(
        learn_machine, "a state machine by Q-learning", ("encoding", "critical", "mask", "reward", "episodes")
    ),
    "dqn": Algorithm(partial(learn_network, algorithm="dqn"), "a network by DQN", ("reward", "steps")),
    "ppo": Algorithm(partial(learn_network, algorithm="ppo"), "a network by PPO", ("reward", "steps")),
    "es": Algorithm(learn_weights, "the weights of a rule by an evolution strategy", ("generations",)),
}
