"""Modules of torch as modules of autobatch."""

from __future__ import annotations

from contextlib import AbstractContextManager
from operator import is_
from typing import Any

import torch

from autobatch.params.module import Module
from autobatch.params.parameter import Parameter
from autobatch.torch.parameters import TENSOR_TYPES, TensorParameter, make_parameter
from autobatch.torch.values import OfParameters, TensorMethods


class TorchModule(Module):
    """A module of torch as autobatch sees it: its parameters and float buffers, by their names there.

    Args:
        module: of torch.
    """

    methods = (TensorMethods,)

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self._found: dict[str, TensorParameter] = {}
        self._tensors: list[torch.Tensor] = []

    def recording(self) -> AbstractContextManager[Any]:
        """The context in which ops of parameters are recorded."""
        return OfParameters(TENSOR_TYPES[self.dtype])

    def parameters(self) -> dict[str, Parameter]:
        """The parameters and float buffers, by name; the same dict until the module has others."""
        named = [*self.module.named_parameters(), *self.module.named_buffers()]
        floats = {name: tensor for name, tensor in named if tensor.is_floating_point()}
        if floats.keys() != self._found.keys() or not all(map(is_, floats.values(), self._tensors)):
            self._found = {name: make_parameter(tensor, name) for name, tensor in floats.items()}
            self._tensors = [*floats.values()]
        for parameter in self._found.values():
            parameter.refresh()
        return self._found  # type: ignore[return-value]
