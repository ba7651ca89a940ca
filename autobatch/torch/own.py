"""Modules of autobatch as torch modules: one set of numbers, which either library can train."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Generic, Self, TypeVar

import torch
from torch import nn

from autobatch.errors import GraphError
from autobatch.keywords import checked
from autobatch.params.module import Module, holders_in
from autobatch.params.parameter import Parameter
from autobatch.torch.parameters import TensorParameter, make_parameter

M = TypeVar("M", bound=Module)
HELD = "_as_torch"  # the attribute in which a module of autobatch keeps its torch module alive


class OwnModule(nn.Module, Generic[M]):
    """A module of autobatch as a torch module, made by `abt.as_torch`: the same parameter names and memory.

    Args:
        model: the module of autobatch; its parameters are replaced by ones that share memory with tensors.

    Attributes:
        own: the module of autobatch. Give its methods to `abt.batched`, or call them in functions of one instance.
    """

    def __init__(self, model: M) -> None:
        super().__init__()
        self.own = model
        self.training = model.training
        made: dict[int, TensorParameter] = {}
        self._places = list[tuple[tuple[int, str], TensorParameter]]()
        for name, parameter in model.parameters().items():
            tensor = nn.Parameter(torch.from_numpy(parameter.data.copy()), parameter.trainable)
            *path, last = name.split(".")
            holder: nn.Module = self
            for part in path:
                if part not in holder._modules:
                    holder.add_module(part, nn.Module())
                holder = holder.get_submodule(part)
            holder.register_parameter(last, tensor)
            made[id(parameter)] = make_parameter(tensor, name)
            self._places.append(((id(holder), last), made[id(parameter)]))
        for holder_of_own in holders_in(model):
            _replace(holder_of_own, made)
        vars(model)[HELD] = self

    def places(self) -> list[tuple[tuple[int, str], TensorParameter]]:
        """Return the parameters and the places of their tensors: the `id` of a module and the name there."""
        return self._places

    def train(self, mode: bool = True) -> Self:
        """Turn dropout on, or off with `mode=False`, in the module of autobatch too."""
        self.own.train(mode)
        return super().train(mode)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)(self._copy_of_model(memo))

    def __reduce__(self) -> Any:
        return type(self), (self._copy_of_model({}),)

    def _copy_of_model(self, memo: dict[int, Any]) -> M:
        """Copy the module of autobatch, with new plain parameters."""
        memo[id(self)] = None
        for parameter in self.own.parameters().values():
            memo[id(parameter)] = Parameter(parameter.data, parameter.trainable).astype(parameter.dtype)
            memo[id(parameter)].data = parameter.data
        return deepcopy(self.own, memo)


@checked()
def as_torch(model: M) -> OwnModule[M]:
    """Convert a module of autobatch to an `nn.Module` with the same parameter names, in the same memory.

    `abt.batched(model.loss)` then returns tensors with a `grad_fn`, the result may be a submodule of a torch module,
    and optimizers of either library can train it. Its `state_dict` is that of the model. `train`, `eval`, `double` and
    so on apply to both, and copies have a copy of the model.

    Args:
        model: a module with parameters on the CPU. Call this before batching functions of it, because its parameters
            are replaced.

    Returns:
        The torch module; the same one for the same model.

    Raises:
        GraphError: a parameter is in a tuple, or on a device.
    """
    found = vars(model).get(HELD)
    return OwnModule(model) if found is None else found


def _replace(holder: Any, made: dict[int, TensorParameter]) -> None:
    """Replace the parameters in a holder by the new ones."""
    if isinstance(holder, tuple):
        if any(isinstance(x, Parameter) for x in holder):
            raise GraphError("a module must not keep parameters in a tuple, where they cannot be replaced; use a list.")
        return
    items = vars(holder) if isinstance(holder, Module) else holder
    for key, value in list(enumerate(items) if isinstance(items, list) else items.items()):
        if isinstance(value, Parameter):
            items[key] = made[id(value)]
