"""Tensors that programs meet while they are recorded: parameters, data of nodes, and inputs that have gradients."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch

from autobatch.torch.kinds import from_floats, shape_within, to_floats
from autobatch.trace.inputs import FloatInput, Inputs


class Precision(Protocol):
    """What knows the dtype in which cells compute: a module of torch."""

    @property
    def float_dtype(self) -> torch.dtype:
        """The dtype."""

    def has_buffer(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in the memory of one of the module's buffers."""


class _Current(threading.local):
    """What a recording in this thread takes note of: inputs that have gradients, and its module.

    Attributes:
        dtype: the dtype of the module, when the recording began; what is traced asks the module itself.
        has_gradients: whether grad mode was on then.
    """

    inputs: TensorInputs | None = None
    module: Precision | None = None
    dtype = torch.float32
    has_gradients = False


CURRENT = _Current()


class TensorInputs(Inputs):
    """The tensors among the instances of a mini-batch that ask for gradients.

    Args:
        recording: what records.

    Attributes:
        tensors: each once, in the order in which cells were given them.
    """

    def __init__(self, recording: Any) -> None:
        super().__init__(recording)
        self.tensors: list[torch.Tensor] = []
        self._leaves: dict[int, FloatInput] = {}

    @contextmanager
    def recording_tensors(self) -> Iterator[None]:
        """Within the context, tensors that cells are given become inputs."""
        before, CURRENT.inputs = CURRENT.inputs, self
        try:
            yield
        finally:
            CURRENT.inputs = before

    def enter_tensor(self, tensor: torch.Tensor) -> FloatInput:
        """The input that stands for a tensor."""
        if id(tensor) not in self._leaves:
            self._leaves[id(tensor)] = self._leaf(to_floats(tensor.detach(), CURRENT.dtype).numpy())
            self.tensors.append(tensor)
        return self._leaves[id(tensor)]

    def split(self, gradients: Any, is_reached: Any) -> list[torch.Tensor | None]:
        """Split the gradients of all numbers by tensor; None for a tensor with no reached number.

        Args:
            is_reached: whether a result depends on each number.
        """
        shapes = [shape_within(tuple(tensor.shape), tensor.dtype) for tensor in self.tensors]
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        parts, reached = (np.split(x, ends[:-1]) if self.tensors else [] for x in (gradients, is_reached))
        return [
            from_floats(torch.from_numpy(part).reshape(shape), tensor.dtype)
            if is_own.any() or not is_own.size
            else None
            for part, is_own, shape, tensor in zip(parts, reached, shapes, self.tensors, strict=True)
        ]


def switch_grad_mode(is_on: bool | None) -> bool:
    """Switch torch's grad mode on or off, None for neither; give what it was."""
    before = torch.is_grad_enabled()
    if is_on is not None and is_on != before:
        torch.set_grad_enabled(is_on)
    return before
