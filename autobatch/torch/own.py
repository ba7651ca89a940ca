"""Modules of autobatch as modules of torch: one set of numbers, which either library trains."""

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
HELD = "_as_torch"  # the attribute by which a module of autobatch keeps its module of torch alive


class OwnModule(nn.Module, Generic[M]):
    """A module of autobatch as one of torch, made by `abt.as_torch`: parameters of the same names, in the same memory.

    Args:
        model: of autobatch; its parameters are replaced by ones that lie in tensors.

    Attributes:
        own: the same; its methods are what `abt.batched` takes, or what functions over one instance call.
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
        """Turn dropout on, or off with `mode=False`, also in the module of autobatch."""
        self.own.train(mode)
        return super().train(mode)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)(self._copy_of_model(memo))

    def __reduce__(self) -> Any:
        return type(self), (self._copy_of_model({}),)

    def _copy_of_model(self, memo: dict[int, Any]) -> M:
        """A copy of the module of autobatch, with parameters of its own."""
        memo[id(self)] = None
        for parameter in self.own.parameters().values():
            memo[id(parameter)] = Parameter(parameter.data, parameter.trainable).astype(parameter.dtype)
            memo[id(parameter)].data = parameter.data
        return deepcopy(self.own, memo)


@checked()
def as_torch(model: M) -> OwnModule[M]:
    """Give a module of autobatch to torch: an `nn.Module` with its parameters, by the same names, in the same memory.

    `abt.batched(model.loss)` then gives tensors with a `grad_fn`, a module of torch may have the result as a part, and
    optimizers of either library train it. Its `state_dict` is that of the model; `train`, `eval`, `double` and so on
    hold for both, and copies have a copy of the model.

    Args:
        model: with parameters on the processor. Call this before functions of it are batched, for its parameters are
            replaced.

    Returns:
        The same for the same model.

    Raises:
        GraphError: a parameter is in a tuple, or on a device.
    """
    found = vars(model).get(HELD)
    return OwnModule(model) if found is None else found


def _replace(holder: Any, made: dict[int, TensorParameter]) -> None:
    """Put the new parameters in the place of the old ones."""
    if isinstance(holder, tuple):
        if any(isinstance(x, Parameter) for x in holder):
            raise GraphError("a module keeps parameters in a tuple, where none can be replaced; keep them in a list.")
        return
    items = vars(holder) if isinstance(holder, Module) else holder
    for key, value in list(enumerate(items) if isinstance(items, list) else items.items()):
        if isinstance(value, Parameter):
            items[key] = made[id(value)]
