"""Run the plans and compiled cells of the CPU on a device.

One launch runs all batches of a stage. Every block of threads goes through the steps of all batches in order, matrix
products and generated kernels, and waits for the other blocks before a step that reads their results. Steps that the
host runs, interpreted ops and products by a library, divide the stage into several launches. The ints that describe a
mini-batch reach the device in one copy, and parameters in another. Nothing waits for the device until outputs are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from math import prod
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from autobatch._native import list_device_steps
from autobatch.arrays import LongArray
from autobatch.backends.base import RowMoves, Timer
from autobatch.backends.cuda.binding import NOTE, STEP, DeviceTypes
from autobatch.backends.cuda.device_cell import DeviceCell, DeviceStageRun
from autobatch.backends.cuda.launching import Launcher, Sweep
from autobatch.backends.cuda.memory import DeviceMemory, Packing
from autobatch.backends.cuda.moving import PackedMoves
from autobatch.backends.cuda.sums import find_sums
from autobatch.backends.driver import PlanExecutable, PlanRun
from autobatch.backends.interpret import Interpreter
from autobatch.backends.options import Options
from autobatch.backends.tables import WORD
from autobatch.backends.values import MemoryPool
from autobatch.compiler.cuda.source import MOVE_ROWS, module_text
from autobatch.compiler.lowered import Area
from autobatch.compiler.writer import WEIGHTS, data_name
from autobatch.devices.device import Device
from autobatch.devices.finding import find_device
from autobatch.devices.store import HOST
from autobatch.errors import BackendError
from autobatch.ir.program import NODE
from autobatch.ops.randomness import Randomness
from autobatch.params.parameter import Parameter
from autobatch.params.sparse_rows import RowGroups, Rows, group_rows, sum_on_device
from autobatch.params.stacks import on_host
from autobatch.plan.plan import Batch, CellSizes, Plan, PlannedTypes
from autobatch.system.background import compiling

RESERVED = 1 << 10  # bytes of shared memory per block that CUDA reserves
NO_SUMS = np.zeros(0, np.int64)


class Cuda:
    """The backend that runs plans on a device.

    Args:
        poison: whether to fill the memory with NaN before each run, to expose reads of memory that was never written.
        device: the device; by default the one that `find_device` finds.
        blocks: the number of thread blocks that a multiprocessor runs at the same time. More blocks have more memory
            accesses in flight, but each has fewer registers and less shared memory.
    """

    name = "cuda"

    def __init__(self, poison: bool = False, device: Device | None = None, blocks: int = 1) -> None:
        self.poison, self.device, self.blocks = poison, find_device() if device is None else device, blocks
        self.n_blocks = self.device.n_processors * blocks
        self.pool = MemoryPool(lambda: DeviceMemory(self.device))
        self._cells: WeakValueDictionary[Any, DeviceCell] = WeakValueDictionary()
        self._modules: dict[tuple[Any, ...], Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the constructor and its arguments; copies and pickles have their own memory, and compile again."""
        return type(self), (self.poison, None, self.blocks)

    def table_sizes(self, cells: PlannedTypes, options: Options) -> tuple[CellSizes, int]:
        """Return the sizes of cells, for one thread; see `Backend`."""
        return self.compiled_types(cells, options).sizes, 1

    def prepare(
        self, plan: Plan, cells: PlannedTypes, options: Options, tables: tuple[Any, ...] | None = None
    ) -> DevicePlan:
        """Prepare a plan; see `Backend`."""
        options.check_store(self.name, HOST, self.device)
        return DevicePlan(self, plan, cells, options, tables)

    def compiled_types(self, cells: PlannedTypes, options: Options) -> DeviceTypes:
        """Return the compiled types that all plans of these types share."""
        key = self, options.dtype, options.precision
        found: DeviceTypes | None = cells.compiled.get(key)
        if found is None:
            found = cells.compiled[key] = DeviceTypes(cells, options.dtype, self.device)
        return found

    def device_cell(self, cells: PlannedTypes, options: Options, type_id: int) -> DeviceCell:
        """Return the cell of a type, compiled for these options; all `PlannedTypes` that have the cell share it."""
        # An id is safe as a key: a compiled cell refers to its planned cell, so while the entry exists, no other has
        # the id.
        key = id(cells.cells[type_id]), options.dtype, options.precision
        found = self._cells.get(key)
        if found is None:
            most_shared_bytes = self.device.most_shared_bytes // self.blocks - RESERVED * (self.blocks > 1)
            found = DeviceCell(cells.cells[type_id], self.device, options.dtype, options.precision, most_shared_bytes)
            self._cells[key] = found
        return found

    def sweep(self, kernels: Mapping[str, str], dtype: str, index_type: str) -> Any:
        """Return the compiled kernel that runs steps; it numbers the generated kernels by the order of their names."""
        # The name of a kernel contains a hash of its text.
        key = tuple(kernels), dtype, index_type
        if key not in self._modules:
            about = f"{len(kernels)} kernels for the GPU"
            with compiling(about):
                text = module_text(kernels, dtype, index_type, self.blocks)
                self._modules[key] = self.device.load(text, ["sweep"], about)["sweep"]
        return self._modules[key]


