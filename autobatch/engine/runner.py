"""Define the interface through which results and rounds use a session, whose module imports theirs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from autobatch.backends.base import RowMoves, RowReader, Run, Timer
from autobatch.devices.store import HOST, Store
from autobatch.engine.counts import Step
from autobatch.params.gradients import Gradients
from autobatch.params.known import ParameterState
from autobatch.params.sparse_rows import Gradient
from autobatch.plan.budget import Part


class Runner(Protocol):
    """The runner of planned mini-batches; see `autobatch.engine.session.Session`.

    Attributes:
        parameters: the current parameters of the module.
    """

    parameters: ParameterState

    def draw_of(self, step: Step) -> tuple[int, int]:
        """Return the seed and the number on which random numbers of a step depend."""

    def start(
        self,
        step: Step,
        part: Part,
        instances: slice,
        draw: tuple[int, int],
        timer: Timer | None = None,
        to: Store | None = HOST,
        moves: RowMoves | None = None,
    ) -> Run:
        """Run a part forward; the caller closes the run."""

    def backward(
        self,
        step: Step,
        run: Run,
        seeds: Mapping[int, NDArray[Any]],
        out: dict[str, Gradient] | None,
        reader: RowReader | None = None,
    ) -> dict[str, Gradient]:
        """Differentiate the run of a part, within its context."""

    def read_rows(self, step: Step, run: Run, seeds: Mapping[int, NDArray[Any]], reader: RowReader) -> None:
        """Differentiate the run of a part up to the rows whose sums are the gradients of parameters."""

    def zeros(self, rows: Collection[str]) -> Gradients:
        """Return zero gradients for a mini-batch without instances."""
