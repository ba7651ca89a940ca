"""Compute gradients by float arrays of instances: add the gradient of each source at the places that it read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.backends.base import Run
from autobatch.plan.plan import Plan
from autobatch.trace.inputs import Inputs


class InputGradients:
    """The gradients by all inputs of a mini-batch.

    Args:
        inputs: the inputs to differentiate by.
        dtype: the type of the computation.

    Attributes:
        flat: the gradients by all numbers of all inputs, concatenated.
    """

    def __init__(self, inputs: Inputs, dtype: np.dtype[Any]) -> None:
        self._inputs = inputs
        self.flat: NDArray[Any] = np.zeros(inputs.size, dtype)

    def add(self, plan: Plan, run: Run) -> None:
        """Add the gradients of a run, which has been differentiated, of some of the instances."""
        for type_id in self._inputs.source_types:
            numbers = plan.data(type_id)[0][:, 0].tolist()
            if numbers:
                positions = np.concatenate([self._inputs.reads[number].ravel() for number in numbers])
                np.add.at(self.flat, positions, run.gradients(type_id).ravel())

    def structures(self) -> list[Any]:
        """Return each instance's structure with gradients in place of arrays; see `Inputs.structures`."""
        return self._inputs.structures(self.flat)