class DevicePlan(PlanExecutable):
    """A plan with everything that a run needs except memory; see `Executable`.

    All offsets are bytes from the beginning of the packed memory.

    Attributes:
        bound: the stages of the plan's types, which all plans of these types share.
        packing: the slots, the arrays of the plan, the tasks of `row_sums`, and the steps of all stages; then, from
            byte `n_ints` on, room for parameters.
        sums: the sums to add up after each batch.
        places: the offsets of arrays; see `DeviceTypes.places`.
        row_sums: the distinct ids of the rows that a step of the weight stage adds to the gradient of a table, and the
            offset of the task for `sum_on_device`; by the number of the step.
        sweeps: the steps of each stage.
        steps: the offset of the steps of each stage; those of a stage follow those of the previous one.
        uploaded: the parameters that are on the host, with their offsets.
    """

    def __init__(
        self, backend: Cuda, plan: Plan, cells: PlannedTypes, options: Options, tables: tuple[Any, ...] | None
    ) -> None:
        super().__init__(plan, cells, options)
        self.backend = backend
        self.types = types = backend.compiled_types(cells, options)
        self.tables = known = types.tables_of(plan, partial(backend.device_cell, cells, options), 1, tables)
        self.bound = bound = types.bound(known.type_ids)
        self.sums = sums = find_sums(plan, types.widths)
        # In the order of `DeviceTypes.places`. On the device, `to` takes the place of `adds`.
        arrays = [
            plan.dest_ptr, plan.dest, sums.to.astype(plan.dest.dtype, copy=False), known.words, plan.ints, plan.floats,
            plan.segments, sums.table, sums.parts, sums.ptr,
        ]  # fmt: skip
        n_arrays, groups = len(arrays), list[RowGroups]()
        for rows in bound.table_rows.values():
            groups.append(group_rows(plan.int_data[rows.block][:, rows.column], rows.shape))
            arrays.append(groups[-1].task(rows.step, prod(rows.shape[1:]), options.dtype.itemsize))
        self.sweeps: dict[str, Sweep] = {}
        for name, stage in bound.stages.items():
            sum_ptr = sums.ptr if name == "forward" else NO_SUMS
            listed = list_device_steps(stage.known, stage.rules, known.calls[name], known.words, known.ptr, sum_ptr)
            self.sweeps[name] = Sweep(stage, *listed)
            arrays.append(listed[0])
        self.packing = packing = Packing(bound.slots.nbytes, arrays)
        offsets, self.n_ints = packing.offsets, packing.n_bytes
        self.places = types.places(known.addresses, np.array(offsets[:n_arrays]))
        self.row_sums: dict[int, tuple[LongArray, int]] = {}
        for number, group, place in zip(bound.table_rows, groups, offsets[n_arrays:], strict=False):
            self.row_sums[number] = group.ids, place
        self.steps = dict(zip(self.sweeps, offsets[n_arrays + len(groups) :], strict=True))
        rows_size = backend.n_blocks * bound.rows_size
        self.sizes = plan.size + sums.size, known.scratch_size, known.kept_size, rows_size
        self.n_bytes = sum(self.sizes) * options.dtype.itemsize + packing.n_bytes
        self.uploaded: list[tuple[Parameter, int]] = []
        for parameter in on_host(bound.parameters):
            self.uploaded.append((parameter, packing.reserve(parameter.array.nbytes)))

    def begin(self, randomness: Randomness, timer: Timer | None = None) -> DeviceRun:
        """Make a run; see `Executable`."""
        return DeviceRun(self, self.backend.pool, self.backend.device, randomness, timer)

    def load(self, name: str) -> Any:
        """Compile the kernel that runs the steps of a stage, and return it."""
        stage, index_type = self.bound.stages[name], self.plan.dest.dtype.name
        stage.compiled[index_type] = self.backend.sweep(stage.kernels, self.options.dtype.name, index_type)
        return stage.compiled[index_type]


