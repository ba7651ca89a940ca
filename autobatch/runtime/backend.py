"""What every backend does: runs plans forward and backward, and counts what that took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from autobatch.ops.randomness import Randomness
from autobatch.plan.plan import Batch, Plan, PlannedTypes


class Counts(NamedTuple):
    """What running a plan took; does not depend on the machine.

    Attributes:
        launches: kernels called, scatters, gathers and copies included.
        copied_bytes: bytes moved by launches that compute nothing.
        allocations: times that the buffer, or scratch memory, had to be made anew.
        buffer_bytes: what both hold, from run to run.
    """

    launches: int
    copied_bytes: int
    allocations: int
    buffer_bytes: int


class Timer(Protocol):
    """Takes the time of every batch."""

    def lap(self, stage: str, batch: Batch | None) -> None:
        """Note the time: what a stage did since the last lap was to run this batch.

        Args:
            stage: "forward" or "backward"; or "weights", the gradients of parameters, where a batch is all rows of a
                type, with or without bases.
            batch: None for what a stage does before its first batch.
        """


class Backend(Protocol):
    """Runs plans; keeps its buffers from one run to the next.

    Attributes:
        timer: who is told when each batch is done; None, at the cost of one test per batch, where nobody asks. A
            backend that runs several batches in one go runs them one by one while there is a timer. The results are
            the same, to the bit.
        precision: how matrix products are computed, see `autobatch.ir.precision`; set before each `forward`.
    """

    name: str
    timer: Timer | None
    precision: str

    def scratch_size(
        self, plan: Plan, cells: PlannedTypes, dtype: np.dtype[Any], precision: str, n_threads: int
    ) -> int:
        """Elements of the memory that running a plan takes beside its buffer, and that is kept from run to run."""

    def forward(
        self,
        plan: Plan,
        cells: PlannedTypes,
        dtype: np.dtype[Any],
        random: Randomness,
        max_bytes: int | None = None,
    ) -> list[Any]:
        """Compute all values; return what the user asked for, per slot `[rows, *shape]`, as copies.

        `random` has the seed and step of all draws, the key of each instance `[B]`, and whether dropout is on where a
        cell has no module to say so. The keys in the graph of the plan may be those of other instances: a plan may
        run again, for equal graphs.
        The buffer and scratch memory have `max_bytes` or less afterwards, if the plan's have; None is no limit.
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
