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

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

State: TypeAlias = NDArray[np.int16]
Encoding: TypeAlias = Literal["base", "max", "sort"]
ENCODINGS: tuple[Encoding, ...] = ("base", "max", "sort")


def describe_state(state: Sequence[int], names: Sequence[str], encoding: Encoding) -> str:
    """Describe a state by the names of its types.

    They are written "leaf > inner" by rank, "leaf* inner" with the largest marked, or as a set. Critical types are
    followed by "!".
    """
    n = len(names)
    critical = state[n:] if len(state) > n else [0] * n
    shown = {a: names[a] + ("!" if critical[a] else "") for a in range(n) if state[a]}
    if encoding == "sort":
        return " > ".join(shown[a] for a in sorted(shown, key=lambda a: state[a]))
    return " ".join(text + ("*" if state[a] == 2 else "") for a, text in shown.items())
