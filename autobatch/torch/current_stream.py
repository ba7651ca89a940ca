"""CuPy on PyTorch's current stream, in memory of PyTorch's caching allocator; imported only for tensors on a GPU.

Source: the references of CuPy (`ExternalStream`, `PythonFunctionAllocator`, `using_allocator`) and of PyTorch
(`caching_allocator_alloc`, `caching_allocator_delete`, `Stream.wait_stream`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

_last: dict[int, Any] = {}  # the stream of the last work on each GPU


@contextmanager
def on_current_stream() -> Iterator[None]:
    """Run the work of CuPy, within the context, on torch's current stream, in memory of torch's allocator.

    Runs reuse buffers, so a stream first waits for the one that used them last. The memory belongs to the stream on
    which it was allocated.
    """
    import cupy

    stream = torch.cuda.current_stream()
    last = _last.get(stream.device_index, stream)
    if last != stream:
        stream.wait_stream(last)
    _last[stream.device_index] = stream
    with (
        cupy.cuda.ExternalStream(stream.cuda_stream, stream.device_index),
        cupy.cuda.using_allocator(_allocator().malloc),
    ):
        yield


@cache
def _allocator() -> Any:
    """Return torch's allocator as one of CuPy, which keeps the functions."""
    import cupy

    return cupy.cuda.PythonFunctionAllocator(_allocate, _free)


def _allocate(n_bytes: int, device: int) -> int:
    """Return the address of memory; raise CuPy's error if there is not enough, as CuPy's own allocator does."""
    import cupy

    try:
        found: int = torch.cuda.caching_allocator_alloc(n_bytes, device, torch.cuda.current_stream(device))
    except torch.OutOfMemoryError as error:
        raise cupy.cuda.memory.OutOfMemoryError(n_bytes, torch.cuda.memory_reserved(device)) from error
    return found


def _free(address: int, device: int) -> None:
    torch.cuda.caching_allocator_delete(address)  # type: ignore[no-untyped-call]
