"""What processes send each other, over `torch.distributed`; a process that is alone sends nothing."""

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
    """A process that has ended, or does not answer."""


class Wire(Protocol):
    """A connection to the other processes; all of them call the same methods in the same order.

    Attributes:
        rank: the number of this process; size: how many there are.
    """

    rank: int
    size: int

    def gather(self, ints: IntArray) -> IntArray:
        """The ints (n,) of every process, int64 (size, n)."""

    def gather_objects(self, x: Any) -> list[Any]:
        """The object of every process, through pickle."""

    def gather_bytes(self, sent: Bytes) -> Bytes:
        """The bytes (n,) of every process, uint8 (size, n), in memory that the next call overwrites."""

    def add_up(self, array: Any, store: Store) -> None:
        """Replace a flat array of a store by the sum of those of all processes; one of a GPU later, in its order."""

    def close(self) -> None:
        """Leave the others."""


class Alone:
    """The wire of a process without others."""

    rank, size = 0, 1

    def gather(self, ints: IntArray) -> IntArray:
        """See `Wire`."""
        return ints[None]

    def gather_objects(self, x: Any) -> list[Any]:
        """See `Wire`."""
        return [x]

    def gather_bytes(self, sent: Bytes) -> Bytes:
        """See `Wire`."""
        return sent[None]

    def add_up(self, array: Any, store: Store) -> None:
        """See `Wire`."""

    def close(self) -> None:
        """See `Wire`."""


class TorchWire:
    """The process group of `torch.distributed`, which is made if there is none.

    What is known on the host goes through gloo. Arrays of a GPU are added up by NCCL where each process has a GPU of
    its own, and else on the host.

    Args:
        timeout: seconds after which a process that waits for the others gives up.

    Raises:
        DistributedError: PyTorch is not installed, or the others do not answer.
    """

    def __init__(self, timeout: float) -> None:
        try:
            from torch import cuda, distributed
        except ModuleNotFoundError:
            raise DistributedError(
                "several processes need PyTorch, which carries what they send each other, and it is not installed; "
                f"{pip_install('torch')}."
            ) from None
        self._received = np.empty(0, np.uint8)
        self._dist, self._device, longest = distributed, None, timedelta(seconds=timeout)
        with _naming("met"):
            self._is_ours = not distributed.is_initialized()
            if self._is_ours:
                distributed.init_process_group("gloo", timeout=longest)
            self._host = distributed.new_group(backend="gloo", timeout=longest)
            self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
            n_here = int(os.environ.get("LOCAL_WORLD_SIZE", self.size))
            if distributed.is_nccl_available() and cuda.is_available() and cuda.device_count() >= n_here:
                self._device = distributed.new_group(backend="nccl", timeout=longest)

    def gather(self, ints: IntArray) -> IntArray:
        """See `Wire`."""
        return self.gather_bytes(np.ascontiguousarray(ints, np.int64).view(np.uint8)).view(np.int64).copy()

    def gather_objects(self, x: Any) -> list[Any]:
        """See `Wire`."""
        found: list[Any] = [None] * self.size
        with _naming("compared what they do"):
            self._dist.all_gather_object(found, x, group=self._host)
        return found

    def gather_bytes(self, sent: Bytes) -> Bytes:
        """See `Wire`."""
        import torch

        if self._received.size < self.size * sent.size:
            self._received = np.empty(self.size * sent.size * 5 // 4, np.uint8)
        received = self._received[: self.size * sent.size].reshape(self.size, -1)
        with _naming("exchanged what they know"):
            self._dist.all_gather(list(torch.from_numpy(received)), torch.from_numpy(sent), group=self._host)
        return received

    def add_up(self, array: Any, store: Store) -> None:
        """See `Wire`."""
        import torch

        with _naming("added up gradients"):
            if store is HOST:
                self._dist.all_reduce(torch.from_numpy(array), group=self._host)
            elif self._device is None:
                host = store.get(array).copy()
                self._dist.all_reduce(torch.from_numpy(host), group=self._host)
                array[...] = store.put(host)
            else:
                from torch.cuda import ExternalStream
                from torch.utils.dlpack import from_dlpack

                stream: Any = ExternalStream(store.xp.cuda.get_current_stream().ptr)  # type: ignore[no-untyped-call]
                with torch.cuda.stream(stream):
                    self._dist.all_reduce(from_dlpack(array), group=self._device)

    def close(self) -> None:
        """See `Wire`."""
        if self._is_ours:
            self._dist.destroy_process_group()


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Name what failed in an error of the connection."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConnectionLost(
            f"a process of the group has ended or does not answer: the connection failed while they {what} ({reason}); "
            f"see what that process says, and go on from the last checkpoint."
        ) from None
