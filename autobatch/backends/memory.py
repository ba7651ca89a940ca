"""The memory of runs: a buffer for the values of a plan, and the state of backward, kept from one run to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import numpy as np

from autobatch.backends.options import Options
from autobatch.devices.store import Store
from autobatch.params.sparse_rows import Gradient, Rows
from autobatch.params.stacks import Stack, Targets

RUNS = 8  # after this many runs in a row, free memory that was too large for each of them
SPARE, SMALL = 4, 2**20  # memory is too large above SPARE times the bytes that a run needs, plus SMALL


class Memory:
    """The memory of one run.

    Attributes:
        buffer: the values of its plan, possibly with spare elements.
        gradients: of parameters that are on the host, while the values are on a device.
        scratch_bytes: bytes of all other memory.
        allocations: arrays that were allocated so far.
    """

    def __init__(self, store: Store) -> None:
        self.store, self.allocations, self.scratch_bytes = store, 0, 0
        self.buffer: Any = store.empty(0, np.dtype(np.float32))
        self.gradients = self.buffer
        self._targets: Targets | None = None

    @property
    def n_bytes(self) -> int:
        """Bytes held."""
        return int(self.buffer.nbytes) + int(self.gradients.nbytes) + self.scratch_bytes

    def reserve(self, size: int, dtype: np.dtype[Any], max_bytes: int | None) -> None:
        """Make room for `size` elements; a buffer that grows grows by at least a quarter, within the limit."""
        is_right = self.buffer.dtype == dtype
        held = self.buffer.size if is_right else 0
        limit = max(size, held * 5 // 4 if max_bytes is None else max_bytes // dtype.itemsize)
        if not is_right or not size <= held <= limit:
            self.buffer = self.store.empty(0, dtype)  # the old one is freed before there is a new one
            self.buffer = self.store.empty(max(size, min(held * 5 // 4, limit)), dtype)
            self.allocations += 1

    def targets(self, gradients: Mapping[int, Gradient], stacks: Sequence[Stack]) -> Targets:
        """The targets that a run adds gradients to: those of the last run if they are for the same gradients."""
        if self._targets is None or not self._targets.restart(gradients, stacks):
            self._targets = Targets(gradients, stacks)
        return self._targets

    @contextmanager
    def on_device(self, targets: Mapping[int, Gradient], options: Options) -> Iterator[Mapping[int, Gradient]]:
        """Give arrays on the device of the values for targets that are on the host, to which they are added.

        They lie one after the other in `gradients`, zero at first; at the end of the context one copy brings
        them to the host. `Rows` stay as they are.
        """
        arrays = {key: target for key, target in targets.items() if not isinstance(target, Rows)}
        size = sum(array.size for array in arrays.values())
        self.gradients = self._reserved(self.gradients, size, options.dtype)
        zeros, found, first = self.gradients[:size], dict(targets), 0
        zeros[...] = 0
        for key, array in arrays.items():
            found[key] = zeros[first : first + array.size].reshape(array.shape)
            first += array.size
        yield found
        added, first = self.store.get(zeros), 0
        for array in arrays.values():
            array += added[first : first + array.size].reshape(array.shape)
            first += array.size

    def _reserved(self, array: Any, size: int, dtype: np.dtype[Any]) -> Any:
        """The array if it is large enough, else a new one."""
        if array.dtype == dtype and array.size >= size:
            return array
        self.allocations += 1
        return self.store.empty(size * 5 // 4, dtype)


M = TypeVar("M", bound=Memory)


class MemoryPool(Generic[M]):
    """Keeps the memory that no run uses, for later runs.

    Frees memory that is far larger than several runs in a row have needed.

    Args:
        make: makes memory when none is left.
    """

    def __init__(self, make: Callable[[], M]) -> None:
        self._make = make
        self._free: list[M] = []
        self._n_small = 0

    @property
    def n_bytes(self) -> int:
        """Return the bytes of unused memory."""
        return sum(memory.n_bytes for memory in self._free)

    def take(self) -> M:
        """Take the memory that was given back last, or make some."""
        return self._free.pop() if self._free else self._make()

    def give_back(self, memory: M, needed: int) -> None:
        """Return memory to the pool; the run used `needed` bytes of it."""
        self._free.append(memory)
        limit = SPARE * needed + SMALL
        self._n_small = self._n_small + 1 if memory.buffer.nbytes > limit else 0
        if self._n_small == RUNS:
            from autobatch.system.freeing import give_back_freed

            self._n_small = 0
            self._free = [memory for memory in self._free if memory.buffer.nbytes <= limit]
            give_back_freed()
