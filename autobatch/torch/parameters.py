"""Torch parameters as parameters of autobatch, in shared memory: programs see the changes of an optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, Self

import numpy as np
import torch

from autobatch._native import fingerprint
from autobatch.devices.store import HOST, Store
from autobatch.errors import GraphError
from autobatch.ops.operators import Symbol
from autobatch.params.parameter import FloatArray, Parameter
from autobatch.torch.memory import store_at, to_array, to_tensor
from autobatch.trace.guards import content_of
from autobatch.trace.owning import copy_of

FLOATS = {torch.float32: "float32", torch.float64: "float64"}


class TensorParameter(Parameter):
    """A tensor of a torch module, a parameter or a buffer, read in place.

    It represents a place in the module. If a tensor of the same shape replaces the one there, `bind` switches to it,
    and so do programs that read it. If a plan moves the numbers, the tensor moves with them.

    Args:
        tensor: a float32 or float64 tensor on the CPU or a GPU.
        name: the name in the module's `state_dict`.

    Attributes:
        n_assigned: the number of assignments to the tensor's `data`.
        n_left: the number of parameters, of all modules, that have left their module for good.
        n_moved: the number of times that any parameter switched to another tensor or other memory.

    Raises:
        GraphError: the tensor has another dtype, or is on another device.
    """

    n_assigned = 0
    n_left = 0
    n_moved = 0

    _tensor: Callable[[], torch.Tensor | None]
    _flat: FloatArray | None  # the same numbers, unless they are part of a stack

    def __init__(self, tensor: torch.Tensor, name: str) -> None:
        self.name, self._noted, self._fingerprint, self._is_moved = name, -1, 0, False
        self._take(_array_of(tensor, name), store_at(tensor.device))
        self._follow(tensor)

    @property
    def tensor(self) -> torch.Tensor:
        """Return the tensor; GraphError if its module is gone."""
        tensor = self._tensor()
        if tensor is None:
            raise GraphError(f"the module with parameter {self.name!r} is gone; record its instances again.")
        return tensor

    def is_bound(self, tensor: torch.Tensor) -> bool:
        return self._tensor() is tensor

    @property
    def trainable(self) -> bool:  # type: ignore[override]
        """Return whether the tensor requires gradients; False once it is gone."""
        tensor = self._tensor()
        return tensor is not None and tensor.requires_grad

    @property
    def stays(self) -> bool:  # type: ignore[override]
        """Return whether other tensors or processes may read the numbers where they are, on the host."""
        tensor = self._tensor()
        return tensor is not None and self._store is HOST and not self._is_moved and _is_shared(tensor, N_REFERENCES)

    @property
    def stays_contiguous(self) -> bool:  # type: ignore[override]
        """Return whether the tensor is on a device, where torch's fused optimizers change only contiguous tensors."""
        return self._store is not HOST

    @property
    def version(self) -> int:
        """Return a number that changes whenever the numbers or their place may have changed.

        On a device, each read returns a new number, because reading the numbers, as `checked_version` does, would wait
        for the device.
        """
        noted = self.tensor._version
        if noted != self._noted or self._store is not HOST:
            self._noted = noted
            self.note_change()
        return self._version if self._lent is None else super().version

    @property
    def checked_version(self) -> int:
        """Return the version, including changes that torch does not count.

        These are made by fused optimizers, `tensor.data.copy_(x)`, NumPy arrays that share the memory, and other
        processes.

        Cost: one pass over the numbers.
        """
        if self._store is not HOST:
            return self.version
        flat = self._flat
        found = fingerprint(np.ascontiguousarray(self.array).reshape(-1) if flat is None else flat)
        if found != self._fingerprint:
            self._fingerprint = found
            self.note_change()
        return self.version

    def refresh(self, tensor: torch.Tensor) -> bool:
        """Update to the current memory of the tensor, after `module.to` or an assignment to its `data`.

        If the shape has changed, this leaves the tensor, for which another parameter has to be made.

        Args:
            tensor: the tensor that this represents.

        Returns:
            Whether it represented another tensor before.
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
        # The callback must not hold `self`. `bind` drops the reference, and with it the callback for the old tensor.
        self._tensor = weakref.ref(tensor, lambda _: PARAMETERS.pop(key, None))
        self._noted = -1
        TensorParameter.n_moved += 1

    def _renew(self, tensor: torch.Tensor, array: FloatArray | None = None) -> None:
        """Switch to the numbers of a tensor."""
        self._take(_array_of(tensor, self.name) if array is None else array, store_at(tensor.device))
        self._lent, self.buffer, self._is_moved = None, None, False
        self.note_change()

    def _keep(self, array: FloatArray) -> None:
        super()._keep(array)
        self._take(array, self._store)
        self._is_moved = True
        self.tensor.data = to_tensor(array)

    def _take(self, array: FloatArray, store: Store) -> None:
        """Set the array that holds the numbers of the tensor, and the memory of its device."""
        self.array, self._store = array, store
        self._address, self._dtype = store.address(array), TENSOR_TYPES[array.dtype]
        self._flat = array.reshape(-1) if array.flags.c_contiguous else None
        TensorParameter.n_moved += 1

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        raise GraphError("torch parameters must be copied with their module; use copy.deepcopy(module).")


def _nothing() -> None:
    """Replace the weak reference to a tensor that is gone."""


class Tangent(TensorParameter):
    """The tangent of a parameter, whose numbers are set anew for each mini-batch, see `Passing.held`."""


TENSOR_TYPES = {np.dtype(name): dtype for dtype, name in FLOATS.items()}
N_REFERENCES = 3
"""References to the storage of a parameter's tensor: by the tensor, by the parameter's array, and by who counts."""
PARAMETERS: dict[int, TensorParameter] = {}
"""The parameter of each tensor of a module, by the tensor's `id`, as long as the tensor lives."""


