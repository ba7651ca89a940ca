"""Learn a state machine from mini-batches, with the defaults that did best on unseen mini-batches.

`learn(..., **PUBLISHED)` is the machine of ED-Batch: its states do not include criticality, and it plans from the
inputs only. Ours is better on most graphs, but not on all. So by default the published machine is learned as a rival,
and both plan: no mini-batch gets more batches than from the published one, at twice the time of learning and planning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, to_dag
from autobatch.graph.graph import Graph
from autobatch.keywords import nearest
from autobatch.policies.fsm.machine import Fsm, Machine, TypeNames
from autobatch.policies.fsm.qlearning import (
    DeviceName,
    Each,
    Progress,
    QLearning,
    check_device,
    in_turn,
    learn_table,
    make_lessons,
    to_fsm,
)

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
"""Options of `learn_policy` for the machine as ED-Batch published it."""
MACHINE: Mapping[str, Any] = MappingProxyType({"encoding": "sort", "critical": True, "mask": True})
SETTINGS: Mapping[str, Any] = MappingProxyType({"reward": "critical", "optimism": False})
EVALUATE_EVERY: Mapping[DeviceName, int] = MappingProxyType({"cpu": QLearning.evaluate_every, "cuda": 16})
"""Episodes between rollouts, by device. On a GPU also those between changes of the table, of which learning takes some
60, however many episodes each learns from: after 20, published machines for lattices got up to a quarter more batches
than those learned on the processor, after 60 at most 1% more (16 lattices; 10, 50 and 200 episodes at once, five seeds
each)."""
TERMS = ("direction", "seed", "device")
"""Options of `make_lessons`."""


def learn(
    graphs: Sequence[Graph],
    *,
    held_out: Sequence[Graph] = (),
    rival: bool = True,
    each: Each = in_turn,
    **options: Any,
) -> Fsm:
    """Learn a state machine from the graphs of mini-batches, by Q-learning, and a rival.

    Args:
        graphs: at least one, with one table of types, such as `Batched.merged` gives.
        held_out: mini-batches that select the best of the machines met during learning; by default `graphs`.
        rival: also learn the published machine, with this encoding and these settings, and keep the shorter plan of the
            two.
        each: does the lessons, one for each table; what they give does not depend on where and in which order it does.
        options: direction ("both" by default), compact (True), seed, device ("cpu") and on_progress, see `learn_fsm`;
            encoding ("sort"), critical (True) and mask (True), see `Machine`; reward ("critical"),
            optimism (False) and others, see `QLearning`. On the device "cuda", `evaluate_every` (16) episodes are
            played at once and then learned from: to fill a GPU give thousands, and 60 times as many `episodes`.

    Raises:
        PolicyError: an option does not exist or is out of range, there are no graphs, or the device cannot hold them.
        BackendError: there is no GPU, or it cannot be used; says what is missing.
    """
    dags, held, types = read_lesson(graphs, held_out)
    terms: dict[str, Any] = {"direction": "both", "held_out": held}
    terms |= {name: options.pop(name) for name in TERMS if name in options}
    compact, report = options.pop("compact", True), options.pop("on_progress", lambda progress: None)
    machine = Machine(**{name: options.pop(name, default) for name, default in MACHINE.items()})
    device = check_device(terms.get("device", "cpu"))
    known = [setting.name for setting in fields(QLearning)]
    if unknown := options.keys() - set(known):
        names = [*known, *MACHINE, *TERMS, "compact", "held_out", "on_progress", "rival"]
        near = nearest(min(unknown), names)
        told = f"did you mean {near!r}?" if near else f"the options are {', '.join(sorted(names))}."
        raise PolicyError(f"learning a policy: there is no option {min(unknown)!r}; {told}")
    settings = QLearning(**{**SETTINGS, "evaluate_every": EVALUATE_EVERY[device], **options})
    machines = [(machine, settings)]
    if rival:
        as_published = replace(settings, reward=PUBLISHED["reward"], optimism=PUBLISHED["optimism"])
        machines.append((Machine(machine.encoding), as_published))
    lessons = [make_lessons(dags, *one, **terms) for one in machines]
    learned = iter(each(learn_table, [lesson for some in lessons for lesson in some], report))
    made = [to_fsm(some, [next(learned) for _ in some], types, terms["direction"], compact) for some in lessons]
    return made[0].with_rival(made[1]) if rival else made[0]


def read_lesson(graphs: Sequence[Graph], held_out: Sequence[Graph]) -> tuple[list[Dag], list[Dag], TypeNames]:
    """Give the dags of mini-batches and of those held out, and their types; PolicyError unless of one model."""
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
    return dags, held, types


@contextmanager
def show_learning(visible: bool) -> Iterator[Callable[[Progress], None]]:
    """Show the progress of learning; gives the function to report progress to."""
    if not visible:
        yield lambda progress: None
        return
    from autobatch.display.progress import show_status

    with show_status("learning") as show:
        yield lambda progress: show(describe_progress(progress))


def describe_progress(progress: Progress) -> str:
    """Write a line about a rollout.

    >>> describe_progress(Progress(episodes=50, batches=31.5, bound=30.0, states=17))
    '50 episodes, 31.5 batches, bound 30.0, 17 states'
    """
    states = f", {progress.states} states" if progress.states else ""
    return f"{progress.episodes} episodes, {progress.batches:.1f} batches, bound {progress.bound:.1f}{states}"
