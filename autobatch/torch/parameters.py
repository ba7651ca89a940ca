"""Parameters of torch as parameters of autobatch, in the same memory: what an optimizer changes, programs see."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, Self

import numpy as np
import torch

from autobatch._native import fingerprint
from autobatch.arrays import address_of
from autobatch.errors import GraphError
from autobatch.ops.operators import Symbol
from autobatch.params.parameter import FloatArray, Parameter
from autobatch.trace.guards import content_of
from autobatch.trace.owning import copy_of

FLOATS = {torch.float32: "float32", torch.float64: "float64"}


class TensorParameter(Parameter):
    """A tensor of a module of torch, a parameter or a buffer, read where it lies.

    It stands for a place in the module. If a tensor of the same shape replaces the one there, `bind` switches to it,
    and so do programs that read it. If a plan moves the numbers, the tensor moves with them.

    Args:
        tensor: float32 or float64, on the processor.
        name: in the module's `state_dict`.

    Attributes:
        n_assigned: how often the tensor was given other numbers by its `data`.
        n_left: how often any parameter has left its module for good.
        n_moved: how often any parameter came to stand for another tensor, or for other memory.

    Raises:
        GraphError: the tensor has another dtype, or is elsewhere.
    """

    n_assigned = 0
    n_left = 0
    n_moved = 0

    _tensor: Callable[[], torch.Tensor | None]
    _flat: FloatArray | None  # the same numbers, unless they are part of a stack

    def __init__(self, tensor: torch.Tensor, name: str) -> None:
        self.name, self._noted, self._fingerprint = name, -1, 0
        self._take(_array_of(tensor, name))
        self._follow(tensor)

    @property
    def tensor(self) -> torch.Tensor:
        """The tensor; GraphError if its module is gone."""
        tensor = self._tensor()
        if tensor is None:
            raise GraphError(f"the module with the parameter {self.name!r} is gone; record its instances again.")
        return tensor

    def is_bound(self, tensor: torch.Tensor) -> bool:
        """Whether this stands for a tensor."""
        return self._tensor() is tensor

    @property
    def trainable(self) -> bool:  # type: ignore[override]
        """Whether the tensor requires gradients; False once it is gone."""
        tensor = self._tensor()
        return tensor is not None and tensor.requires_grad

    @property
    def version(self) -> int:
        """Another number whenever the numbers or their place may have changed since the last look."""
        noted = self.tensor._version
        if noted != self._noted:
            self._noted = noted
            self.note_change()
        return self._version if self._lent is None else super().version

    @property
    def checked_version(self) -> int:
        """The same as `version`, with changes that torch does not count.

        These are fused optimizers, `tensor.data.copy_(x)`, arrays of NumPy that share the memory, and other processes.
        """
        flat = self._flat
        found = fingerprint(np.ascontiguousarray(self.array).reshape(-1) if flat is None else flat)
        if found != self._fingerprint:
            self._fingerprint = found
            self.note_change()
        return self.version

    def refresh(self, tensor: torch.Tensor) -> bool:
        """Find the numbers again if the tensor got new ones, by `module.to` or by assigning its `data`.

        If they have another shape, this leaves the tensor, for which another parameter has to be made.

        Args:
            tensor: the tensor that this stands for.

        Returns:
            Whether it stood for another tensor before.
        """
        if self._tensor() is not tensor:
            self.bind(tensor)
            return True
        if tensor.shape != self.array.shape:
            self.leave()
        elif tensor.data_ptr() != self._address or tensor.dtype is not self._dtype:
            self._renew(tensor)
            self.n_assigned += 1
        return False

    def bind(self, tensor: torch.Tensor) -> None:
        """Switch to another tensor of the same shape."""
        array = _array_of(tensor, self.name)
        PARAMETERS.pop(self._key, None)
        self._renew(tensor, array)
        self._follow(tensor)
        self.n_bound += 1
        PARAMETERS[self._key] = self

    def leave(self) -> None:
        """Release the tensor and its memory, because its place in the module is gone."""
        PARAMETERS.pop(self._key, None)
        self._tensor, self.is_gone = _nothing, True
        self.array, self._lent, self._flat = np.broadcast_to(np.zeros((), self.dtype), self.shape), None, None
        TensorParameter.n_left += 1

    def _follow(self, tensor: torch.Tensor) -> None:
        """Keep a weak reference to the tensor."""
        self._key = key = id(tensor)
        self._tensor = weakref.ref(tensor, lambda _: PARAMETERS.pop(key, None))
        self._noted = -1
        TensorParameter.n_moved += 1

    def _renew(self, tensor: torch.Tensor, array: FloatArray | None = None) -> None:
        """Read the numbers of a tensor from now on."""
        self._take(_array_of(tensor, self.name) if array is None else array)
        self._lent, self.buffer = None, None
        self.note_change()

    def _keep(self, array: FloatArray) -> None:
        super()._keep(array)
        self._take(array)
        self.tensor.data = torch.from_numpy(array)

    def _take(self, array: FloatArray) -> None:
        """Take the array in which the numbers of the tensor lie."""
        self.array, self._address, self._dtype = array, address_of(array), TENSOR_TYPES[array.dtype]
        self._flat = array.reshape(-1) if array.flags.c_contiguous else None
        TensorParameter.n_moved += 1

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        raise GraphError("parameters of torch are copied with their module: copy.deepcopy(module).")


def _nothing() -> None:
    """Stand for a tensor that is gone."""


class Tangent(TensorParameter):
    """The direction in which a parameter moves: it is given other numbers for each mini-batch, see `Passing.held`."""


TENSOR_TYPES = {np.dtype(name): dtype for dtype, name in FLOATS.items()}
PARAMETERS: dict[int, TensorParameter] = {}
"""What stands for each tensor of a module, by the tensor's `id`, as long as it lives."""


