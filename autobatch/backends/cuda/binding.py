"""Bind the stages of a set of types to the memory of a run on a device.

The slots of a stage are a row of addresses that its steps read. Most depend on the types, the parameters and the memory
alone, and are stored only when one of these changes. Those of a plan's arrays are added for each run
(`autobatch.backends.cuda.backend`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from operator import attrgetter, is_
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.arrays import LongArray
from autobatch.backends.compiled import slots_of
from autobatch.backends.cuda.device_cell import ON_HOST, THREADS, WARP, DeviceCell, DeviceStage, DeviceStep
from autobatch.backends.tables import N_DESTINATIONS, WHOLE, WORD, CompiledTypes, place_of
from autobatch.compiler.cuda.source import ADD_UP, FIRST_KERNEL
from autobatch.compiler.statement import Scatter
from autobatch.compiler.writer import WEIGHTS
from autobatch.devices.device import Device
from autobatch.ir.program import NODE, Weight
from autobatch.params.parameter import Parameter, versions_of
from autobatch.params.sparse_rows import Gradient
from autobatch.params.stacks import parts_of
from autobatch.plan.plan import PlannedCell, PlannedTypes

FIELDS = "function", "memory", "descriptor", "tile", "team", "then", "arrived", "ended"
STEP = np.dtype([(name, np.int64) for name in FIELDS])
"""`Step` in `sweep.cuh`."""
WAIT, NOTE = 1, 2  # flags in "then": blocks wait for each other after the step; the device records the time
MEMORY = ("buffer", "scratch", "kept", "rows")  # slots for the memory of a run
DESTINATIONS = ("ptr", "dest", "to")  # slots for arrays of a plan that all types share
SUM_ARRAYS = 3  # the arrays of sums, which follow those of the plan
MOST_BOUND = 32  # sets of types whose bound stages are cached
ARRAY = attrgetter("array")


class DeviceTypes(CompiledTypes[DeviceCell]):
    """The cells of all types, compiled with the same options, and their bound stages."""

    def __init__(self, types: PlannedTypes, dtype: np.dtype[Any], device: Device) -> None:
        super().__init__(types, dtype, lambda row_bytes: WHOLE)
        self._device, self._cells = device, types.cells
        self._bound: dict[tuple[int, ...], BoundTypes] = {}
        n_types, n_blocks = len(types.cells), types.tables.block_width.size
        # The arrays in the order of `PlanTables.addresses`, in runs that are contiguous on the host: a run is packed as
        # a whole, so its arrays keep their distances from the first one. An empty run may start at the end.
        counts = [1] * N_DESTINATIONS + [n_types, n_blocks, n_blocks, n_blocks] + [1] * SUM_ARRAYS
        self._counts, ends = np.array(counts), np.cumsum(counts)
        self.n_places = int(ends[-1])
        self._starts = np.minimum(ends - self._counts, self.n_places - 1)

    @cached_property
    def widths(self) -> LongArray:
        """Return the elements of each output of all types."""
        cells = self._cells
        return np.array([cell.program.vars[output].size for cell in cells for output in cell.program.outputs], np.int64)

    def places(self, addresses: LongArray, offsets: LongArray) -> LongArray:
        """Return the place of each array of a plan in a packing: of those in `PlanTables.addresses`, and of sums.

        Args:
            addresses: see `PlanTables`.
            offsets: the places of `ptr`, `dest`, `to`, all tiles, ints, floats and segments, and the arrays of sums.
        """
        at = np.concatenate((addresses, np.zeros(SUM_ARRAYS, np.int64)))
        # For sums, whose addresses are not listed, this is the offset itself.
        found: LongArray = at + np.repeat(offsets - at[self._starts], self._counts)
        return found

    def place(self, name: str, type_id: int) -> int:
        """Return the position in `places` of an array of a type."""
        ptr, n_blocks = self.arrays.block_ptr, self.arrays.block_width.size
        return place_of(name, type_id, int(ptr[type_id]), len(ptr) - 1, n_blocks)

    def bound(self, type_ids: tuple[int, ...]) -> BoundTypes:
        """Return the bound stages of a set of types; the most recently used ones are cached."""
        key = len(self.cells), *type_ids  # kernels are numbered among those of all cells met so far
        found = self._bound.pop(key, None) or BoundTypes(self, type_ids, self._device)
        self._bound[key] = found
        if len(self._bound) > MOST_BOUND:
            del self._bound[next(iter(self._bound))]
        return found


class BoundStage(NamedTuple):
    """A stage of all types of a set.

    Attributes:
        kernels: the definitions of the kernels of all cells met so far, sorted by name.
        known: the `STEP` of each step of all types, without the tile; then the step that begins a stage and does
            nothing, and the one that adds up values. Addresses of slots are relative to the first.
        rules: for each of these, the number of blocks that have work; see `BlockRule` in `native/plan/device_steps.h`.
        steps: the steps of all types, with the position of the type.
        shared_bytes: shared memory per block.
        compiled: the compiled kernel that runs steps, by the name of the integer type of destinations.
    """

    kernels: dict[str, str]
    known: NDArray[Any]
    rules: LongArray
    steps: list[tuple[int, DeviceStep]]
    shared_bytes: int
    compiled: dict[str, Any]


class TableRows(NamedTuple):
    """Rows in the buffer that a type adds to the gradient of a table, at ids that are data of its nodes.

    Attributes:
        block, column: the block and the column of the ids among a plan's ints.
        type_id, n_fields, field: the type, the number of fields of its tiles, and the one with the beginning of the
            rows.
        offset, step: elements from there to the first row, and from row to row.
        shape: the shape of the table.
        key: the key of the table in the gradients of a run.
    """

    block: int
    column: int
    type_id: int
    n_fields: int
    field: int
    offset: int
    step: int
    shape: tuple[int, ...]
    key: int


class BoundTypes:
    """The stages of several types, bound to one run at a time.

    Args:
        types: all types.
        type_ids: the numbers of the types.

    Attributes:
        slots: int64, room for a copy of the slots of the weight stage, which has the addresses of gradients; then the
            slots of all stages, first those of the weight stage, and of sums. The contents of `plan_slots` are
            undefined.
        first: the first slot of each stage of each type.
        n_late: the number of slots of the weight stage.
        plan_slots, sources: the slots for arrays of a plan, and the positions of their addresses in `places`.
        gradient_slots: the slots of gradients.
        gradients: the gradients whose addresses are stored.
        parameters: the parameters that the cells read, in any stage.
        copies: what the slots refer to that must stay alive.
        rows_size: elements of memory per block for rows that do not fit in shared memory.
        table_rows: the rows that the weight stage adds to the gradients of tables, by the number of the step.
    """

    def __init__(self, types: DeviceTypes, type_ids: tuple[int, ...], device: Device) -> None:
        self.type_ids, self._device, self._types = type_ids, device, types
        self.first: dict[tuple[str, int], int] = {}
        self._placed: list[tuple[DeviceStage, int]] = []
        self._memory_slots: tuple[list[int], ...] = ([], [], [], [])
        pairs: list[tuple[int, int]] = []
        cells = [types.cells[type_id] for type_id in type_ids]
        n_slots = self.n_late = sum(len(cell.stage(WEIGHTS).slots) for cell in cells if WEIGHTS in types.names)
        # The weight stage comes first, right behind the room for a copy of its slots; see `DeviceRun._take_targets`.
        for name in reversed(types.names):
            for type_id, cell in zip(type_ids, cells, strict=True):
                stage = cell.stage(name)
                self._placed.append((stage, n_slots))
                self.first[name, type_id] = n_slots
                pairs += self._assign(stage, n_slots, type_id)
                n_slots += len(stage.slots)
        # The last slots are those of `add_up`: the buffer, and the arrays of sums.
        self._memory_slots[0].append(n_slots)
        first_array = types.n_places - SUM_ARRAYS
        pairs += [(n_slots + 1 + number, first_array + number) for number in range(SUM_ARRAYS)]
        self.slots = np.zeros(n_slots + 1 + SUM_ARRAYS, np.int64)
        self._first_of_sums = n_slots
        self.plan_slots, self.sources = np.array(pairs, np.int64).reshape(-1, 2).T
        self.stages = {name: self._bind(name) for name in types.names}
        of_weights = enumerate(self.stages[WEIGHTS].steps) if WEIGHTS in self.stages else ()
        self.table_rows = {
            number: self._table_rows(type_ids[position], step.scatter)
            for number, (position, step) in of_weights
            if step.scatter is not None
        }
        self.rows_size = max((stage.rows_size for stage, _ in self._placed), default=0)
        self.parameters = [*{id(p): p for cell in cells for p in parameters_of(cell.cell)}.values()]
        self._read = [*{id(p): p for stage, _ in self._placed for p in stage.shared.parameters}.values()]
        self._parts = [*{id(part): part for p in self._read for part in parts_of(p)}.values()]
        self._arrays: list[Any] = []  # of the parts of parameters, at the last refresh
        self._following: list[tuple[DeviceStage, int]] = []
        self._followed: list[Parameter] = []
        self._versions: list[int] | None = None
        self.copies: list[Any] = []
        self._memory_at: tuple[int, ...] = ()
        weights = [(stage, first) for stage, first in self._placed if first < 2 * self.n_late]
        self._gradient_keys = [stage.keys[parameter] for stage, _ in weights for parameter in stage.gradients]
        starts = [first + slot for stage, first in weights for slot in stage.gradients.values()]
        self.gradient_slots = (np.array(starts, np.int64)[:, None] + np.arange(3)).reshape(-1)
        self.gradients: list[Gradient] = []

    def _assign(self, stage: DeviceStage, first: int, type_id: int) -> list[tuple[int, int]]:
        """Note the slots of a stage for memory; return those for arrays of a plan, and the positions of these."""
        pairs = list[tuple[int, int]]()
        for name in sorted(stage.used_slots - stage.shared_names):
            slot = first + stage.slots[name]
            if name == "rows" and not stage.rows_size:
                continue  # a null address means that rows are in shared memory
            if name in MEMORY:
                self._memory_slots[MEMORY.index(name)].append(slot)
            elif name in DESTINATIONS:
                pairs.append((slot, DESTINATIONS.index(name)))
            else:
                pairs.append((slot, self._types.place(name, type_id)))
        return pairs

    def _bind(self, name: str) -> BoundStage:
        """List the steps of a stage of all types."""
        found: dict[str, str] = {}
        kernels_of = "backward" if name == WEIGHTS else name  # the weight stage has no kernels; shares the module
        # All cells met so far, not only those of this set, so that sets of types share a module.
        for cell in self._types.cells.values():
            found |= cell.stage(kernels_of).source.texts
        kernels = dict(sorted(found.items()))
        numbers = {kernel: number for number, kernel in enumerate(kernels, FIRST_KERNEL)}
        known, rules, steps = list[tuple[int, ...]](), list[tuple[int, ...]](), list[tuple[int, DeviceStep]]()
        for position, type_id in enumerate(self.type_ids):
            stage, memory = self._types.cells[type_id].stage(name), WORD * self.first[name, type_id]
            for step, wait in zip(stage.steps, stage.waits, strict=True):
                function = numbers[step.function] if isinstance(step.function, str) else step.function
                known.append((function, memory, step.address, 0, step.team, wait, 0, 0))
                rules.append((type_id, len(stage.fields), *step.blocks))
                steps.append((position, step))
        known.append((ON_HOST, 0, 0, 0, WARP, WAIT, 0, 0))
        known.append((ADD_UP, WORD * self._first_of_sums, 0, 0, WARP, WAIT, 0, 0))
        # One block begins a stage; sums take a warp each.
        rules += [(0, 0, -1, 0, 1, 1), (0, 0, -1, WARP, THREADS, 1)]
        shared_bytes = max((step.shared_bytes for _, step in steps), default=0)
        return BoundStage(kernels, np.array(known, STEP), np.array(rules, np.int64), steps, shared_bytes, {})

    def bind(self, memory_at: tuple[int, ...], uploaded: Mapping[int, Any]) -> None:
        """Store the addresses that have changed, and compute again what changed parameters determine.

        Args:
            memory_at: the addresses of `MEMORY`.
            uploaded: the arrays on the device of the parameters that are on the host, by `id`.
        """
        arrays = [*map(ARRAY, self._parts)]
        has_moved = bool(uploaded) or len(arrays) != len(self._arrays) or not all(map(is_, arrays, self._arrays))
        versions = versions_of((), self._followed) if self._followed else []
        if has_moved or versions != self._versions:
            self._arrays = []  # until all is stored, because memory may run out
            self._refresh({id(p): uploaded.get(id(p), p.array) for p in self._read}, has_moved)
            # The refresh may have changed which parameters are followed.
            self._versions = versions_of((), self._followed) if has_moved else versions
            self._arrays = arrays
        if memory_at != self._memory_at:
            for slots, address in zip(self._memory_slots, memory_at, strict=True):
                self.slots[slots] = address
            self._memory_at = memory_at

    def _refresh(self, data: Mapping[int, Any], has_moved: bool) -> None:
        """Compute the values that depend on parameters, and store their addresses."""
        copies, following = list[Any](), list[tuple[DeviceStage, int]]()
        for stage, first in self._placed if has_moved else self._following:
            shared = stage.shared
            # `has_changed` comes first: it notes the versions that `update` stores.
            if shared.has_changed() or has_moved:
                shared.update(lambda parameter: data[id(parameter)])
            contents, made = stage.shared_slots()
            for slot, content in contents.items():
                self.slots[first + slot] = content
            copies += made
            # Only copies and computed values depend on the numbers of parameters; other slots refer to the parameters
            # themselves.
            if made or shared.is_computed:
                following.append((stage, first))
        self.copies, self._following = copies, following
        self._followed = [*{id(p): p for stage, _ in following for p in stage.shared.parameters}.values()]

    def _table_rows(self, type_id: int, scatter: Scatter) -> TableRows:
        """Describe the rows that the weight stage of a type adds to the gradient of a table."""
        stage = self._types.cells[type_id].stage(WEIGHTS)
        rows, ids = stage.locate(scatter.rows), stage.locate(scatter.ids)
        derivative = stage.cell.derivative
        assert derivative is not None, "only types in training have a weight stage"
        shape = derivative.parameter(scatter.parameter).shape
        block = int(self._types.arrays.block_ptr[type_id]) + ids.domain - NODE
        field = type_id, len(stage.fields), stage.fields.index(rows.first)
        return TableRows(block, ids.offset, *field, rows.offset, rows.width, shape, stage.keys[scatter.parameter])

    def take_gradients(self, gradients: Mapping[int, Gradient]) -> None:
        """Store the addresses of gradients, unless they are stored already."""
        found = [*map(gradients.__getitem__, self._gradient_keys)]
        if len(found) == len(self.gradients) and all(map(is_, found, self.gradients)):
            return
        slots = [slots_of(gradient, self._device.address) for gradient in found]
        self.slots[self.gradient_slots] = np.array(slots, np.int64).reshape(-1)
        self.gradients = found


def parameters_of(cell: PlannedCell) -> list[Parameter]:
    """List the parameters that a cell reads, in any stage."""
    vars = cell.program.vars if cell.derivative is None else cell.derivative.vars
    return [var.source.parameter for var in vars if isinstance(var.source, Weight)]
