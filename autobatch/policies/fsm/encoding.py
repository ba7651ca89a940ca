"""Encode the ready nodes as the state of a state machine: a few small ints.

An encoding turns the frontier into a vector with an entry for each type; 0 if no node of the type is ready.

    base   1 for every ready type
    max    the same, and 2 for the type with the most ready nodes
    sort   the rank of the type by its ready nodes: 1 has the most

Among types with equal numbers of nodes the lowest id comes first. With `Machine.critical` the vector has a second
half: 1 for every ready type that is critical (`native/schedule/chains.h`).
Source: base, max and sort are ED-Batch's (arXiv:2302.03851, section 2.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

State: TypeAlias = NDArray[np.int16]
Encoding: TypeAlias = Literal["base", "max", "sort"]
ENCODINGS: tuple[Encoding, ...] = ("base", "max", "sort")
LISTED: Mapping[Encoding, str] = MappingProxyType(
    {"base": "ready types", "max": "ready types and the one with most nodes", "sort": "ready types, most nodes first"}
)
"""The content of a state's description, which heads its column in tables and drawings."""


def describe_state(state: Sequence[int], names: Sequence[str], encoding: Encoding) -> str:
    """Describe a state by the names of its types: "leaf > inner (critical)", "leaf (most nodes), inner", or a set."""
    n = len(names)
    critical = state[n:] if len(state) > n else [0] * n
    shown = {}
    for a in (a for a in range(n) if state[a]):
        marks = ["most nodes"] * (encoding == "max" and state[a] == 2) + ["critical"] * bool(critical[a])
        shown[a] = f"{names[a]} ({', '.join(marks)})" if marks else names[a]
    if encoding == "sort":
        return " > ".join(shown[a] for a in sorted(shown, key=lambda a: state[a]))
    return ", ".join(shown.values())
