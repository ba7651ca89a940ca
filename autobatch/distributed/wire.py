"""What processes send each other, over `torch.distributed`; a process that is alone sends nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autobatch.devices.store import HOST, Store
from autobatch.errors import DistributedError

Array = NDArray[Any]
IntArray = NDArray[np.int64]


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

    def gather_rows(self, rows: Any, counts: Sequence[int], store: Store) -> Any:
        """The rows of all processes, one after the other.

        Args:
            rows: array of a store (n, ...); counts: the n of each process.
        """

    def begin_sum(self, array: Any, store: Store) -> Callable[[], None]:
        """Begin to add up a flat array of all processes, in place; what is given waits until that is done."""

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

    def gather_rows(self, rows: Any, counts: Sequence[int], store: Store) -> Any:
        """See `Wire`."""
        return rows

    def begin_sum(self, array: Any, store: Store) -> Callable[[], None]:
        """See `Wire`."""
        return _nothing

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
                "pip install 'autobatch[torch]'."
            ) from None
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
        return self._gathered(ints).reshape(self.size, -1)

    def gather_objects(self, x: Any) -> list[Any]:
        """See `Wire`."""
        found: list[Any] = [None] * self.size
        with _naming("compared what they do"):
            self._dist.all_gather_object(found, x, group=self._host)
        return found

    def gather_rows(self, rows: Any, counts: Sequence[int], store: Store) -> Any:
        """See `Wire`."""
        padded = np.zeros((max(counts), *rows.shape[1:]), rows.dtype)
        padded[: len(rows)] = store.get(rows)
        found = self._gathered(padded).reshape(self.size, *padded.shape)
        return store.put(np.concatenate([own[:n] for own, n in zip(found, counts, strict=True)]))

    def _gathered(self, array: Array) -> Array:
        import torch

        own = torch.from_numpy(np.ascontiguousarray(array).reshape(-1))
        found = torch.empty(self.size * own.numel(), dtype=own.dtype)
        with _naming("exchanged what they know"):
            self._dist.all_gather(list(found.view(self.size, -1)), own, group=self._host)
        return found.numpy()

    def begin_sum(self, array: Any, store: Store) -> Callable[[], None]:
        """See `Wire`."""
        import torch

        with _naming("added up gradients"):
            if store is HOST:
                return _waiting(self._dist.all_reduce(torch.from_numpy(array), group=self._host, async_op=True))
            if self._device is not None:
                from torch.cuda import ExternalStream
                from torch.utils.dlpack import from_dlpack

                stream: Any = ExternalStream(store.xp.cuda.get_current_stream().ptr)  # type: ignore[no-untyped-call]
                with torch.cuda.stream(stream):
                    self._dist.all_reduce(from_dlpack(array), group=self._device)
                return _nothing
            host = store.get(array).copy()
            self._dist.all_reduce(torch.from_numpy(host), group=self._host)
            array[...] = store.put(host)
            return _nothing

    def close(self) -> None:
        """See `Wire`."""
        if self._is_ours:
            self._dist.destroy_process_group()


def _waiting(work: Any) -> Callable[[], None]:
    def wait() -> None:
        with _naming("added up gradients"):
            work.wait()

    return wait


def _nothing() -> None:
    """Wait for a sum that is done."""


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Name what failed in an error of the connection."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise DistributedError(
            f"a process of the group has ended or does not answer: the connection failed while they {what} ({reason}); "
            f"see what that process says, and go on from the last checkpoint."
        ) from None