def find_parameter(tensor: torch.Tensor) -> TensorParameter | None:
    """What stands for a tensor of a module; None for any other tensor.

    A parameter that no batched function knows yet gets a name when one does.
    """
    found = PARAMETERS.get(id(tensor))
    return make_parameter(tensor, "") if found is None and type(tensor) is torch.nn.Parameter else found


def computed_parameters() -> set[Any]:
    """Return the torch graph nodes of computed module tensors, such as those of `functional_call`."""
    tensors = [parameter._tensor() for parameter in [*PARAMETERS.values()]]
    return {tensor.grad_fn for tensor in tensors if tensor is not None and tensor.grad_fn is not None}


def make_parameter(tensor: torch.Tensor, name: str) -> TensorParameter:
    """What stands for a tensor of a module, the same as long as the tensor lives; and name it."""
    found = PARAMETERS.get(id(tensor))
    if found is None:
        found = PARAMETERS[id(tensor)] = TensorParameter(tensor, name)
    found.name = name or found.name
    return found


def _array_of(tensor: torch.Tensor, name: str) -> FloatArray:
    """The numbers of a tensor, where they lie; its memory is put in order first where it is not."""
    if tensor.device.type != "cpu" or tensor.dtype not in FLOATS:
        raise GraphError(
            f"{name!r} is {tensor.dtype} on {tensor.device}; cells that autobatch runs have float32 or float64 on the "
            f"processor: call .to('cpu', torch.float32) on the module."
        )
    if not tensor.is_contiguous():
        tensor.data = tensor.data.contiguous()
    array: FloatArray = tensor.detach().numpy()
    return array


@copy_of.register
def _(x: torch.Tensor) -> torch.Tensor:
    """Copy a tensor of an instance from an iterator; gradients flow through, and parameters are not copied."""
    return x if type(x) is torch.nn.Parameter or id(x) in PARAMETERS else x.clone()


@copy_of.register
def _(x: torch.nn.Module) -> torch.nn.Module:
    """Return the module itself: modules in instances from an iterator are not copied."""
    return x


@content_of.register
def _(x: torch.Tensor) -> Hashable | None:
    """What a trace has of a tensor that is a constant there; a parameter is read when programs run."""
    if type(x) is torch.nn.Parameter or id(x) in PARAMETERS or isinstance(x, Symbol):
        return None
    kind = x.dtype, tuple(x.shape), x.requires_grad
    if type(x) is not torch.Tensor or x.layout is not torch.strided or x.device.type != "cpu":
        return *kind, x._version
    return *kind, x.detach().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8).numpy().tobytes()
