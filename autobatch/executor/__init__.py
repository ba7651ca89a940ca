"""Backends: what runs a plan. `reference` interprets cells op by op and is the oracle for every other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from autobatch.errors import BackendError
from autobatch.plan import Plan, PlannedTypes
from autobatch.randomness import Randomness

NAMES = ("reference",)


class Counts(NamedTuple):
    """What running a plan took; does not depend on the machine.

    Attributes:
        launches: kernels called, scatters, gathers and copies included.
        copied_bytes: bytes moved by launches that compute nothing.
        allocations: times that the buffer had to grow.
    """

    launches: int
    copied_bytes: int
    allocations: int


class Backend(Protocol):
    """Runs plans; keeps its buffers from one run to the next."""

    name: str

    def forward(self, plan: Plan, cells: PlannedTypes, dtype: np.dtype[Any], random: Randomness) -> list[Any]:
        """Compute all values; return what the user asked for, per slot `[rows, *shape]`, as copies.

        `random` has the seed and step of all draws, and whether dropout is on where a cell has no module to say so.
        """

    def backward(self, seeds: Mapping[int, Any], gradients: Mapping[int, Any]) -> None:
        """Differentiate the run that `forward` just made.

        Args:
            seeds: per slot the gradient of its rows; other slots have none.
            gradients: by `id` of each trainable parameter what its gradient is added to: an array, or, for those in
                `cells.row_parameters`, `Rows`. The order of all additions is that of the plan, so that the same run
                gives the same bits.
        """

    def counts(self) -> Counts:
        """What was run since `forward` was last called."""


def make_backend(name: str) -> Backend:
    """The backend of this name ("auto": the best that this machine can run)."""
    from autobatch.executor.reference import Reference

    if name not in (*NAMES, "auto"):
        raise BackendError(f"there is no backend {name!r} in this version; there are {', '.join(NAMES)} and auto.")
    return Reference()