def find_parameter(tensor: torch.Tensor) -> TensorParameter | None:
    """Return the parameter of a module's tensor; None for any other tensor.

    A parameter that no batched function knows yet has no name; the first function that knows it gives it one.
    """
    found = PARAMETERS.get(id(tensor))
    return make_parameter(tensor, "") if found is None and type(tensor) is torch.nn.Parameter else found


def computed_parameters() -> set[Any]:
    """Return the nodes, in torch's graph, of computed module tensors such as those of `functional_call`."""
    # A copy of the values, because a tensor that is freed meanwhile removes itself from the dict.
    tensors = [parameter._tensor() for parameter in [*PARAMETERS.values()]]
    return {tensor.grad_fn for tensor in tensors if tensor is not None and tensor.grad_fn is not None}


def make_parameter(tensor: torch.Tensor, name: str) -> TensorParameter:
    """Return the parameter of a module's tensor, the same as long as the tensor lives, and name it."""
    found = PARAMETERS.get(id(tensor))
    if found is None:
        found = PARAMETERS[id(tensor)] = TensorParameter(tensor, name)
    found.name = name or found.name
    return found


def _array_of(tensor: torch.Tensor, name: str) -> FloatArray:
    """Return the numbers of a tensor as an array in the same memory; make the tensor contiguous first."""
    if tensor.dtype not in FLOATS:
        raise GraphError(
            f"parameter {name!r} must be float32 or float64, got {tensor.dtype}; call .float() on the module, and set "
            f"precision='bf16' for matrix products of bfloat16."
        )
    if not tensor.is_contiguous() and not (tensor.device.type == "cpu" and _is_shared(tensor, 2)):
        tensor.data = tensor.data.contiguous()
    array: FloatArray = to_array(tensor)
    return array


def _is_shared(tensor: torch.Tensor, n_own: int) -> bool:
    """Return whether others share a tensor's memory on the host: processes, views, or a tensor that it is a view of.

    Args:
        n_own: the number of references to its storage that are known.
    """
    storage = tensor.untyped_storage()
    is_whole = storage.nbytes() == tensor.nbytes
    return not is_whole or storage.is_shared() or torch._C._storage_Use_Count(storage._cdata) > n_own


@copy_of.register
def _(x: torch.Tensor) -> torch.Tensor:
    """Copy a tensor of an instance from an iterator; gradients flow through, and parameters are not copied."""
    return x if type(x) is torch.nn.Parameter or id(x) in PARAMETERS else x.clone()


@copy_of.register
def _(x: torch.nn.Module) -> torch.nn.Module:
    """Return the module itself, because modules in instances from an iterator are not copied."""
    return x


@content_of.register
def _(x: torch.Tensor) -> Hashable | None:
    """Return the content of a tensor that a trace keeps as a constant; None for a parameter, read at run time."""
    if type(x) is torch.nn.Parameter or id(x) in PARAMETERS or isinstance(x, Symbol):
        return None
    kind = x.dtype, tuple(x.shape), x.requires_grad
    if type(x) is torch.Tensor and x.device.type != "cpu":
        return *kind, x._version, x.__hash__  # bound methods are equal if their objects are the same; it keeps x alive
    if type(x) is not torch.Tensor or x.layout is not torch.strided:
        return *kind, x._version
    return *kind, x.detach().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8).numpy().tobytes()
