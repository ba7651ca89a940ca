"""The cpu backend: cells compiled into a few steps, on the plans that the reference backend interprets.

Batches are cut into tiles. The rows of each tile and the calls for it are worked out once per plan. A step is
a call with the number of a tile: of a generated kernel, a matrix product, or an interpreted op. One native loop makes
all calls. It stops only for interpreted ops; without any, several threads can share the calls. Values that depend on
parameters alone are computed when a parameter may have changed. The gradient of a weight is one product over
all rows of a type, and that of a bias is one pass over them.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any
from weakref import WeakValueDictionary

from autobatch.backends.base import Timer
from autobatch.backends.cpu.compiled import BoundCells, BoundRun, BoundTypes, place_type
from autobatch.backends.cpu.memory import CpuMemory, Needed
from autobatch.backends.cpu.stages import CompiledCell
from autobatch.backends.driver import PlanExecutable, PlanRun
from autobatch.backends.memory import MemoryPool
from autobatch.backends.options import Options
from autobatch.backends.reference import InterpretedPlan, Reference
from autobatch.blas.choosing import BY_SIZE, Chooser
from autobatch.blas.threads import Limit
from autobatch.compiler.tiles import WEIGHTS
from autobatch.devices.store import HOST
from autobatch.ops.randomness import Randomness
from autobatch.plan.plan import CellSizes, Plan, PlannedTypes
from autobatch.system.background import patience


class Cpu:
    """Runs plans with compiled cells.

    A compiled cell is kept as long as any types or prepared plans that have it are alive.

    Args:
        poison: fill the buffer with NaN before each run, so that reads of memory that was never written show.
        provider: the name of the library that multiplies matrices; by default the fastest for each size.
    """

    name = "cpu"

    def __init__(self, poison: bool = False, provider: str | None = None) -> None:
        self.poison, self.chooser, self.pool = poison, Chooser(provider), MemoryPool(CpuMemory)
        self.reference = Reference(poison)
        self._cells: WeakValueDictionary[tuple[int, Any, str], CompiledCell] = WeakValueDictionary()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles have their own memory."""
        return type(self), (self.poison, None if self.chooser.name == BY_SIZE else self.chooser.name)

    def table_sizes(self, cells: PlannedTypes, options: Options) -> tuple[CellSizes, int]:
        """The sizes of cells, and the threads of the options; see `Backend`."""
        return self.compiled_types(cells, options).sizes, options.threads

    def prepare(
        self, plan: Plan, cells: PlannedTypes, options: Options, tables: tuple[Any, ...] | None = None
    ) -> CompiledPlan:
        """Cut the batches of a plan into tiles, and lower the stages of its cells; see `Backend`."""
        options.check_store(self.name, HOST)
        return CompiledPlan(self, plan, cells, options, tables)

    def compiled_types(self, cells: PlannedTypes, options: Options) -> BoundTypes:
        """The compiled types that all plans of these types share."""
        way = self, options.dtype, options.precision
        found: BoundTypes | None = cells.compiled.get(way)
        if found is None:
            found = cells.compiled[way] = BoundTypes(cells, options.dtype)
        return found

    def compiled_cell(self, cells: PlannedTypes, options: Options, type_id: int) -> CompiledCell:
        """The cell of a type, compiled for these options; all `PlannedTypes` that have the cell share it."""
        key = id(cells.cells[type_id]), options.dtype, options.precision
        found = self._cells.get(key)
        if found is None:
            found = CompiledCell(cells.cells[type_id], options.dtype, options.precision)
            self._cells[key] = found
        return found


class CompiledPlan(PlanExecutable):
    """A plan with all that a run needs except memory; see `Executable`.

    Attributes:
        types: its types, compiled.
        tables: its tiles, and the calls for each of them.
        place: the name of the type of its destinations.
        n_threads: how many threads run tiles.
    """

    def __init__(
        self, backend: Cpu, plan: Plan, cells: PlannedTypes, options: Options, tables: tuple[Any, ...] | None
    ) -> None:
        super().__init__(plan, cells, options)
        self.backend, self.n_threads = backend, options.threads
        self.types, self._is_compiled = backend.compiled_types(cells, options), False
        compile_cell = partial(backend.compiled_cell, cells, options)
        self.tables, self.place = self.types.tables_of(plan, compile_cell, self.n_threads, tables), place_type(plan)
        scratch, kept = self.tables.scratch_size, self.tables.kept_size
        self.needed = Needed(plan.size, scratch, kept, options.dtype, self.n_threads, options.max_bytes)
        self.n_bytes = (plan.size + self.n_threads * scratch + kept) * options.dtype.itemsize

    def begin(self, randomness: Randomness, timer: Timer | None = None) -> PlanRun[Any]:
        """Make a run, which is interpreted as long as machine code is being compiled; see `Executable`."""
        if not (self._is_compiled or self._has_code()):
            return self._interpreted.begin(randomness, timer)
        return CompiledRun(self, self.backend.pool, HOST, randomness, timer)

    def _has_code(self) -> bool:
        """Whether all of the machine code is at hand, now or in a moment."""
        not_compiled, type_ids = self.types.not_compiled, self.tables.type_ids
        if not not_compiled.isdisjoint(type_ids):
            if not self.types.wait_for_code(type_ids, self.place, patience()):
                return False
            not_compiled.difference_update(type_ids)
        self._is_compiled = True
        return True

    @cached_property
    def _interpreted(self) -> InterpretedPlan:
        return self.backend.reference.prepare(self.plan, self.cells, self.options)


class CompiledRun(PlanRun[CpuMemory]):
    """A run of compiled cells."""

    executable: CompiledPlan
    held = PlanRun.held | {"_bound"}
    _bound: BoundRun | None = None
    _cells: BoundCells | None = None  # within the context

    def _reserve(self) -> None:
        if self.memory.reserved_for != self.executable.needed:
            self.memory.reserve_all(self.executable.needed)
        if self.executable.backend.poison:
            self.memory.poison()

    def _find_limit(self) -> Limit | None:
        """Limit libraries to one thread: either several threads run tiles, or one is asked for."""
        executable = self.executable
        self._cells = cells = executable.types.bound(executable.tables.type_ids, executable.n_threads)
        return Limit(1) if cells.calls_library or cells.bound_to is not executable.tables else None

    def _bind(self) -> None:
        assert self._cells is not None, "the limit was found"
        if self._bound is None:
            executable = self.executable
            self._bound = BoundRun(
                self.plan, executable.tables, executable.place, executable.backend.chooser, self.memory,
                self.randomness, self.interpret_gradients,
            )  # fmt: skip
        self._cells.bind(self._bound)
        self._stages = self._cells.stages

    def _release(self) -> None:
        if self._cells is not None:
            self._cells.release()
            self._cells, self._stages = None, {}

    def _take_targets(self) -> None:
        assert self._cells is not None, "a run computes within its context"
        self._cells.stages[WEIGHTS].take_gradients(self.targets)
