"""Modules of torch as modules of autobatch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from operator import is_
from typing import Any

import numpy as np
import torch

from autobatch.errors import GraphError
from autobatch.params.module import Module, modules_in
from autobatch.params.parameter import Parameter
from autobatch.torch.adopting import to_arrays
from autobatch.torch.cells import BoundTorchCell
from autobatch.torch.entering import switch_grad_mode
from autobatch.torch.known import KnownTensors
from autobatch.torch.own import OwnModule
from autobatch.torch.parameters import FLOATS, TensorParameter, make_parameter
from autobatch.torch.structures import tensors_in
from autobatch.torch.values import OfParameters, TensorMethods
from autobatch.trace.entries import Found, Patch, patches_in


class TorchModule(Module):
    """A module of torch as autobatch sees it: its parameters and float buffers, by their names there.

    Args:
        module: of torch.

    Attributes:
        sparse: the names of parameters whose gradients are sparse tensors, where they are read by rows alone.
        float_dtype: in which cells compute; traces of cells read it, and so are made again when it changes.
    """

    _adopt = staticmethod(to_arrays)
    _switch_mode = staticmethod(switch_grad_mode)

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.sparse: frozenset[str] = frozenset()
        self.float_dtype = torch.float32
        self._known = KnownTensors(module)
        self._named: list[tuple[str, torch.Tensor]] = []
        self._dtypes: list[torch.dtype] = []
        self._found: dict[str, TensorParameter] = {}
        self._tensors: list[torch.Tensor] = []
        self._patched = Found()
        self._has_own = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of all parameters and float buffers; without any, that of the data that was met last, or float32.

        Raises:
            GraphError: they differ in dtype; the message names two.
        """
        found = {parameter.dtype: name for name, parameter in self.parameters().items()}
        if len(found) > 1:
            (dtype, name), (other, second) = sorted(found.items(), key=str)[:2]
            raise GraphError(
                f"the tensors of {type(self.module).__name__} differ in dtype: {name!r} is {dtype} and {second!r} is "
                f"{other}; call .to(torch.float32) or .double() on the whole module."
            )
        return next(iter(found), np.dtype(FLOATS[self.float_dtype]))

    def __reduce__(self) -> Any:
        return type(self), (self.module,)

    def _value_methods(self) -> tuple[type, ...]:
        """Those of tensors."""
        return (TensorMethods,)

    def _patches(self) -> Sequence[Patch]:
        """Methods that are cells, modules that are, and the attributes of other modules that these are.

        The same list as long as the attributes and the cells of all modules are the same, unless there are own modules.
        """
        named = self._known.named()
        if self._has_own or not self._patched.holds(named):
            self._patched = Found.among(named, self._find_patches())
        return self._patched.patches

    def _find_patches(self) -> Iterator[Patch]:
        modules = list(self.module.modules())
        self._has_own = any(isinstance(module, OwnModule) for module in modules)
        own = [part for module in modules if isinstance(module, OwnModule) for part in modules_in(module.own)]
        yield from patches_in([*modules, *own])
        for parent in modules:
            bound = vars(parent).get("forward")
            if isinstance(bound, BoundTorchCell):  # what calls of modules ask for first
                yield Patch(bound.called.cell, parent, vars(parent), "_compiled_call_impl")
            for name, child in parent._modules.items():
                if child is None or name in vars(parent):
                    continue
                bound = vars(child).get("forward")
                if isinstance(bound, BoundTorchCell):
                    yield Patch(bound.called.cell, child, vars(parent), name, partial(_make_proxy, child))

    def _named_parts(self) -> Iterator[tuple[str, Any]]:
        """Modules of torch and of autobatch, and parameters."""
        yield from self.parameters().items()
        for name, module in self.module.named_modules():
            yield f"module {name}", module
            if isinstance(module, OwnModule):
                own = module.own._named_parts()
                yield from ((f"{name} own {part}", x) for part, x in own if isinstance(x, Module))

    def _while_recording(self) -> AbstractContextManager[Any]:
        """The context in which ops of parameters are recorded."""
        return OfParameters(self)

    def has_buffer(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in the memory of a buffer of the module."""
        memory = tensor.untyped_storage()._cdata
        return any(buffer.untyped_storage()._cdata == memory for buffer in self.module.buffers())

    def meet(self, instances: Any) -> None:
        """Compute in the dtype of the parameters, or without any in that of tensors among the instances."""
        if not self._tensors:
            self.parameters()
        tensors = self._tensors or tensors_in(instances)
        self.float_dtype = next((x.dtype for x in tensors if x.dtype in FLOATS), self.float_dtype)

    def parameters(self) -> dict[str, Parameter]:
        """The parameters and float buffers, by name; the same dict until the module has others."""
        named = self._known.named()
        dtypes = [tensor.dtype for _, tensor in named]
        if named is not self._named or dtypes != self._dtypes:
            self._named, self._dtypes = named, dtypes
            self._name_floats()
        for parameter in self._found.values():
            parameter.refresh()
        return self._found  # type: ignore[return-value]

    def _name_floats(self) -> None:
        """Find what stands for the tensors of floats."""
        floats = {name: tensor for name, tensor in self._named if tensor.is_floating_point()}
        if floats.keys() != self._found.keys() or not all(map(is_, floats.values(), self._tensors)):
            self._found = {name: make_parameter(tensor, name) for name, tensor in floats.items()}
            self._tensors = [*floats.values()]
            tables = {id(m.weight) for m in self.module.modules() if isinstance(m, torch.nn.Embedding) and m.sparse}
            self.sparse = frozenset(name for name, tensor in floats.items() if id(tensor) in tables)


def _make_proxy(module: torch.nn.Module, function: Callable[..., Any]) -> Any:
    """A proxy of a module that calls a function instead: modules are slow to find and to call."""
    members = {
        "__call__": staticmethod(function),
        "__getattr__": lambda self, name: getattr(module, name),
        "__class__": property(lambda self: type(module)),
        "__slots__": (),
    }
    return type("Proxy", (), members)()
