"""Learn a state machine from mini-batches, with the defaults that did best on unseen mini-batches.

`learn(..., **PUBLISHED)` learns the machine of ED-Batch: its states do not include criticality, and it plans from the
inputs only. Our machine is better on most graphs, but not on all. By default the published machine is therefore learned
as well, as a *rival*: both plan, and the cheaper plan is kept. No mini-batch then gets more batches than from the
published machine, at twice the time of learning and planning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, to_dag
from autobatch.graph.graph import Graph, NamedTypes, Types
from autobatch.keywords import checked, nearest
from autobatch.policies.fsm.machine import Fsm, Machine, TypeNames
from autobatch.policies.fsm.qlearning import Each, Progress, QLearning, in_turn, learn_table, make_lessons, to_fsm

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
TERMS = ("direction", "seed")
"""Options that are passed to `make_lessons`."""


@checked(graphs=PolicyError, held_out=PolicyError)
def learn(
    graphs: Sequence[Graph],
    *,
    held_out: Sequence[Graph] = (),
    rival: bool = True,
    progress: bool = False,
    each: Each = in_turn,
    **options: Any,
) -> Fsm:
    """Learn a state machine, and a rival, by Q-learning on graphs; `Batched.learn_policy` does so for mini-batches.

    It minimizes the number of batches or, for graphs of a `Dag` with costs, the total cost of the batches.

    Args:
        graphs: at least one, all with one table of types: mini-batches from `Batched.merged`, or your own graphs from
            `to_graph`.
        held_out: mini-batches that select the best of the machines met during learning; by default `graphs`.
        rival: whether to also learn the published machine, with this encoding and, except `reward` and `optimism`,
            these settings, and to keep the cheaper of the two plans.
        progress: whether to show the progress, on standard error or in a notebook output.
        each: runs the lessons, one for each table; the results do not depend on their order or process.
        options: `direction`, in which to plan: "forward", "backward" or "both" (default); `compact`: whether the policy
            deletes superfluous batches (default True); `seed`: an int of at least 0 (default 0; equal seeds give equal
            policies); `on_progress`: a function that gets each `Progress`, in place of `progress`. Also the attributes
            of `Machine`, by default encoding="sort", critical=True and mask=True; and those of `QLearning`, by default
            reward="critical" and optimism=False.

    Raises:
        PolicyError: an option does not exist or is out of range, no graph is given, a graph has no nodes, or the graphs
            differ in their types.

    >>> from autobatch.graph.sketch import to_graph
    >>> dag = Dag.from_edges([0, 0, 1, 2, 1], [(0, 2), (1, 3), (3, 4)])
    >>> policy = learn([to_graph(dag, ["read", "add", "scale"])], seed=0)
    >>> policy.schedule(to_graph(dag, ["read", "add", "scale"])).n_batches
    3
    """
    dags, held, types = read_lesson(graphs, held_out)
    terms: dict[str, Any] = {"direction": "both", "held_out": held}
    terms |= {name: options.pop(name) for name in TERMS if name in options}
    compact, report = options.pop("compact", True), options.pop("on_progress", None)
    if options.pop("device", None) is not None:
        # Level 3 is the caller, because `checked` wraps this function.
        warnings.warn("learn(device=) will be removed in 0.4; the CPU learns policies.", FutureWarning, stacklevel=3)
    machine = Machine(**{name: options.pop(name, default) for name, default in MACHINE.items()})
    known = [setting.name for setting in fields(QLearning)]
    if unknown := options.keys() - set(known):
        names = [*known, *MACHINE, *TERMS, "compact", "held_out", "on_progress", "progress", "rival"]
        near = nearest(min(unknown), names)
        told = f"did you mean {near!r}?" if near else f"the options are {', '.join(sorted(names))}."
        raise PolicyError(f"learning a policy: unknown option {min(unknown)!r}; {told}")
    settings = QLearning(**{**SETTINGS, **options})
    machines = [(machine, settings)]
    if rival:
        as_published = replace(settings, reward=PUBLISHED["reward"], optimism=PUBLISHED["optimism"])
        machines.append((Machine(machine.encoding), as_published))
    lessons = [make_lessons(dags, *one, **terms) for one in machines]
    with show_learning(progress) as shown:
        # One call for the lessons of both machines, so that `each` may run all of them at once.
        learned = iter(each(learn_table, [lesson for some in lessons for lesson in some], report or shown))
    made = [to_fsm(some, [next(learned) for _ in some], types, terms["direction"], compact) for some in lessons]
    return made[0].with_rival(made[1]) if rival else made[0]


def read_lesson(graphs: Sequence[Graph], held_out: Sequence[Graph]) -> tuple[list[Dag], list[Dag], TypeNames]:
    """Return the dags of the mini-batches, those of the held-out ones, and their types.

    Raises:
        PolicyError: no mini-batch is given, one has no nodes, or their types differ.
    """
    if not graphs:
        raise PolicyError("learning a policy: there must be at least one mini-batch, got none.")
    empty = [number for number, graph in enumerate([*graphs, *held_out]) if not graph.n_nodes]
    if empty:
        raise PolicyError(
            f"learning a policy: mini-batch {empty[0]} of {len(graphs) + len(held_out)} (held-out ones included) has "
            f"no nodes; give mini-batches with instances."
        )
    first = graphs[0].types
    for number, graph in enumerate([*graphs, *held_out]):
        if graph.types is not first and graph.types != first:
            raise PolicyError(f"learning a policy: {_describe_difference(first, graph.types, number)}.")
    types = TypeNames.of(first)
    dags, held = ([to_dag(g)._replace(n_types=len(types.names)) for g in some] for some in (graphs, held_out))
    return dags, held, types


def _describe_difference(first: Types, types: Types, number: int) -> str:
    """Describe how the types of graph `number`, held-out ones counted last, differ from those of graph 0."""
    for type_id, (one, other) in enumerate(zip_longest(first.names, types.names)):
        if one != other:
            here, there = ("missing" if name is None else repr(name) for name in (one, other))
            return (
                f"all graphs must have the same types, but type {type_id} is {here} in graph 0 and {there} in graph "
                f"{number}; give to_graph the same names each time, or record mini-batches with one ab.batched"
            )
    if isinstance(first, NamedTypes) and isinstance(types, NamedTypes):
        return f"all graphs must have the same costs, but they are {types.costs} in graph {number}, not {first.costs}"
    return f"all mini-batches must be of one model, but graph {number} is not; record them with one ab.batched"


@contextmanager
def show_learning(visible: bool) -> Iterator[Callable[[Progress], None]]:
    """Show the progress of learning; yield the function that reports it."""
    if not visible:
        yield lambda progress: None
        return
    from autobatch.display.progress import show_status

    with show_status("learning") as show:
        yield lambda progress: show(describe_progress(progress))


def describe_progress(progress: Progress) -> str:
    """Describe a rollout in one line.

    >>> describe_progress(Progress(episodes=50, batches=31.5, bound=30.0, states=17))
    '50 episodes, 31.5 batches, bound 30.0, 17 states'
    """
    states = f", {progress.states} states" if progress.states else ""
    return f"{progress.episodes} episodes, {progress.batches:.1f} batches, bound {progress.bound:.1f}{states}"
