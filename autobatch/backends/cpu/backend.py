"""Compile cells into a few steps, which run the same plans as the reference backend.

Batches are cut into tiles. The rows of each tile and the calls for it are computed once per plan. A step is a generated
kernel, a matrix product or an interpreted op, called with the number of a tile. One native loop makes all calls. It
stops only for interpreted ops; without any, several threads can share the calls. Values that depend on parameters alone
are computed again only if a parameter may have changed. The gradient of a weight is one product over all rows of a
type, and that of a bias is one pass over them.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from autobatch.backends.cpu.compiled_cell import CompiledCell
from autobatch.backends.cpu.memory import CpuMemory
from autobatch.backends.cpu.run import BoundTypes, CompiledPlan, Shared
from autobatch.backends.options import Options
from autobatch.backends.reference import Reference
from autobatch.backends.values import MemoryPool
from autobatch.blas.choosing import BY_SIZE, Chooser
from autobatch.devices.store import HOST
from autobatch.plan.plan import CellSizes, Plan, PlannedTypes


class Cpu:
    """The backend that runs plans with compiled cells on the CPU.

    A compiled cell is kept as long as any types or prepared plans that use it are alive.

    Args:
        poison: whether to fill the buffer with NaN before each run, to expose reads of memory that was never written.
        provider: the name of the library for matrix products; by default the fastest for each size.
    """

    name = "cpu"

    def __init__(self, poison: bool = False, provider: str | None = None) -> None:
        self.chooser, self.pool = Chooser(provider), MemoryPool(CpuMemory)
        self._shared = Shared(poison, self.chooser, self.pool, Reference(poison))
        self._cells: WeakValueDictionary[tuple[int, Any, str], CompiledCell] = WeakValueDictionary()

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the constructor and its arguments; copies and pickles have their own memory."""
        return type(self), (self._shared.poison, None if self.chooser.name == BY_SIZE else self.chooser.name)

    def table_sizes(self, cells: PlannedTypes, options: Options) -> tuple[CellSizes, int]:
        """Return the sizes of cells, and the threads of the options; see `Backend`."""
        return self.compiled_types(cells, options).sizes, options.threads

    def prepare(
        self, plan: Plan, cells: PlannedTypes, options: Options, tables: tuple[Any, ...] | None = None
    ) -> CompiledPlan:
        """Cut the batches of a plan into tiles, and lower the stages of its cells; see `Backend`."""
        options.check_store(self.name, HOST)
        types, compile_cell = self.compiled_types(cells, options), partial(self.compiled_cell, cells, options)
        made = types.tables_of(plan, compile_cell, options.threads, tables)
        return CompiledPlan(plan, cells, options, types, made, self._shared)

    def compiled_types(self, cells: PlannedTypes, options: Options) -> BoundTypes:
        """Return the compiled types that all plans of these types share."""
        key = self, options.dtype, options.precision
        found: BoundTypes | None = cells.compiled.get(key)
        if found is None:
            found = cells.compiled[key] = BoundTypes(cells, options.dtype)
        return found

    def compiled_cell(self, cells: PlannedTypes, options: Options, type_id: int) -> CompiledCell:
        """Return the cell of a type, compiled for these options; all `PlannedTypes` that have the cell share it."""
        # An id is safe as a key: a compiled cell refers to its planned cell, so while the entry exists, no other has
        # the id.
        key = id(cells.cells[type_id]), options.dtype, options.precision
        found = self._cells.get(key)
        if found is None:
            found = CompiledCell(cells.cells[type_id], options.dtype, options.precision)
            self._cells[key] = found
        return found
