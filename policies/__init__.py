"""Batching policies: how a graph becomes a schedule. They see types, edges and counts, never tensors."""

from __future__ import annotations

from autobatch.errors import PolicyError
from autobatch.policies.heuristics import Agenda, Depth, Unbatched
from autobatch.schedule import Policy

__all__ = ["Agenda", "Depth", "Unbatched", "get", "names"]

_BUILT_IN: dict[str, type[Policy]] = {policy.name: policy for policy in (Unbatched, Depth, Agenda)}


def names() -> list[str]:
    """List the names that `get` knows."""
    return list(_BUILT_IN)


def get(name: str) -> Policy:
    """Make the policy called `name`.

    Raises:
        PolicyError: there is no such policy; the message lists those that there are.

    >>> get("agenda").name
    'agenda'
    """
    if name not in _BUILT_IN:
        raise PolicyError(f"choosing a policy: {name!r} is not known; the policies are {', '.join(names())}.")
    return _BUILT_IN[name]()
