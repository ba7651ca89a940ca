"""Run the plans and compiled cells of the CPU on a device.

One launch runs all batches of a stage. Every block of threads goes through the steps of all batches in order, matrix
products and generated kernels, and waits for the other blocks before a step that reads their results. Steps that the
host runs, interpreted ops and products by a library, divide the stage into several launches. The ints that describe a
mini-batch reach the device in one copy, and parameters in another. Nothing waits for the device until outputs are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from autobatch.backends.base import Counts, Timer
from autobatch.backends.cuda.binding import NOTE, STEP, DeviceTypes
from autobatch.backends.cuda.device_cell import DeviceCell, DeviceStageRun
from autobatch.backends.cuda.launching import Launcher, Sweep
from autobatch.backends.cuda.memory import DeviceMemory, Packing
from autobatch.backends.cuda.sums import find_sums
from autobatch.backends.driver import PlanExecutable, PlanRun
from autobatch.backends.interpret import Interpreter
from autobatch.backends.options import Options
from autobatch.backends.tables import WORD
from autobatch.backends.values import MemoryPool
from autobatch.compiler.cuda.source import module_text
from autobatch.compiler.lowered import Area
from autobatch.compiler.writer import WEIGHTS, data_name
from autobatch.devices.device import Device
from autobatch.devices.finding import find_device
from autobatch.devices.store import HOST
from autobatch.errors import BackendError
from autobatch.ir.program import NODE
from autobatch.ops.randomness import Randomness
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
        key = id(cells.cells[type_id]), options.dtype, options.precision
        found = self._cells.get(key)
        if found is None:
            most_shared_bytes = self.device.most_shared_bytes // self.blocks - RESERVED * (self.blocks > 1)
            found = DeviceCell(cells.cells[type_id], self.device, options.dtype, options.precision, most_shared_bytes)
            self._cells[key] = found
        return found

    def sweep(self, kernels: Mapping[str, str], dtype: str, index_type: str) -> Any:
        """Return the compiled kernel that runs steps; it numbers the generated kernels by the order of their names."""
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
        packing: the slots, the arrays of the plan, and the steps of all stages; then, from byte `n_ints` on, room for
            slots that are copied again, and for parameters.
        sums: the sums to add up after each batch.
        places: the offsets of arrays; see `DeviceTypes.places`.
        sweeps: the steps of each stage.
        steps: the offset of the steps of each stage.
        uploaded: the parameters that are on the host, with their offsets.
    """

    def __init__(
        self, backend: Cuda, plan: Plan, cells: PlannedTypes, options: Options, tables: tuple[Any, ...] | None
    ) -> None:
        super().__init__(plan, cells, options)
        self.backend = backend
        self.types = types = backend.compiled_types(cells, options)
        self.tables = types.tables_of(plan, partial(backend.device_cell, cells, options), 1, tables)
        self.bound = bound = types.bound(self.tables.type_ids)
        self.sums = sums = find_sums(plan, types.widths)
        self.packing = packing = Packing()
        packing.reserve(bound.slots.nbytes)
        offsets = packing.add(
            plan.dest_ptr, plan.dest, sums.to.astype(plan.dest.dtype, copy=False), self.tables.words, plan.ints,
            plan.floats, plan.segments, sums.table, sums.parts, sums.ptr,
        )  # fmt: skip
        self.places = types.places(self.tables.addresses, np.array(offsets))
        self.sweeps = {
            name: Sweep(stage, self.tables, name, sums.ptr if name == "forward" else NO_SUMS)
            for name, stage in bound.stages.items()
        }
        steps = packing.add(*(sweep.steps for sweep in self.sweeps.values()))
        self.steps = dict(zip(self.sweeps, steps, strict=True))
        rows_size = backend.n_blocks * bound.rows_size
        self.sizes = plan.size + sums.size, self.tables.scratch_size, self.tables.kept_size, rows_size
        self.n_bytes = sum(self.sizes) * options.dtype.itemsize + packing.n_bytes
        self.n_ints = packing.n_bytes
        packing.reserve(WORD * bound.n_late)
        on_host = [p for p in bound.parameters if p.store is HOST]
        self.uploaded = [(p, packing.reserve(p.array.nbytes)) for p in on_host]

    def begin(self, randomness: Randomness, timer: Timer | None = None) -> DeviceRun:
        """Make a run; see `Executable`."""
        return DeviceRun(self, self.backend.pool, self.backend.device, randomness, timer)

    def kernel(self, name: str) -> Any:
        """Return the compiled kernel that runs the steps of a stage."""
        stage, index_type = self.bound.stages[name], self.plan.dest.dtype.name
        if index_type not in stage.compiled:
            stage.compiled[index_type] = self.backend.sweep(stage.kernels, self.options.dtype.name, index_type)
        return stage.compiled[index_type]


