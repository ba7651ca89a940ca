"""The common part of the runs of all backends: take memory, run forward and backward once, and give memory back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from autobatch.backends.base import Timer
from autobatch.backends.memory import Memory, MemoryPool
from autobatch.devices.store import Store
from autobatch.errors import BackendError
from autobatch.params.sparse_rows import Gradient
from autobatch.plan.plan import Batch

M = TypeVar("M", bound=Memory)


class Computed(Protocol):
    """The values of a run."""

    def outputs(self) -> Callable[[], list[Any]]:
        """Begin to copy the values of each slot to the host; what is returned waits for them, as NumPy arrays."""


class PooledRun(ABC, Generic[M]):
    """A run in memory from a pool; see `autobatch.backends.base.Run`.

    Args:
        pool: the pool that memory is taken from.
        timer: is called when each batch is done.
        copies: whether outputs are copied to the host; if not, only `on_device` gives them.

    Attributes:
        memory: the memory of the run, until it is closed.
        store: that of the device.
    """

    store: Store

    def __init__(self, pool: MemoryPool[M], timer: Timer | None, copies: bool) -> None:
        self._pool, self._timer, self._ended = pool, timer, ""
        self.memory = pool.take()
        try:
            with silent():
                values = self._forward()
                self._read = values.outputs() if copies else None
        except BaseException:
            self.close()
            raise

    @cached_property
    def outputs(self) -> list[Any]:
        """The values that the user asked for; see `Run`."""
        if self._read is None:
            raise BackendError("reading the outputs of a run that does not copy them to the host.")
        return self._read()

    def backward(self, seeds: Mapping[int, Any], into: Mapping[int, Gradient]) -> None:
        """Differentiate the run; see `Run`."""
        if self._ended:
            raise BackendError(f"differentiating a run: it is {self._ended} already, and its values are gone.")
        self._ended = "differentiated"
        with silent():
            self._backward(seeds, into)

    def gradients(self, kind: int) -> Any:
        """The gradients of the first output of all nodes of a type; see `Run`."""
        if self._ended != "differentiated":
            raise BackendError("reading the gradients of a run that is not differentiated, or closed already.")
        return self._gradients(kind)

    def close(self) -> None:
        """Give the memory back to the pool; see `Run`."""
        if self._ended != "closed":
            self._ended = "closed"
            self._pool.give_back(self.memory)
            self._forget()

    def lap(self, stage: str, batch: Batch | None, end: float | None = None) -> None:
        """Tell the timer, if there is one, that a batch is done; see `Timer`."""
        if self._timer is not None:
            self._timer.lap(stage, batch, end)

    @abstractmethod
    def _forward(self) -> Computed:
        """Compute all values, and return them."""

    @abstractmethod
    def _backward(self, seeds: Mapping[int, Any], into: Mapping[int, Gradient]) -> None:
        """Add to the gradients."""

    @abstractmethod
    def _gradients(self, kind: int) -> Any:
        """Read the gradients of the first output of all nodes of a type."""

    @abstractmethod
    def _forget(self) -> None:
        """Drop all references to the memory."""


def silent() -> np.errstate:
    """Silence NumPy's floating-point warnings while batches run: `value_and_grad` refuses a loss that is not finite."""
    return np.errstate(over="ignore", divide="ignore", invalid="ignore")
