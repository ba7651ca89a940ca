"""Batching policies, which turn graphs into schedules. They see types, edges and counts, never tensors.

To write your own policy, subclass `FrontierPolicy`, whose `choose` names the type of each batch. Or write a `Policy`,
whose `schedule` turns a whole graph into a `Schedule`; `to_dag` gives the types and edges of the graph.
`docs/tutorials/own_policy.md` has examples of both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, cast, get_args

from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, to_dag
from autobatch.graph.sketch import to_graph
from autobatch.keywords import checked, nearest
from autobatch.missing import suggesting
from autobatch.policies.fallback import Otherwise
from autobatch.policies.files import load_policy
from autobatch.policies.fsm.drawing import draw_machine
from autobatch.policies.fsm.machine import Fsm
from autobatch.policies.learning import PUBLISHED, learn
from autobatch.policies.rules.directed import Directed, Direction
from autobatch.policies.rules.network import Deep
from autobatch.policies.rules.rules import Agenda, Critical, Depth, Score, Sufficient, Unbatched, Weights, with_origin
from autobatch.policies.search.recurring import Recurring
from autobatch.policies.search.search import Search
from autobatch.schedule.schedule import BasePolicy, Frontier, FrontierPolicy, Policy, Schedule

__all__ = [
    "AUTO", "PUBLISHED", "Agenda", "Critical", "Dag", "Deep", "Depth", "Frontier", "FrontierPolicy", "Fsm",
    "Policy", "Recurring", "Schedule", "Score", "Search", "Sufficient", "Unbatched", "Weights", "draw_machine",
    "get", "learn", "load", "names", "to_dag", "to_graph",
]  # fmt: skip

if not TYPE_CHECKING:  # or mypy would accept any name
    __getattr__ = suggesting(__name__, __all__)

_DIRECTED: dict[str, type[Directed]] = {
    policy.rule: policy for policy in (Depth, Agenda, Sufficient, Critical, Score, Deep)
}
AUTO: Mapping[str, str] = MappingProxyType({"reference": "score", "cpu": "score", "cuda": "score"})
"""The policy that "auto" selects for each backend. A second plan costs more time than it saves, on a GPU too."""
KINDS: Mapping[str, Callable[..., Directed]] = {policy.rule: policy.rebuild for policy in (Fsm, Score, Deep, Recurring)}
"""Functions that rebuild a policy from the content of a file, by rule."""
_COMPACT = "compact"
_OR = " or "


def __dir__() -> list[str]:
    return __all__


def names() -> list[str]:
    """List the names that `get` knows."""
    return [Unbatched.name, *_DIRECTED, Search.rule]


@checked(name=PolicyError, backend=PolicyError)
def get(name: str, backend: str = "reference") -> BasePolicy:
    """Return the policy called `name`.

    A rule may be followed by a direction and by "compact": "score+both+compact" plans from the inputs and from the
    outputs, deletes superfluous batches in both plans, and keeps the shorter one. "search" may be followed by a number
    of steps: "search+20000". "auto" is the rule of `AUTO` for the backend.

    The path of a saved policy (a name that ends in .json, or an existing file) loads that policy. "tree.policy.json or
    score" uses the rule `score` instead, with a warning, if the file cannot be loaded or its policy does not fit the
    model.

    Args:
        name: a name, or the path of a saved policy.
        backend: the name of the backend, which matters only for "auto"; `ab.batched` passes its own.

    Raises:
        PolicyError: the name is unknown (the message lists the known ones), or the file cannot be loaded.

    >>> get("agenda").name
    'agenda'
    >>> get("score+compact+both").name
    'score+both+compact'
    """
    first, otherwise, second = name.rpartition(_OR)
    if otherwise:
        # The second is made at once, so that its errors are raised here. `Otherwise` catches those of the first.
        return Otherwise(lambda: get(first, backend), get(second, backend))
    if name == "auto":
        name = AUTO.get(backend, AUTO["reference"])
    rule, *options = name.split("+")
    if rule == Unbatched.name and not options:
        return Unbatched()
    if rule == Search.rule and (not options or (len(options) == 1 and options[0].isdecimal())):
        return Search(*map(int, options))
    if rule not in _DIRECTED and (name.endswith(".json") or os.path.exists(name)):
        return load(name)
    directions = [option for option in options if option in get_args(Direction)]
    if (
        rule not in _DIRECTED
        or len(directions) > 1
        or options.count(_COMPACT) > 1
        or (len(options) > len(directions) + options.count(_COMPACT))
    ):
        known = ("auto", *names())
        meant = None if rule in known else nearest(rule, known)
        listed = ", ".join(map(with_origin, known))
        raise PolicyError(
            f"policy must be a known name or the path of a saved policy, got {name!r}; "
            f"{f'did you mean {meant}? The' if meant else 'the'} names are {listed}; rules also take "
            f"+backward or +both, and +{_COMPACT}; {Search.rule} takes +STEPS."
        )
    direction = cast(Direction, directions[0]) if directions else "forward"
    return _DIRECTED[rule](direction=direction, compact=_COMPACT in options)


@checked(path=PolicyError)
def load(path: str | os.PathLike[str]) -> Directed:
    """Load a policy that `policy.save` wrote.

    Args:
        path: the file.

    Raises:
        PolicyError: the file is missing, unreadable, truncated, edited, or of another format or version.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Score("both", compact=True).save(f"{folder}/rule.policy.json")
    ...     load(f"{folder}/rule.policy.json").name
    'score+both+compact'
    """
    return load_policy(path, KINDS)
