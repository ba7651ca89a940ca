"""Learn a policy from mini-batches: one call for every algorithm, with defaults that do best on mini-batches unseen.

What ED-Batch published is `learn(..., **PUBLISHED)`: it does not tell which types are critical, and plans from the
inputs only. Ours is better on most graphs, but not on all. So by default the published machine is learned beside it,
and both plan: no mini-batch gets more batches than from the published one, at twice the time of learning and planning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast

from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, to_dag
from autobatch.graph.graph import Graph
from autobatch.policies.cost import CostModel
from autobatch.policies.fsm.encoding import Encoding
from autobatch.policies.fsm.machine import Fsm, Machine, TypeNames
from autobatch.policies.fsm.qlearning import Progress, QLearning, Reward, learn_fsm
from autobatch.policies.rules.directed import Directed, Direction

T = TypeVar("T")
TERMS = ("direction", "compact", "seed", "on_progress")
"""What a lesson has besides graphs."""
PUBLISHED: Mapping[str, Any] = MappingProxyType(
    {
        "critical": False,
        "mask": False,
        "reward": "published",
        "optimism": True,
        "direction": "forward",
        "compact": False,
        "rival": False,
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
        learn_families: learns on generated graphs; None for what must know the types. Takes direction, compact, seed
            and on_progress as a lesson has them, and options.
        summary: what it learns, in a few words.
        options: the names of those that the command line has.
    """

    learn: Callable[..., Directed]
    learn_families: Callable[..., Directed] | None
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
    chosen = _find_algorithm(algorithm)
    if not graphs:
        raise PolicyError("learning a policy: no mini-batches; give at least one.")
    empty = [number for number, graph in enumerate([*graphs, *held_out]) if not graph.n_nodes]
    if empty:
        raise PolicyError(
            f"learning a policy: mini-batch {empty[0]} of {len(graphs) + len(held_out)}, counting those held out, has "
            f"no nodes; give mini-batches that hold instances."
        )
    if any(graph.types is not graphs[0].types for graph in [*graphs, *held_out]):
        raise PolicyError("learning a policy: the mini-batches are not of one model; take them from one ab.batched.")
    types = TypeNames.of(graphs[0].types)
    dags, held = ([to_dag(g)._replace(n_types=len(types.names)) for g in some] for some in (graphs, held_out))
    lesson = Lesson(dags, held, types, direction, compact, seed, on_progress)
    return chosen.learn(lesson, **options)


def learn_families(algorithm: str = "es", **options: Any) -> Directed:
    """Learn a policy for any model, on generated graphs (`autobatch.policies.rl.families`).

    With its defaults "es" learned the weights of `Score`, and "ppo" the network of `Deep`.

    Args:
        algorithm: one of `ALGORITHMS` that need not know the types.
        options: direction, compact, seed and on_progress as a `Lesson` has them; others see `learn`.

    Raises:
        PolicyError: there is no such algorithm or option, one is out of range, or a package is missing.

    Cost: some minutes.
    """
    chosen = _find_algorithm(algorithm)
    if chosen.learn_families is None:
        able = ", ".join(name for name, other in ALGORITHMS.items() if other.learn_families)
        raise PolicyError(
            f"learning a policy on generated graphs: {algorithm!r} learns {chosen.summary}, which serves the types of "
            f"one model only; take one of {able}."
        )
    return chosen.learn_families(**options)


def _find_algorithm(name: str) -> Algorithm:
    if name not in ALGORITHMS:
        raise PolicyError(f"learning a policy: algorithm {name!r} is none of {', '.join(ALGORITHMS)}.")
    return ALGORITHMS[name]


def learn_machine(
    lesson: Lesson,
    *,
    encoding: Encoding = "sort",
    critical: bool = True,
    mask: bool = True,
    reward: Reward = "critical",
    optimism: bool = False,
    rival: bool | None = None,
    costs: CostModel | None = None,
    **settings: Any,
) -> Fsm:
    """Learn a state machine by Q-learning, and a rival.

    Args:
        lesson: what from.
        encoding, critical, mask: see `Machine`.
        reward, optimism, settings: see `QLearning`.
        rival: also learn the machine as published, with this encoding and these settings, and keep the shorter plan of
            the two; by default unless the reward is "time".
        costs: for the reward "time".
    """
    terms = _terms(lesson)
    made = make_settings(QLearning, {"reward": reward, "optimism": optimism, **settings})
    learned = learn_fsm(lesson.dags, lesson.types, Machine(encoding, critical, mask), made, costs=costs, **terms)
    if rival or (rival is None and reward != "time"):
        as_published = replace(made, reward=PUBLISHED["reward"], optimism=PUBLISHED["optimism"])
        other = learn_fsm(lesson.dags, lesson.types, Machine(encoding), as_published, **terms)
        learned = learned.with_rival(other)
    return learned


def learn_weights(lesson: Lesson, **settings: Any) -> Directed:
    """Learn the weights of the rule `score`; settings are those of `Evolution`."""
    from autobatch.policies.rl.evolution import Evolution, learn_rule

    return learn_rule(lesson.dags, make_settings(Evolution, settings), **_terms(lesson))


def learn_family_weights(**options: Any) -> Directed:
    """Learn the weights of the rule `score` on generated graphs; options are terms, and settings of `Evolution`."""
    from autobatch.policies.rl import evolution

    terms, settings = _part_terms(options)
    return evolution.learn_families(make_settings(evolution.Evolution, settings), **terms)


def learn_network(lesson: Lesson, algorithm: str, log_folder: Path | None = None, **settings: Any) -> Directed:
    """Learn a network by "dqn" or "ppo"; settings are those of `DeepLearning`."""
    from autobatch.policies.rl.deep import DeepLearning, learn_deep

    costs = settings.pop("costs", None)
    made = make_settings(DeepLearning, {"algorithm": algorithm, **settings})
    return learn_deep(lesson.dags, made, costs=costs, log_folder=log_folder, **_terms(lesson))


def learn_family_network(algorithm: str, log_folder: Path | None = None, **options: Any) -> Directed:
    """Learn a network on generated graphs; options are terms, and settings of `DeepLearning`."""
    from autobatch.policies.rl import deep

    terms, settings = _part_terms(options)
    made = make_settings(deep.DeepLearning, {"algorithm": algorithm, **settings})
    return deep.learn_families(made, log_folder=log_folder, **terms)


def _part_terms(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part what a lesson has from settings of an algorithm."""
    terms = {name: option for name, option in options.items() if name in TERMS}
    return terms, {name: option for name, option in options.items() if name not in TERMS}


def _terms(lesson: Lesson) -> dict[str, Any]:
    return {"held_out": lesson.held_out, **{name: getattr(lesson, name) for name in TERMS}}


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
    states = f", {progress.states} states" if progress.states else ""
    return f"{progress.episodes} episodes, {progress.batches:.1f} batches, bound {progress.bound:.1f}{states}"


ALGORITHMS = {
    "q": Algorithm(
        learn_machine, None, "a state machine by Q-learning",
        ("encoding", "critical", "mask", "reward", "rival", "episodes"),
    ),
    **{
        name: Algorithm(
            partial(learn_network, algorithm=name), partial(learn_family_network, algorithm=name),
            f"a network by {name.upper()}", ("reward", "steps", "log_folder", "plot"),
        )
        for name in ("dqn", "ppo")
    },
    "es": Algorithm(
        learn_weights, learn_family_weights, "the weights of a rule by an evolution strategy", ("generations",)
    ),
}  # fmt: skip
