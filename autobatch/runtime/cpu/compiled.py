"""The compiled types of a plan: the memory that their cells need, and their steps, bound to one run at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.compiler.writer import COMMON
from autobatch.jit.addresses import address_of
from autobatch.plan.plan import PlannedTypes
from autobatch.runtime.cpu.stage_values import Arrays, StageRun
from autobatch.runtime.cpu.stages import CompiledCell, CompiledStage
from autobatch.runtime.cpu.steps import make_calls
from autobatch.runtime.cpu.team import Sweeps
from autobatch.runtime.pieces import Calls, most_rows
from autobatch.runtime.preparing import PreparedTypes

LongArray = NDArray[np.int64]
SCRATCH = COMMON.index("scratch")
MOST_BOUND = 32  # sets of types whose bound stages are cached; making one takes some microseconds


class CompiledTypes(PreparedTypes[CompiledCell]):
    """The cells of all types, compiled with the same options."""

    def __init__(self, types: PlannedTypes, dtype: np.dtype[Any]) -> None:
        super().__init__(types, dtype, most_rows)
        self._bound: dict[tuple[Any, ...], BoundStages] = {}

    def bound(self, name: str, kinds: Sequence[int]) -> BoundStages:
        """The bound stages of some types; the most recently used sets of types are cached."""
        key = name, *kinds
        found = self._bound.pop(key, None)
        if found is None:
            found = BoundStages(name, [self.cells[kind].stage(name) for kind in kinds])
            if len(self._bound) == MOST_BOUND:
                del self._bound[next(iter(self._bound))]
        self._bound[key] = found
        return found


class BoundStages:
    """A stage of several types, bound to one run at a time: the steps of all types, and their calls in order."""

    def __init__(self, name: str, stages: list[CompiledStage]) -> None:
        self.name, self.stages = name, stages
        self.steps = [step for stage in stages for step in stage.steps]
        self._common = np.zeros((1, len(COMMON)), np.int64)
        self._addresses = np.empty((1, len(self.steps), 3), np.int64)
        self._calls: Calls
        self._sweeps = Sweeps()

    def place(self, arrays: tuple[Any, ...], scratch: Any) -> Arrays:
        """Store the addresses of the arrays that all stages read, per thread: each has its own row of scratch."""
        if len(self._common) != len(scratch):
            self._common = np.zeros((len(scratch), len(COMMON)), np.int64)
        found = [address_of(array) for array in arrays]
        for addresses, row in zip(self._common, scratch, strict=True):
            found[SCRATCH] = address_of(row)
            for number, address in enumerate(found):
                addresses[number] = address
        return Arrays(arrays, self._common)

    def bind(self, runs: Iterable[StageRun], calls: Calls) -> None:
        """Take the arrays of a run for each stage, and the calls."""
        for stage, run in zip(self.stages, runs, strict=True):
            stage.bind(run)
        found = [stage.addresses for stage in self.stages]
        if len(self._addresses) != len(found[0]):
            self._addresses = np.empty((len(found[0]), len(self.steps), 3), np.int64)
        np.concatenate(found, axis=1, out=self._addresses)
        self._calls = calls
        self._is_shared = len(self._addresses) > 1 and bool(self._addresses[0, :, 0].all())

    def release(self) -> None:
        """Drop the arrays of the run."""
        for stage in self.stages:
            stage.release()

    @property
    def n_batches(self) -> int:
        """The number of batches of the run."""
        return len(self._calls.ptr) - 3

    def call(self, first: int, last: int) -> int:
        """Make the calls of parts first:last and return their number; part 0 is the prologue, see `Calls`."""
        calls, piece_ptr, ptr, _ = self._calls
        start, end = int(piece_ptr[ptr[first]]), int(piece_ptr[ptr[last]])
        if self._is_shared and ptr[last] - ptr[first] > last - first:
            self._sweeps.run(self._addresses, self._calls, first, last)
        else:
            make_calls(self._addresses[0], self.steps, calls, start, end)
        return end - start
