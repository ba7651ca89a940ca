"""The cpu backend: cells compiled into a few steps, on the plans that the reference backend interprets.

Batches are cut into pieces (tiles). The rows of each piece and the calls for it are worked out once per plan. A step is
a call with the number of a piece: of a generated kernel, a matrix product, or an interpreted op. One compiled loop
makes all calls, and stops only for interpreted ops; if there are none, several threads can make the calls. Values that
depend on parameters alone are computed when a parameter may have changed. The gradient of a weight is one product over
all rows of a type, and that of a bias is one pass over them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from autobatch.backends.activity import Activity
from autobatch.backends.base import Counts, Timer
from autobatch.backends.cpu.compiled import BoundRun, BoundStages, CompiledTypes
from autobatch.backends.cpu.memory import CpuMemory
from autobatch.backends.cpu.products import FastProducts
from autobatch.backends.cpu.rounding import Outers
from autobatch.backends.cpu.stages import CompiledCell
from autobatch.backends.interpreter.frame import RowRange
from autobatch.backends.interpreter.values import Values
from autobatch.backends.memory import MemoryPool
from autobatch.backends.options import Options
from autobatch.backends.run import PooledRun
from autobatch.blas.choosing import BY_SIZE, Chooser
from autobatch.blas.threads import limit_threads
from autobatch.compiler.numba.loading import is_jitted
from autobatch.devices.store import HOST
from autobatch.ops.randomness import Randomness
from autobatch.params.sparse_rows import Gradient
from autobatch.params.stacks import refresh
from autobatch.plan.plan import Batch, Plan, PlannedTypes


class Cpu:
    """Runs plans with compiled cells.

    A compiled cell is kept as long as any types or prepared plans that have it are alive.

    Args:
        poison: fill the buffer with NaN before each run, so that reads of memory that was never written show.
        jitted: compile the generated kernels; by default unless `AUTOBATCH_JIT` is 0.
        provider: the name of the library that multiplies matrices; by default the fastest for each size.
    """

    name = "cpu"

    def __init__(self, poison: bool = False, jitted: bool | None = None, provider: str | None = None) -> None:
        self.poison, self.jitted = poison, is_jitted() if jitted is None else jitted
        self.chooser, self.pool, self.outers = Chooser(provider), MemoryPool(CpuMemory), Outers()
        self._types: WeakKeyDictionary[PlannedTypes, dict[tuple[Any, str], CompiledTypes]] = WeakKeyDictionary()
        self._cells: WeakValueDictionary[tuple[int, Any, str], CompiledCell] = WeakValueDictionary()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles have their own memory, and compile anew."""
        return type(self), (self.poison, self.jitted, None if self.chooser.name == BY_SIZE else self.chooser.name)

    def prepare(self, plan: Plan, cells: PlannedTypes, options: Options) -> CompiledPlan:
        """Cut the batches of a plan into pieces, and lower the stages of its cells; see `Backend`."""
        options.check_store(self.name, HOST)
        return CompiledPlan(self, plan, cells, options)

    def compiled_types(self, cells: PlannedTypes, options: Options) -> CompiledTypes:
        """The compiled types that all plans of these types share."""
        found, way = self._types.setdefault(cells, {}), (options.dtype, options.precision)
        if way not in found:
            found[way] = CompiledTypes(cells, options.dtype)
        return found[way]

    def compiled_cell(self, cells: PlannedTypes, options: Options, kind: int) -> CompiledCell:
        """The cell of a type, compiled for these options; all `PlannedTypes` that have the cell share it."""
        key = id(cells.cells[kind]), options.dtype, options.precision
        found = self._cells.get(key)
        if found is None:
            found = CompiledCell(cells.cells[kind], options.dtype, self.jitted, options.precision)
            self._cells[key] = found
        return found


class CompiledPlan:
    """A prepared plan, with all that a run needs except memory; see `Executable`.

    Attributes:
        types: its types, compiled.
        prepared: the rows of each piece, and the calls for it.
        n_threads: how many threads run pieces.
    """

    def __init__(self, backend: Cpu, plan: Plan, cells: PlannedTypes, options: Options) -> None:
        self.backend, self.plan, self.cells, self.options = backend, plan, cells, options
        self.n_threads = options.threads if backend.jitted else 1
        self.types = backend.compiled_types(cells, options)
        compile_cell = partial(backend.compiled_cell, cells, options)
        self.prepared = self.types.prepare(plan, compile_cell, self.n_threads)
        scratch = self.n_threads * self.prepared.scratch_size + self.prepared.kept_size
        self.n_bytes = (plan.size + scratch) * options.dtype.itemsize

    def forward(self, randomness: Randomness, timer: Timer | None = None, copies: bool = True) -> CompiledRun:
        """Compute all values; see `Executable`."""
        return CompiledRun(self, randomness, timer, copies)


