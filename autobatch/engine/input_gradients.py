"""The gradients of float arrays of instances: those of the sources that read them, added up where they were read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.backends.base import Run
from autobatch.plan.plan import Plan
from autobatch.trace.inputs import Inputs


class InputGradients:
    """The gradients of all inputs of a mini-batch.

    Args:
        inputs: that are asked for.
        dtype: of the computation.

    Attributes:
        flat: of all numbers, one after the other.
    """

    def __init__(self, inputs: Inputs, dtype: np.dtype[Any]) -> None:
        self._inputs = inputs
        self.flat: NDArray[Any] = np.zeros(inputs.size, dtype)

    def add(self, plan: Plan, run: Run) -> None:
        """Add what a run of some of the instances contributes; it has been differentiated."""
        for type_id in self._inputs.source_types:
            numbers = plan.data(type_id)[0][:, 0].tolist()
            if numbers:
                positions = np.concatenate([self._inputs.reads[number].ravel() for number in numbers])
                np.add.at(self.flat, positions, run.gradients(type_id).ravel())

    def structures(self) -> list[Any]:
        """Per instance, its structure with gradients; see `Inputs.structures`."""
        return self._inputs.structures(self.flat)
