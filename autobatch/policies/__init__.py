"""Batching policies: how a graph becomes a schedule. They see types, edges and counts, never tensors.

To write your own, subclass `FrontierPolicy`, which is asked for a type before every batch, or make a `Policy`, which
turns the types and edges of a graph (`to_dag`) into a `Schedule`; `docs/tutorials/own_policy.md` has examples of both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import cast, get_args

from autobatch.errors import PolicyError
from autobatch.graph.dag import to_dag
from autobatch.keywords import checked, nearest
from autobatch.policies.fallback import Otherwise
from autobatch.policies.files import load_policy
from autobatch.policies.fsm.machine import Fsm
from autobatch.policies.learning import PUBLISHED
from autobatch.policies.rules.directed import Directed, Direction
from autobatch.policies.rules.heuristics import Agenda, Depth, Unbatched
from autobatch.policies.rules.network import Deep
from autobatch.policies.rules.rules import Critical, Score, Sufficient, Weights
from autobatch.policies.search.recurring import Recurring
from autobatch.policies.search.search import Search
from autobatch.schedule.schedule import BasePolicy, Frontier, FrontierPolicy, Policy, Schedule

__all__ = [
    "AUTO", "PUBLISHED", "Agenda", "Critical", "Deep", "Depth", "Frontier", "FrontierPolicy", "Fsm",
    "Policy", "Recurring", "Schedule", "Score", "Search", "Sufficient", "Unbatched", "Weights", "get", "load", "names",
    "to_dag",
]  # fmt: skip

_DIRECTED: dict[str, type[Directed]] = {
    policy.rule: policy for policy in (Depth, Agenda, Sufficient, Critical, Score, Deep)
}
AUTO: Mapping[str, str] = MappingProxyType({"reference": "score", "cpu": "score", "cuda": "score+both+compact"})
"""What "auto" stands for, by backend: a GPU runs while the processor plans, so that planning may take longer there."""
KINDS: Mapping[str, Callable[..., Directed]] = {policy.rule: policy.rebuild for policy in (Fsm, Score, Deep, Recurring)}
"""The policies that files hold."""
_COMPACT = "compact"
_OR = " or "


def names() -> list[str]:
    """List the names that `get` knows."""
    return [Unbatched.name, *_DIRECTED, Search.rule]


@checked(name=PolicyError, backend=PolicyError)
def get(name: str, backend: str = "reference") -> BasePolicy:
    """Make the policy called `name`, for the backend called `backend`; `ab.batched` gives its own.

    Rules may be followed by a direction and by "compact": "score+both+compact" plans from the inputs and from the
    outputs, deletes superfluous batches in both, and keeps the shorter schedule. "search" may be followed by a
    number of steps: "search+20000". "auto" is the rule of `AUTO` for the backend; nothing else depends on it.

    The path of a saved policy (a name that ends in .json, or an existing file) loads that policy; "tree.policy.json or
    score" falls back to the rule `score`, with a warning, if the file or the model is refused.

    Raises:
        PolicyError: there is no such policy (the message lists the known ones), or the file is refused.

    >>> get("agenda").name
    'agenda'
    >>> get("score+compact+both").name
    'score+both+compact'
    """
    first, otherwise, second = name.rpartition(_OR)
    if otherwise:
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
        raise PolicyError(
            f"choosing a policy: {name!r} is not known; {f'did you mean {meant}? The' if meant else 'the'} policies "
            f"are {', '.join(names())}, rules also with +backward or +both, and with +{_COMPACT}, {Search.rule} with "
            f"+STEPS, and auto; or give the path of a saved policy."
        )
    direction = cast(Direction, directions[0]) if directions else "forward"
    return _DIRECTED[rule](direction=direction, compact=_COMPACT in options)


@checked(path=PolicyError)
def load(path: str | os.PathLike[str]) -> Directed:
    """Read a policy that `policy.save` wrote.

    Args:
        path: of the file.

    Raises:
        PolicyError: the file is missing, unreadable, truncated, edited, of another format or of another version.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Score("both", compact=True).save(f"{folder}/rule.policy.json")
    ...     load(f"{folder}/rule.policy.json").name
    'score+both+compact'
    """
    return load_policy(path, KINDS)
