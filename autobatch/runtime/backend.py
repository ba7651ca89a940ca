"""What every backend does: prepares plans on its device, runs them forward and backward, and counts what that took.

    backend.prepare(plan, cells, options)     an `Executable`, which says how many bytes a run of it takes
    executable.forward(randomness)            a `Run`: the outputs, and all that backward needs
    run.backward(seeds, into)                 adds to the gradients of parameters

Any number of executables and runs may be alive, of one function or of several. Calls take turns, see
`autobatch.system.turns`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from autobatch.ops.randomness import Randomness
from autobatch.params.rows import Gradient
from autobatch.plan.plan import Batch, Plan, PlannedTypes


@dataclass(frozen=True)
class RunOptions:
    """How plans run.

    Attributes:
        dtype: float type of all values.
        precision: how matrix products are computed, see `autobatch.ir.precision`.
        threads: that one run may use.
        max_bytes: upper bound on the memory of a run, kept for the next one, unless the plan alone needs more; None is
            no limit.
        matmul: the library that multiplies matrices, by name, for backends that have several; None leaves it to them.
    """

    dtype: np.dtype[Any]
    precision: str = "float32"
    threads: int = 1
    max_bytes: int | None = None
    matmul: str | None = None


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


class Run(Protocol):
    """A forward run of a plan, which may be differentiated.

    Attributes:
        outputs: what the user asked for, per slot `[rows, *shape]`: NumPy arrays that stay as they are.
    """

    outputs: list[Any]

    def backward(self, seeds: Mapping[int, Any], into: Mapping[int, Gradient]) -> None:
        """Differentiate the run, once; parameters and the mode of modules are as they were when it ran forward.

        Args:
            seeds: per slot the gradient of its rows; other slots have none.
            into: by `id` of each trainable parameter what its gradient is added to: an array, or, for those in
                `cells.row_parameters`, `Rows`. The order of all additions is that of the plan, so that the same run
                gives the same bits.

        Raises:
            BackendError: the run is closed, or was differentiated before.
        """

    def counts(self) -> Counts:
        """What the run took so far."""

    def close(self) -> None:
        """Let the next run have the memory of this one; it cannot be differentiated any more."""


class Executable(Protocol):
    """A plan, prepared to run in one way.

    Attributes:
        n_bytes: of memory that a run takes: its values, and scratch memory.
    """

    n_bytes: int

    def forward(self, randomness: Randomness, timer: Timer | None = None) -> Run:
        """Compute all values from what the parameters are now.

        Args:
            randomness: the seed and step of all draws, the key of each instance `[B]`, and whether dropout is on where
                a cell has no module to say so. The keys in the graph of the plan may be those of other instances: a
                plan may run again, for equal graphs.
            timer: is told when each batch is done, forward and backward, at the cost of a microsecond per batch: a
                backend that runs several batches in one go then runs them one by one. The results are the same, to
                the bit.
        """


class Backend(Protocol):
    """Runs plans on one device."""

    name: str

    def prepare(self, plan: Plan, cells: PlannedTypes, options: RunOptions) -> Executable:
        """Prepare a plan of these types. Other executables stay as they are, and no machine code is made yet."""