class CompiledRun(PooledRun[CpuMemory]):
    """A run of compiled cells."""

    def __init__(self, executable: CompiledPlan, randomness: Randomness, timer: Timer | None, copies: bool) -> None:
        self._executable, self._randomness, self.store = executable, randomness, HOST
        super().__init__(executable.backend.pool, timer, copies)

    def _forward(self) -> Values:
        executable = self._executable
        plan, options = executable.plan, executable.options
        self.memory.reserve_all(plan.size, executable.prepared, options.dtype, executable.n_threads, options.max_bytes)
        if executable.backend.poison:
            self.memory.poison()
        self._allocations, self._launches = self.memory.take_allocations(), 0
        self._values = Values(plan, executable.cells, self.memory.buffer, HOST)
        self._copied_bytes = refresh(executable.cells.stacks)
        bound, run = self._bound("forward")
        with self._threads() if bound.may_call_library(run) else nullcontext():
            self._sweep(bound, run, None)
        return self._values

    def _backward(self, seeds: Mapping[int, Any], into: Mapping[int, Gradient]) -> None:
        plan, cells, activity = self._executable.plan, self._executable.cells, self.memory.activity
        activity.mark(plan, cells, seeds)
        targets = self.memory.targets(into, cells.stacks)
        for slot in range(len(cells.slot_shapes)):
            self._values.slot(slot, plan.mirror)[...] = seeds.get(slot, 0)
        with self._threads():
            self._sweep(*self._bound("backward"), None if activity.is_whole else activity)
            self.lap("backward", None)  # work after the last batch counts as backward, not as weights
            ends = plan.type_ptr.tolist()
            for kind in range(len(ends) - 1):
                n_rows = ends[kind + 1] - ends[kind]
                if n_rows and (activity.is_whole or activity.rows(kind, 0, n_rows).any()):
                    self._weight_gradients(kind, activity, targets.arrays)
                    self.lap("weights", Batch(kind, 0, n_rows, plan.type_bases[kind]))
        self._copied_bytes += targets.finish()

    def on_device(self, slot: int) -> Any:
        """The values of a slot on the device; see `Run`."""
        return self._values.slot(slot)

    def _gradients(self, kind: int) -> Any:
        return self._values.output_gradients(kind, self.memory.activity)

    def counts(self) -> Counts:
        """The work of the run so far."""
        launches = self._launches + (self._interpreter.launches if "_interpreter" in vars(self) else 0)
        return Counts(launches, self._copied_bytes, self._allocations, self.memory.n_bytes)

    def _forget(self) -> None:
        for name in ("_values", "_interpreter"):
            vars(self).pop(name, None)
        del self.memory

    @cached_property
    def _interpreter(self) -> FastProducts:
        """An interpreter for instructions that no step runs."""
        executable = self._executable
        options, chooser, jitted = executable.options, executable.backend.chooser, executable.backend.jitted
        return FastProducts(self._values, options, self._randomness, chooser, jitted)

    def _threads(self) -> AbstractContextManager[int]:
        """Limit each library call to one thread while several threads run pieces."""
        return limit_threads(1 if self._executable.n_threads > 1 else self._executable.options.threads)

    # Batches.

    def _bound(self, name: str) -> tuple[BoundStages, BoundRun]:
        """A stage of all types of the plan, and what this run binds it to."""
        executable, prepared = self._executable, self._executable.prepared
        bound = executable.types.bound(name, prepared.kinds, executable.n_threads)
        calls = prepared.forward if name == "forward" else prepared.backward
        memory, chooser = self.memory, executable.backend.chooser
        return bound, BoundRun(executable.plan, prepared, name, calls, chooser, memory, self._randomness)

    def _sweep(self, bound: BoundStages, run: BoundRun, activity: Activity | None) -> None:
        """Make all calls of a stage; in one compiled call if there is no timer and all nodes are active."""
        plan, name, n_batches = run.plan, run.name, len(run.calls.ptr) - 3
        try:
            bound.bind(run)
            if self._timer is None and activity is None:
                self._launches += bound.call(0, n_batches + 2)
                return
            self._launches += bound.call(0, 1)
            self.lap(name, None)
            for at, batch in enumerate(plan.batches if name == "forward" else plan.batches[::-1], start=1):
                rows = None if activity is None else activity.rows(batch.kind, batch.start, batch.end)
                if rows is None or rows.any():
                    self._launches += bound.call(at, at + 1)
                if rows is not None and not rows.all():
                    self._values.clear_inactive(RowRange(plan, batch, HOST), rows)
                self.lap(name, batch)
            self._launches += bound.call(n_batches + 1, n_batches + 2)
        finally:
            bound.release()

    def _weight_gradients(self, kind: int, activity: Activity, gradients: Mapping[int, Gradient]) -> None:
        """Run the weight stage of a type: directly by addresses if it can be, else by the interpreter."""
        executable, backend = self._executable, self._executable.backend
        plan, stage = executable.plan, executable.types.cells[kind].weights
        outers = backend.outers if executable.options.precision == "bf16" else None
        is_direct = stage.is_direct and backend.jitted and activity.is_whole
        buffer, n_threads = self.memory.buffer, executable.n_threads
        if is_direct and stage.run(plan, kind, buffer, executable.backend.chooser, gradients, outers, n_threads):
            self._launches += stage.n_launches
        else:
            active = activity.rows(kind, 0, int(plan.type_ptr[kind + 1] - plan.type_ptr[kind]))
            self._interpreter.weight_gradients(kind, active, gradients)
