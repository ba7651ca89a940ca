"""The reference backend: interprets cells op by op; every other backend is tested against it.

The batches run in order, and backward in reverse. Gradients of parameters are computed last, once per type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from autobatch.backends.base import Counts, Timer
from autobatch.backends.interpreter.interpreter import Interpreter
from autobatch.backends.interpreter.values import Values
from autobatch.backends.memory import Memory, MemoryPool
from autobatch.backends.options import Options
from autobatch.backends.run import PooledRun
from autobatch.blas.threads import limit_threads
from autobatch.devices.store import HOST, Store
from autobatch.ops.randomness import Randomness
from autobatch.params.sparse_rows import Gradient, Rows
from autobatch.params.stacks import refresh
from autobatch.plan.plan import Batch, Plan, PlannedTypes


class Reference:
    """Runs plans with array functions, of NumPy or of another device.

    Args:
        poison: fill the buffer with NaN before each run, so that reads of memory that was never written show.
        store: the memory of the device.
    """

    name = "reference"

    def __init__(self, poison: bool = False, store: Store = HOST) -> None:
        self.poison, self.store = poison, store
        self.pool = MemoryPool(lambda: Memory(store))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles have their own memory."""
        return type(self), (self.poison, self.store)

    def prepare(self, plan: Plan, cells: PlannedTypes, options: Options) -> InterpretedPlan:
        """Prepare a plan; see `Backend`."""
        options.check_store(self.name, HOST, self.store)
        return InterpretedPlan(self, plan, cells, options)


class InterpretedPlan:
    """A plan that is interpreted; see `Executable`."""

    def __init__(self, backend: Reference, plan: Plan, cells: PlannedTypes, options: Options) -> None:
        self.backend, self.plan, self.cells, self.options = backend, plan, cells, options
        self.n_bytes = plan.n_bytes(options.dtype)

    def forward(self, randomness: Randomness, timer: Timer | None = None, copies: bool = True) -> InterpretedRun:
        """Compute all values; see `Executable`."""
        return InterpretedRun(self, randomness, timer, copies)


class InterpretedRun(PooledRun[Memory]):
    """A run of an interpreted plan."""

    def __init__(self, executable: InterpretedPlan, randomness: Randomness, timer: Timer | None, copies: bool) -> None:
        self._executable, self._randomness, self.store = executable, randomness, executable.backend.store
        super().__init__(executable.backend.pool, timer, copies)

    def _forward(self) -> Values:
        plan, cells, options = self._executable.plan, self._executable.cells, self._executable.options
        self.memory.reserve(plan.size, options.dtype, options.max_bytes)
        if self._executable.backend.poison:
            self.memory.buffer.fill(np.nan)
        self._allocations = self.memory.take_allocations()
        values = Values(plan, cells, self.memory.buffer, self._executable.backend.store)
        self._interpreter = Interpreter(values, options, self._randomness)
        self._interpreter.copied_bytes += refresh(cells.stacks)
        with limit_threads(options.threads):
            self.lap("forward", None)
            for batch in plan.batches:
                self._interpreter.forward_batch(batch)
                self.lap("forward", batch)
        return values

    def _backward(self, seeds: Mapping[int, Any], into: Mapping[int, Gradient]) -> None:
        plan, cells, values = self._executable.plan, self._executable.cells, self._interpreter.values
        activity, store = self.memory.activity, values.store
        activity.mark(plan, cells, seeds)
        targets = self.memory.targets(into, cells.stacks)
        gradients = {key: gradient_on(store, target) for key, target in targets.arrays.items()}
        for slot in range(len(cells.slot_shapes)):
            values.slot(slot, plan.mirror)[...] = store.put(seeds[slot]) if slot in seeds else 0
        with limit_threads(self._executable.options.threads):
            self.lap("backward", None)
            for batch in reversed(plan.batches):
                self._interpreter.backward_batch(batch, activity.rows(batch.kind, batch.start, batch.end))
                self.lap("backward", batch)
            for kind, n_rows in enumerate(np.diff(plan.type_ptr).tolist()):
                active = activity.rows(kind, 0, n_rows)
                if active.any():
                    self._interpreter.weight_gradients(kind, active, gradients)
                    self.lap("weights", Batch(kind, 0, n_rows, plan.type_bases[kind]))
        for key, target in targets.arrays.items():
            if gradients[key] is not target:
                target += store.get(gradients[key])
        self._interpreter.copied_bytes += targets.finish()

    def on_device(self, slot: int) -> Any:
        """The values of a slot on the device; see `Run`."""
        return self._interpreter.values.slot(slot)

    def _gradients(self, kind: int) -> Any:
        return self._interpreter.values.output_gradients(kind, self.memory.activity)

    def counts(self) -> Counts:
        """The work of the run so far."""
        interpreter = self._interpreter
        return Counts(interpreter.launches, interpreter.copied_bytes, self._allocations, self.memory.n_bytes)

    def _forget(self) -> None:
        vars(self).pop("_interpreter", None)
        del self.memory


def gradient_on(store: Store, target: Gradient) -> Any:
    """The array on the device that a gradient is added to: `target` if it is there, else zeros; `Rows` as they are."""
    if isinstance(target, Rows):
        return target
    held = store.put(target)
    return held if held is target else store.xp.zeros(target.shape, target.dtype)
