"""The connection between processes: over `torch.distributed`, or none for a single process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autobatch.devices.store import HOST, Store
from autobatch.errors import DistributedError
from autobatch.release import pip_install

Bytes = NDArray[np.uint8]
IntArray = NDArray[np.int64]


class ConnectionLost(DistributedError):
    """Another process has ended or does not answer."""


class Wire(Protocol):
    """A connection to the other processes; all of them call the same methods in the same order.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes.
    """

    rank: int
    size: int

    def gather(self, ints: IntArray) -> IntArray:
        """Gather the ints (n,) of every process, int64 (size, n)."""

    def gather_objects(self, x: Any) -> list[Any]:
        """Gather the pickled object of every process."""

    def gather_bytes(self, sent: Bytes) -> Bytes:
        """Gather the bytes (n,) of every process, uint8 (size, n), in memory that the next call overwrites."""

    def add_up(self, array: Any, store: Store) -> None:
        """Sum a flat array of a store over all processes, in place; on a GPU asynchronously, in stream order."""

    def close(self) -> None:
        """Close the connection."""


class Alone:
    """The wire of a single process."""

    rank, size = 0, 1

    def gather(self, ints: IntArray) -> IntArray:
        return ints[None]

    def gather_objects(self, x: Any) -> list[Any]:
        return [x]

    def gather_bytes(self, sent: Bytes) -> Bytes:
        return sent[None]

    def add_up(self, array: Any, store: Store) -> None:
        """See `Wire`."""

    def close(self) -> None:
        """See `Wire`."""


class TorchWire:
    """A process group of `torch.distributed`, the existing one or a new one.

    Host data goes through gloo. Arrays on a GPU are summed by NCCL if each process has its own GPU, else on the host.

    Args:
        timeout: longest wait for the other processes, in seconds.

    Raises:
        DistributedError: PyTorch is not installed, or another process does not answer.
    """

    def __init__(self, timeout: float) -> None:
        try:
            from torch import cuda, distributed
        except ModuleNotFoundError:
            raise DistributedError(
                "groups of several processes need PyTorch for their messages, and it is not installed; "
                f"{pip_install('torch')}."
            ) from None
        self._received = np.empty(0, np.uint8)
        self._dist, self._device, longest = distributed, None, timedelta(seconds=timeout)
        with _naming("joining"):
            self._is_ours = not distributed.is_initialized()
            if self._is_ours:
                distributed.init_process_group("gloo", timeout=longest)
            self._host = distributed.new_group(backend="gloo", timeout=longest)
            self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
            n_here = int(os.environ.get("LOCAL_WORLD_SIZE", self.size))
            if distributed.is_nccl_available() and cuda.is_available() and cuda.device_count() >= n_here:
                self._device = distributed.new_group(backend="nccl", timeout=longest)

    def gather(self, ints: IntArray) -> IntArray:
        # Copied, because the next call overwrites the memory.
        return self.gather_bytes(np.ascontiguousarray(ints, np.int64).view(np.uint8)).view(np.int64).copy()

    def gather_objects(self, x: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        with _naming("comparing calls"):
            self._dist.all_gather_object(found, x, group=self._host)
        return found

    def gather_bytes(self, sent: Bytes) -> Bytes:
        import torch

        if self._received.size < self.size * sent.size:
            self._received = np.empty(self.size * sent.size * 5 // 4, np.uint8)
        received = self._received[: self.size * sent.size].reshape(self.size, -1)
        with _naming("exchanging results"):
            self._dist.all_gather(list(torch.from_numpy(received)), torch.from_numpy(sent), group=self._host)
        return received

    def add_up(self, array: Any, store: Store) -> None:
        import torch

        with _naming("summing gradients"):
            if store is HOST:
                self._dist.all_reduce(torch.from_numpy(array), group=self._host)
            elif self._device is None:
                host = store.get(array).copy()
                self._dist.all_reduce(torch.from_numpy(host), group=self._host)
                array[...] = store.put(host)
            else:
                from torch.cuda import ExternalStream
                from torch.utils.dlpack import from_dlpack

                # On the stream of the gradients, so that the sum waits for them, and later work waits for the sum.
                stream: Any = ExternalStream(store.xp.cuda.get_current_stream().ptr)  # type: ignore[no-untyped-call]
                with torch.cuda.stream(stream):
                    self._dist.all_reduce(from_dlpack(array), group=self._device)

    def close(self) -> None:
        if self._is_ours:
            self._dist.destroy_process_group()


@contextmanager
def _naming(doing: str) -> Iterator[None]:
    """Convert errors of the connection to a `ConnectionLost` that says what failed."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConnectionLost(
            f"a process of the group has ended or does not answer: the connection failed while {doing} ({reason}); "
            f"see the output of that process, and resume from the last checkpoint."
        ) from None
