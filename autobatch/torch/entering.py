"""Tensors that programs meet while they are recorded: parameters, data of nodes, and inputs that have gradients."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from operator import is_
from typing import Any

import numpy as np
import torch

from autobatch.errors import GraphError
from autobatch.ir.arguments import Key, is_structure, parts_of
from autobatch.torch.parameters import find_parameter
from autobatch.trace.handles import Outputs, Value
from autobatch.trace.inputs import FloatInput, Inputs


class _Current(threading.local):
    """What a recording in this thread takes note of: inputs that have gradients, and the dtype of its module."""

    inputs: TensorInputs | None = None
    dtype = torch.float32


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
            self._leaves[id(tensor)] = self._leaf(tensor.detach().numpy())
            self.tensors.append(tensor)
        return self._leaves[id(tensor)]

    def split(self, gradients: Any) -> list[torch.Tensor]:
        """The gradient of each tensor, of those of all numbers."""
        ends = np.cumsum([tensor.numel() for tensor in self.tensors])
        parts = np.split(gradients, ends[:-1]) if self.tensors else []
        found = zip(parts, self.tensors, strict=True)
        return [torch.from_numpy(part).reshape(tensor.shape).to(tensor.dtype) for part, tensor in found]


class Pending(ABC):
    """Something recorded that is no value until a cell reads it."""

    __slots__ = ()

    @abstractmethod
    def joined(self) -> Any:
        """The value."""


def to_arrays(x: Any) -> Any:
    """Tensors among the arguments of a cell as what is recorded: a parameter, an array, or an int of one int."""
    if isinstance(x, (Value, Outputs)):
        return x
    kind = type(x)
    if kind is int or kind is str or kind is bool:
        return x
    if isinstance(x, torch.Tensor):
        with torch._C.DisableTorchFunction():  # the recording's own mode, of which no part is meant here
            return _array_of(x)
    if kind is tuple or kind is list:
        parts = [to_arrays(part) for part in x]
        return x if all(map(is_, parts, x)) else kind(parts)
    if is_structure(x):
        own = parts_of(x)
        parts = [to_arrays(part) for part in own]
        return x if all(map(is_, parts, own)) else Key.of_structure(x, ()).build(parts)
    return x.joined() if isinstance(x, Pending) else x


def _array_of(tensor: torch.Tensor) -> Any:
    parameter = find_parameter(tensor)
    if parameter is not None:
        return parameter
    if tensor.device.type != "cpu":
        raise GraphError(
            f"a cell is given a tensor of shape {tuple(tensor.shape)} on {tensor.device}; cells run on the processor: "
            f"call .cpu() on it."
        )
    if tensor.requires_grad:
        return _input_of(tensor)
    return int(tensor) if not tensor.shape and not tensor.is_floating_point() else tensor.numpy()


def _input_of(tensor: torch.Tensor) -> Any:
    if CURRENT.inputs is None:
        if torch.is_grad_enabled():
            raise GraphError(
                f"a tensor of shape {tuple(tensor.shape)} asks for a gradient, which a recorded graph would lose; give "
                f"the instances themselves to the batched function, or tensor.detach()."
            )
        return tensor.detach().numpy()
    return CURRENT.inputs.enter_tensor(tensor)