class DeviceRun(PlanRun[DeviceMemory]):
    """A run on a device."""

    executable: DevicePlan
    n_library_threads = 0  # the host computes no matrix products
    held = PlanRun.held | {"_launchers", "_uploaded", "_kept"}

    def _reserve(self) -> None:
        executable, options = self.executable, self.options
        self.memory.reserve_all(executable.sizes, executable.packing.n_bytes, options.dtype, options.max_bytes)
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
        super()._begin()
        self._launchers = self._stages = self._upload()

    def _call_timed(self, stage: str, batches: list[Batch]) -> None:
        """Run all parts in as few launches as without a timer; the device records the end of each part."""
        launcher, n_types = self._launchers[stage], len(self.plan.type_ptr) - 1
        launcher.run(0, 2 * n_types if stage == WEIGHTS else len(batches) + 2, timed=True)
        ends = launcher.ends()
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

    def counts(self) -> Counts:
        """Return the work of the run so far."""
        self.launches = sum([one.launches for one in self._launchers.values()])
        return super().counts()

    # The mini-batch on the device.

    def _upload(self) -> dict[str, Launcher]:
        """Set up the stages of all types, and copy the ints and parameters of the mini-batch to the device."""
        executable, device, staging = self.executable, self.executable.backend.device, self.memory.staging
        bound, packing, pinned, held = executable.bound, executable.packing, staging.pinned, staging.held
        self._uploaded: dict[int, Any] = {}
        for parameter, first in executable.uploaded:
            ours, theirs = (
                packed[first : first + parameter.array.nbytes].view(parameter.dtype).reshape(parameter.shape)
                for packed in (pinned, held)
            )
            ours[...], self._uploaded[id(parameter)] = parameter.array, theirs
        if executable.uploaded:
            staging.send(executable.uploaded[0][1], packing.n_bytes)
        bound.bind(self.memory.addresses, self._uploaded)
        self._kept, self._sent = bound.copies, bound.gradients
        base = device.address(held)
        packing.fill(pinned)
        slots = pinned[: bound.slots.nbytes].view(np.int64)
        slots[:] = bound.slots
        slots[bound.plan_slots] = executable.places[bound.sources] + base
        launchers = {}
        for name, sweep in executable.sweeps.items():
            place = slice(executable.steps[name], executable.steps[name] + sweep.steps.nbytes)
            steps = pinned[place].view(STEP)
            steps["memory"] += base  # offsets in the packing become device addresses
            if self.timer is not None:
                steps["then"][sweep.ends] |= NOTE
            make_run, make_kernel = partial(self._stage_run, name), partial(executable.kernel, name)
            launchers[name] = Launcher(device, sweep, held[place], make_run, make_kernel, executable.backend.n_blocks)
        staging.send(0, executable.n_ints)
        return launchers

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

    def _take_targets(self) -> None:
        """Copy the addresses of the gradients to the device, unless they were known when the run began."""
        executable, staging, bound = self.executable, self.memory.staging, self.executable.bound
        bound.take_gradients(self.targets)
        if bound.gradients is not self._sent:
            first, n_bytes = executable.n_ints, WORD * bound.n_late
            late = staging.pinned[first : first + n_bytes].view(np.int64)
            late[:] = staging.pinned[:n_bytes].view(np.int64)
            late[bound.gradient_slots] = bound.slots[bound.gradient_slots]
            staging.send(first, first + n_bytes, to=0)

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
