"""Interpret cells op by op: the reference backend, against which every other backend is tested."""

from __future__ import annotations

from typing import Any

import numpy as np

from autobatch.backends.base import Timer
from autobatch.backends.driver import PlanExecutable, PlanRun
from autobatch.backends.options import Options
from autobatch.backends.values import Memory, MemoryPool
from autobatch.compiler.writer import WEIGHTS
from autobatch.devices.store import HOST, Store
from autobatch.ops.randomness import Randomness
from autobatch.plan.plan import Plan, PlannedTypes


class Reference:
    """The backend that runs plans by array functions, those of NumPy or of another device.

    Args:
        poison: whether to fill the buffer with NaN before each run, to expose reads of memory that was never written.
        store: the memory of the device.
    """

    name = "reference"

    def __init__(self, poison: bool = False, store: Store = HOST) -> None:
        self.poison, self.store = poison, store
        self.pool = MemoryPool(lambda: Memory(store))

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the constructor and its arguments; copies and pickles have their own memory."""
        return type(self), (self.poison, self.store)

    def table_sizes(self, cells: PlannedTypes, options: Options) -> None:
        """Return None, for no tables; see `Backend`."""

    def prepare(self, plan: Plan, cells: PlannedTypes, options: Options, tables: Any = None) -> InterpretedPlan:
        """Prepare a plan; see `Backend`."""
        options.check_store(self.name, HOST, self.store)
        return InterpretedPlan(self, plan, cells, options)


class InterpretedPlan(PlanExecutable):
    """A plan that is interpreted; see `Executable`."""

    def __init__(self, backend: Reference, plan: Plan, cells: PlannedTypes, options: Options) -> None:
        super().__init__(plan, cells, options)
        self.backend, self.n_bytes = backend, plan.n_bytes(options.dtype)

    def begin(self, randomness: Randomness, timer: Timer | None = None) -> InterpretedRun:
        """Make a run; see `Executable`."""
        return InterpretedRun(self, self.backend.pool, self.backend.store, randomness, timer)


class InterpretedRun(PlanRun[Memory]):
    """A run of an interpreted plan."""

    executable: InterpretedPlan

    def _reserve(self) -> None:
        self.memory.reserve(self.plan.size, self.options.dtype, self.options.max_bytes)
        if self.executable.backend.poison:
            self.memory.buffer.fill(np.nan)

    def _bind(self) -> bool:
        self._stages = {name: InterpretedStage(self, name) for name in ("forward", "backward", WEIGHTS)}
        return False


class InterpretedStage:
    """A stage whose parts the interpreter runs; see `StageRunner`."""

    def __init__(self, run: InterpretedRun, name: str) -> None:
        self._run, self._name = run, name

    def run(self, first: int, last: int) -> int:
        """Run parts first:last; return 0, because the interpreter counts launches. See `StageRunner`."""
        plan, interpreter = self._run.plan, self._run.interpreter
        batches = plan.batches
        if self._name == WEIGHTS:
            for type_id in sorted(plan.type_bases):
                # This computes all gradients of a type, so the parts from T on, for its other steps, are empty.
                if first <= type_id < last:
                    interpreter.weight_gradients(type_id, self._run.targets)
            return 0
        # Parts 0 and B + 1 are empty: only compiled stages have hoisted steps. Backward starts at the last batch.
        for part in range(max(first, 1), min(last, len(batches) + 1)):
            if self._name == "forward":
                interpreter.forward_batch(batches[part - 1])
            else:
                interpreter.backward_batch(batches[-part])
        return 0