class DeviceRun(PlanRun[DeviceMemory]):
    """A run on a device."""

    executable: DevicePlan
    n_library_threads = 0  # the host computes no matrix products
    held = PlanRun.held | {"_launchers", "_uploaded", "_kept", "_sent", "_moves"}
    _moves: PackedMoves | None = None  # behind the packing of the plan

    def carry(self, moves: RowMoves) -> None:
        """Copy rows in the launch of forward, before the batches; see `Run`."""
        self._moves = PackedMoves(moves)

    def _reserve(self) -> None:
        executable, options = self.executable, self.options
        n_packed = executable.packing.n_bytes + (0 if self._moves is None else self._moves.n_bytes)
        self.memory.reserve_all(executable.sizes, n_packed, options.dtype, options.max_bytes)
        if executable.backend.poison:
            self.memory.poison()

    @cached_property
    def interpreter(self) -> Interpreter:
        """Return the interpreter for instructions that have no step, on parameters and data that are on the device."""
        parameters = {id(p): p.array for p in self.executable.bound.parameters} | self._uploaded
        return Interpreter(self.values, self.options, self.randomness, parameters, self._data)

    def __exit__(self, *error: Any) -> None:
        """End the context; raise a BackendError with the bytes of the plan if the device is out of memory."""
        super().__exit__(*error)
        device = self.executable.backend.device
        if isinstance(error[1], device.out_of_memory):
            limit = self.options.max_bytes
            allowed = "max_bytes is not set" if limit is None else f"max_bytes is {limit}"
            raise BackendError(
                f"{device.name} has no room for a mini-batch whose plan takes {self.executable.n_bytes} bytes, "
                f"and {allowed}. Pass a lower max_bytes to ab.batched, to run the mini-batch in parts, or use smaller "
                f"mini-batches ({error[1]})."
            ) from error[1]

    def _begin(self) -> None:
        """Copy the ints and parameters of the mini-batch to the device."""
        super()._begin()
        executable, device, staging = self.executable, self.executable.backend.device, self.memory.staging
        bound, packing, pinned, held = executable.bound, executable.packing, staging.pinned, staging.held
        self._uploaded: dict[int, Any] = {}
        for parameter, first in executable.uploaded:
            ours, theirs = (
                packed[first : first + parameter.array.nbytes].view(parameter.dtype).reshape(parameter.shape)
                for packed in (pinned, held)
            )
            ours[...], self._uploaded[id(parameter)] = parameter.array, theirs
        self._base = base = staging.address
        moves, behind, n_ints = self._moves, packing.n_bytes, pinned.size
        if moves is not None:
            moves.write(pinned[behind:], base + behind, device)
        # Parameters and moves lie behind the ints, and go first: `bind` may compute with the parameters.
        if self._uploaded:
            n_ints = executable.n_ints
            staging.send(n_ints, pinned.size)
        bound.bind(self.memory.addresses, self._uploaded)
        # The slots of this run refer to these copies, but `bound` replaces its own when another run binds the types.
        self._kept, self._sent = bound.copies, bound.gradients
        packing.fill(pinned)
        slots = pinned[: bound.slots.nbytes].view(np.int64)
        slots[:] = bound.slots
        slots[bound.plan_slots] = executable.places[bound.sources] + base
        steps = pinned[executable.steps["forward"] : executable.n_ints].view(STEP)  # of all stages
        steps["memory"] += base  # offsets in the packing become device addresses
        if moves is not None:
            steps["function"][0], steps["memory"][0], steps["tile"][0] = MOVE_ROWS, base + behind, moves.n_pairs
        self._launchers: dict[str, Launcher] = {}
        n_blocks, index_type = executable.backend.n_blocks, executable.plan.dest.dtype.name
        for name, sweep in executable.sweeps.items():
            first = executable.steps[name]
            load, run_step = partial(executable.load, name), partial(self._run_step, name)
            moving = moves.blocks if moves is not None and name == "forward" else 0
            self._launchers[name] = Launcher(device, sweep, base + first, n_blocks, index_type, load, run_step, moving)
            if self.timer is not None:
                pinned[first : first + sweep.steps.nbytes].view(STEP)["then"][sweep.ends] |= NOTE
        self._stages = self._launchers
        # Without the room at the beginning, which `_take_targets` may need.
        staging.send(WORD * bound.n_late, n_ints)

    def _bind(self) -> bool:
        return True  # steps that the host runs prepare Python

    def _call_timed(self, stage: str, batches: list[Batch]) -> None:
        """Run all parts in as few launches as without a timer; the device records the end of each part."""
        launcher, n_types = self._launchers[stage], len(self.plan.type_ptr) - 1
        self.launches += launcher.run(0, 2 * n_types if stage == WEIGHTS else len(batches) + 2, timed=True)
        place = self.executable.steps[stage]
        ends = launcher.ends(self.memory.staging.held[place : place + launcher.sweep.steps.nbytes])
        if stage == WEIGHTS:
            for first in (0, n_types):  # compiled steps of all types, then those of the host
                for of_type in batches:
                    self._mark(stage, of_type, ends[first + of_type.type_id])
            return
        for batch, end in zip([None, *batches], ends[:-1], strict=True):
            self._mark(stage, batch, end)

    def _mark(self, stage: str, batch: Batch | None, end: float | None = None) -> None:
        if self.timer is not None:
            self.executable.backend.device.synchronize()
            super()._mark(stage, batch, end)

    # Steps of the host.

    def _run_step(self, name: str, number: int, tile: int) -> None:
        """Run a step of a stage on the host, given its number among those of all types, and the number of a tile."""
        position, step = self.executable.bound.stages[name].steps[number]
        if step.run is not None:
            self._prepare_python()
            step.run(self._stage_run(name, position), tile)
        else:
            self._add_rows(number, tile)

    def _stage_run(self, name: str, position: int) -> DeviceStageRun:
        """Return a stage of a type, for steps that the host runs."""
        executable, memory, bound = self.executable, self.memory, self.executable.bound
        type_id = bound.type_ids[position]
        stage, first = executable.types.cells[type_id].stage(name), bound.first[name, type_id]
        slots = memory.staging.pinned[WORD * first : WORD * (first + len(stage.slots))].view(np.int64)
        arrays = {"buffer": memory.buffer, "scratch": memory.scratch, "kept": memory.kept} | self._flat_data(type_id)
        return DeviceStageRun(
            stage, self.store, self.plan, type_id, self.plan.first_block(type_id), executable.tables.tiles[type_id],
            self.randomness, self.interpret_gradients, arrays, slots,
        )  # fmt: skip

    def _add_rows(self, number: int, tile: int) -> None:
        """Add rows of a type to the gradient of a table, given the number of the step and of the tile."""
        executable, device, dtype = self.executable, self.executable.backend.device, self.options.dtype
        rows, (ids, task), tables = executable.bound.table_rows[number], executable.row_sums[number], executable.tables
        if not ids.size:
            return
        gradient, shape = self.targets[rows.key], (ids.size, *rows.shape[1:])
        first = rows.offset + int(tables.words[tables.ptr[rows.type_id] + tile * rows.n_fields + rows.field])
        address = self.memory.addresses[0] + first * dtype.itemsize
        sums = sum_on_device(device, self._base + task, address, prod(shape), dtype)
        if not isinstance(gradient, Rows):
            self._prepare_python()
            Rows(ids, sums.reshape(shape), rows.shape, device).add_to(gradient)
        elif gradient.store is not device or gradient.ids.size:
            gradient.add(ids, sums if gradient.store is device else device.get(sums))
        else:
            gradient.ids, gradient.values = ids.copy(), sums.reshape(shape)  # the plan may run again

    def _take_targets(self) -> None:
        """Copy the addresses of the gradients to the device, unless they were known when the run began."""
        bound, staging, pinned = self.executable.bound, self.memory.staging, self.memory.staging.pinned
        bound.take_gradients(self.targets)
        if bound.gradients is not self._sent:
            n_bytes = WORD * bound.n_late
            # The slots that were sent may still be being read from pinned memory, so they are changed in the room
            # before them.
            pinned[:n_bytes] = pinned[n_bytes : 2 * n_bytes]
            late = pinned[:n_bytes].view(np.int64)
            late[bound.gradient_slots - bound.n_late] = bound.slots[bound.gradient_slots]
            staging.send(0, n_bytes, to=n_bytes)

    def _data(self, type_id: int, domain: int) -> tuple[Any, Any]:
        """Return the int and float data of the rows of a domain of a type, as views of the packed ints."""
        types, held, found = self.executable.types, self.memory.staging.held, list[Any]()
        ints, floats = self.plan.data(type_id, domain)
        array: NDArray[Any]
        for area, array in ((Area.INTS, ints), (Area.FLOATS, floats)):
            first = int(self.executable.places[types.place(data_name(area, domain), type_id)])
            found.append(held[first : first + array.nbytes].view(array.dtype).reshape(array.shape))
        return found[0], found[1]

    def _flat_data(self, type_id: int) -> dict[str, Any]:
        """Return the data of all domains of a type, by the names that steps use."""
        domains = range(NODE, NODE + len(self.executable.cells.cells[type_id].layout.input_width))
        return {
            data_name(area, domain): data.reshape(-1)
            for domain in domains
            for area, data in zip((Area.INTS, Area.FLOATS), self._data(type_id, domain), strict=True)
        }
