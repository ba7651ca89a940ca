"""The state of a recording in torch: the module, the dtype, and the input tensors that have gradients."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from autobatch.errors import GraphError
from autobatch.torch.host_copies import HostCopies
from autobatch.torch.kinds import from_floats, shape_within, to_floats
from autobatch.trace.inputs import FloatInput, Inputs


class Precision(Protocol):
    """The interface of a torch module that determines the dtype and the device of computations."""

    @property
    def float_dtype(self) -> torch.dtype:
        """Return the dtype."""

    @property
    def default_dtype(self) -> torch.dtype:
        """Return torch's default dtype at the last call."""

    @property
    def device(self) -> torch.device:
        """Return the device."""

    @property
    def copies(self) -> HostCopies | None:
        """Return the copies of the tensors in the instances of the call; None if the module is on the CPU."""

    def has_buffer(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor shares the memory of one of the module's buffers."""

    def computed_weights(self) -> list[tuple[dict[str, Any], str]]:
        """Return the attributes and names of the tensors that hooks compute at each call, as in pruning."""


class _Current(threading.local):
    """The state of the recording in this thread.

    Attributes:
        inputs: the input tensors that have gradients.
        module: the module.
        dtype, device: those of the module when the recording began; traces read those of the module itself.
        has_gradients: whether grad mode was on then.
        copies: the copies of the instances' tensors; None if the module is on the CPU.
    """

    inputs: TensorInputs | None = None
    module: Precision | None = None
    dtype = torch.float32
    device = torch.device("cpu")
    has_gradients = False
    copies: HostCopies | None = None


CURRENT = _Current()


class TensorInputs(Inputs):
    """The tensors among the instances of a mini-batch that require gradients.

    Args:
        recording: the recording of the mini-batch.

    Attributes:
        tensors: each tensor once, in the order in which cells got them.
    """

    def __init__(self, recording: Any) -> None:
        super().__init__(recording)
        self.tensors: list[torch.Tensor] = []
        self._leaves: dict[int, FloatInput] = {}
        self._nodes: list[Any] = []  # the `grad_fn` of each tensor when a cell first got it
        self._versions: dict[int, int] = {}

    @contextmanager
    def recording_tensors(self) -> Iterator[None]:
        """Make tensors in the arguments of cells inputs within the context, if they require gradients."""
        before, CURRENT.inputs = CURRENT.inputs, self
        try:
            yield
        finally:
            CURRENT.inputs = before

    def enter_tensor(self, tensor: torch.Tensor) -> FloatInput:
        """Return the input that represents a tensor, the same for the same tensor.

        Raises:
            GraphError: the tensor has been changed in place since a cell got it.
        """
        key, version = id(tensor), 0 if tensor.is_inference() else tensor._version
        if key not in self._leaves:
            self._leaves[key] = self._leaf(to_floats(on_host(tensor.detach()), CURRENT.dtype).numpy())
            self.tensors.append(tensor)
            self._nodes.append(tensor.grad_fn)
            self._versions[key] = version
        elif self._versions[key] != version:
            raise _changed_in_place(tensor)
        return self._leaves[key]

    def check_unchanged(self) -> None:
        """Raise a GraphError if a tensor was changed in place later: its gradient would be that of its new numbers."""
        for tensor, node in zip(self.tensors, self._nodes, strict=True):
            if tensor.grad_fn is not node:
                raise _changed_in_place(tensor)

    def split(self, gradients: Any, is_reached: Any) -> list[torch.Tensor | None]:
        """Split the gradients of all numbers by tensor; None for a tensor with no reached number.

        Args:
            gradients: the gradients of all numbers, concatenated.
            is_reached: whether a result depends on each number.
        """
        shapes = [shape_within(tuple(tensor.shape), tensor.dtype) for tensor in self.tensors]
        wholes = {device: torch.from_numpy(gradients).to(device) for device in {x.device for x in self.tensors}}
        found, first = list[torch.Tensor | None](), 0
        for tensor, shape in zip(self.tensors, shapes, strict=True):
            end = first + math.prod(shape)
            part = wholes[tensor.device][first:end].reshape(shape)
            is_own = is_reached[first:end]
            # An empty tensor has no number that a result could depend on; it gets an empty gradient.
            found.append(from_floats(part, tensor.dtype) if is_own.any() or not is_own.size else None)
            first = end
        return found


def _changed_in_place(tensor: torch.Tensor) -> GraphError:
    return GraphError(
        f"a tensor of shape {tuple(tensor.shape)} that requires a gradient was changed in place after it was passed to "
        f"a cell, which computes with the old numbers when the mini-batch runs; make a new tensor: x = x + y for "
        f"x += y, or pass x.clone() to the cell."
    )


def on_host(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor of an instance, without gradient, on the host."""
    return x.cpu() if CURRENT.copies is None else CURRENT.copies.read(x)


def switch_grad_mode(is_on: bool | None) -> bool:
    """Switch torch's grad mode on or off, or leave it for None; return the previous mode."""
    before = torch.is_grad_enabled()
    if is_on is not None and is_on != before:
        torch.set_grad_enabled(is_on)
    return before
