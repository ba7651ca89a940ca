"""Tensors as arrays of the device that holds them, and arrays as tensors, in shared memory.

On a GPU, arrays are CuPy's, and both libraries exchange memory by DLPack.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from autobatch.devices.finding import find_device
from autobatch.devices.store import HOST, Store
from autobatch.errors import GraphError

STORES: dict[str, Callable[[], Store]] = {"cpu": lambda: HOST, "cuda": find_device}
"""The memory that holds the tensors of a type of device."""


def store_at(device: torch.device) -> Store:
    """Return the memory that holds the tensors of a device.

    Raises:
        GraphError: no backend reads the memory of this type of device.
        BackendError: the GPU cannot be used.
    """
    find = STORES.get(device.type)
    if find is None:
        raise GraphError(
            f"modules and instances must be on the CPU or an NVIDIA GPU, got a tensor on {device}; call .cpu() or "
            f".cuda() on them."
        )
    return find()


def working_on(device: torch.device) -> AbstractContextManager[None]:
    """Return the context of work on a device: on a GPU, torch's current stream and allocator."""
    if device.type != "cuda":
        return nullcontext()
    from autobatch.torch.current_stream import on_current_stream

    return on_current_stream()


def to_array(tensor: torch.Tensor) -> Any:
    """Return the numbers of a tensor as an array in the same memory.

    Raises:
        GraphError: as for `store_at`; or the tensor is on another GPU.
        BackendError: as for `store_at`.
    """
    store, tensor = store_at(tensor.device), tensor.detach()
    if store is HOST:
        return tensor.numpy()
    array = store.adopt(tensor)
    if array is None:
        raise GraphError(
            f"tensors on GPUs must be on the one that this process uses, got one of shape {tuple(tensor.shape)} on "
            f"{tensor.device}; before the first mini-batch, call torch.cuda.set_device({tensor.device.index})."
        )
    return array


def to_tensor(array: Any) -> torch.Tensor:
    """Return an array of any device as a tensor in the same memory."""
    made: torch.Tensor
    made = torch.from_numpy(array) if type(array) is np.ndarray else torch.from_dlpack(array)  # type: ignore[attr-defined]
    return made


def to_host(array: Any) -> Any:
    """Return an array of any device as a NumPy array; wait for a device, and copy."""
    return to_tensor(array).cpu().numpy()
