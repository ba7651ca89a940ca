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

from autobatch.backends.base import Counts, RowMoves, Timer
from autobatch.backends.compiled import slots_of
from autobatch.backends.cuda.device_cell import DeviceCell, DeviceStageRun
from autobatch.backends.cuda.launching import NOTE, STEP, Launcher, PlannedStage, Sweep
from autobatch.backends.cuda.memory import DeviceMemory, Packing
from autobatch.backends.cuda.moving import PackedMoves
from autobatch.backends.cuda.sums import find_sums
from autobatch.backends.driver import PlanExecutable, PlanRun
from autobatch.backends.interpret import Interpreter
from autobatch.backends.options import Options
from autobatch.backends.tables import WHOLE, CompiledTypes
from autobatch.backends.values import MemoryPool
from autobatch.compiler.cuda.source import MOVE_ROWS, module_text
from autobatch.compiler.lowered import Area
from autobatch.compiler.writer import STAGES, WEIGHTS, data_name
from autobatch.devices.device import Device
from autobatch.devices.finding import find_device
from autobatch.devices.store import HOST
from autobatch.errors import BackendError
from autobatch.ir.program import NODE, Weight
from autobatch.ops.randomness import Randomness
from autobatch.params.parameter import Parameter
from autobatch.plan.plan import Batch, CellSizes, Plan, PlannedCell, PlannedTypes
from autobatch.system.background import compiling

RESERVED = 1 << 10  # bytes of shared memory per block that CUDA reserves
SUM_SLOTS = ("buffer", "sums", "parts", "sum_ptr")


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

    def compiled_types(self, cells: PlannedTypes, options: Options) -> CompiledTypes[DeviceCell]:
        """Return the compiled types that all plans of these types share."""
        key = self, options.dtype, options.precision
        found: CompiledTypes[DeviceCell] | None = cells.compiled.get(key)
        if found is None:
            found = cells.compiled[key] = CompiledTypes(cells, options.dtype, lambda row_bytes: WHOLE)
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
        packing: the ints of the plan, and room for the slots and the steps of each stage; then, from byte `n_ints` on,
            for parameters.
        n_late: the number of bytes at the beginning of the packing that are copied late: the slots of the weight stage,
            because the addresses of gradients are known in backward only.
        places: the offset of each array, by type and name; type -1 has the arrays that all types share.
        slots: the offset of the slots of each stage of a type.
        sweeps: the steps of each stage.
        steps: the offset of the steps of each stage.
        parameters: the parameters that the cells of the plan read.
        uploaded: the parameters among them that are on the host, with their offsets.
        kernels: the definitions of the kernels of each stage, sorted by name.
    """

    def __init__(
        self, backend: Cuda, plan: Plan, cells: PlannedTypes, options: Options, tables: tuple[Any, ...] | None
    ) -> None:
        super().__init__(plan, cells, options)
        self.backend = backend
        self.types = backend.compiled_types(cells, options)
        self.stages = (*STAGES, WEIGHTS) if cells.training else STAGES[:1]
        self.tables = self.types.tables_of(plan, partial(backend.device_cell, cells, options), 1, tables)
        self.sums = find_sums(plan, cells)
        self.packing = Packing()
        self.places: dict[tuple[int, str], int] = {}
        self.slots: dict[tuple[str, int], int] = {}
        self.n_late = 0
        self._pack()
        self.kernels = {name: self._kernels(name) for name in self.types.stages}
        if WEIGHTS in self.stages:
            self.kernels[WEIGHTS] = self.kernels["backward"]  # the weight stage has no kernels; share the module
        self.sweeps = {name: self._sweep(name) for name in self.stages}
        self.steps = {name: self.packing.reserve(sweep.steps.nbytes) for name, sweep in self.sweeps.items()}
        stages = [self.types.cells[type_id].stage(name) for name in self.stages for type_id in self.tables.type_ids]
        rows_size = backend.n_blocks * max((stage.rows_size for stage in stages), default=0)
        self.sizes = plan.size + self.sums.size, self.tables.scratch_size, self.tables.kept_size, rows_size
        self.n_bytes = sum(self.sizes) * options.dtype.itemsize + self.packing.n_bytes
        self.n_ints = self.packing.n_bytes
        read = {id(p): p for type_id in self.tables.type_ids for p in parameters_of(cells.cells[type_id])}
        self.parameters = list(read.values())
        self.uploaded = [(p, self.packing.reserve(p.array.nbytes)) for p in self.parameters if p.store is HOST]

    def begin(self, randomness: Randomness, timer: Timer | None = None) -> DeviceRun:
        """Make a run; see `Executable`."""
        return DeviceRun(self, self.backend.pool, self.backend.device, randomness, timer)

    def _pack(self) -> None:
        plan, packing, places, sums = self.plan, self.packing, self.places, self.sums
        for name in reversed(self.stages):  # the slots of the weight stage are first, because they are copied later
            for type_id in self.tables.type_ids:
                self.slots[name, type_id] = packing.reserve(8 * len(self.types.cells[type_id].stage(name).slots))
            if name == WEIGHTS:
                self.n_late = packing.n_bytes
        for name, array in (("ptr", plan.dest_ptr), ("dest", plan.dest)):
            places[-1, name] = packing.add(array)
        places[-1, "to"] = packing.add(sums.to.astype(plan.dest.dtype, copy=False))
        for name, array in (("sums", sums.table), ("parts", sums.parts), ("sum_ptr", sums.ptr)):
            places[-1, name] = packing.add(array)
        self.slots["sums", -1] = packing.reserve(8 * len(SUM_SLOTS))
        for type_id, tiles in self.tables.tiles.items():
            places[type_id, "table"] = packing.add(tiles)
            for domain in range(NODE, NODE + len(self.cells.cells[type_id].layout.input_width)):
                ints, floats = plan.data(type_id, domain)
                places[type_id, data_name(Area.INTS, domain)] = packing.add(ints)
                places[type_id, data_name(Area.FLOATS, domain)] = packing.add(floats)
                if domain != NODE:
                    places[type_id, f"segments_{domain}"] = packing.add(plan.segments_of(type_id, domain))

    def _kernels(self, name: str) -> dict[str, str]:
        """Return the kernels of a stage of all cells met so far, which often include those of later plans."""
        found: dict[str, str] = {}
        for cell in self.types.cells.values():
            found |= cell.stage(name).source.texts
        return dict(sorted(found.items()))

    def kernel(self, name: str) -> Any:
        """Return the compiled kernel that runs the steps of a stage."""
        return self.backend.sweep(self.kernels[name], self.options.dtype.name, self.plan.dest.dtype.name)

    def _sweep(self, name: str) -> Sweep:
        calls = self.tables.calls[name]
        stages = [
            PlannedStage(self.types.cells[type_id].stage(name), self.slots[name, type_id], tiles)
            for type_id, tiles in self.tables.tiles.items()
        ]
        numbers = {kernel: number for number, kernel in enumerate(self.kernels[name])}
        sums = (self.sums, self.slots["sums", -1]) if name == "forward" else None
        return Sweep(calls, stages, numbers, sums)


class DeviceRun(PlanRun[DeviceMemory]):
    """A run on a device."""

    executable: DevicePlan
    n_library_threads = 0  # the host computes no matrix products
    held = PlanRun.held | {"_launchers", "_parameters", "_moves"}
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
        return Interpreter(self.values, self.options, self.randomness, self._parameters, self._data)

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
        self._parameters: dict[int, Any] = {}
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
        self.launches = sum(one.launches for one in self._launchers.values())
        return super().counts()

    # The mini-batch on the device.

    def _upload(self) -> dict[str, Launcher]:
        """Set up the stages of all types, and copy the ints and parameters of the mini-batch to the device."""
        executable, device, memory = self.executable, self.executable.backend.device, self.memory
        packing, places = executable.packing, executable.places
        self._parameters.update((id(p), p.array) for p in executable.parameters if p.store is device)
        for parameter, first in executable.uploaded:
            part = memory.staging.held[first : first + parameter.array.nbytes]
            self._parameters[id(parameter)] = part.view(parameter.dtype).reshape(parameter.shape)
        pinned, base = memory.staging.pinned, device.address(memory.staging.held)
        packing.fill(pinned)
        for parameter, first in executable.uploaded:
            part = pinned[first : first + parameter.array.nbytes]
            part.view(parameter.dtype).reshape(parameter.shape)[...] = parameter.array
        moves, behind = self._moves, packing.n_bytes
        if moves is not None:
            moves.write(pinned[behind:], base + behind, device)
        n_ints = executable.n_ints if executable.uploaded else pinned.size
        memory.staging.send(n_ints, pinned.size)
        common = {"buffer": memory.buffer, "scratch": memory.scratch, "kept": memory.kept}
        arrays = {type_id: common | self._flat_data(type_id) for type_id in executable.tables.type_ids}
        launchers = {}
        for name in executable.stages:
            runs = []
            for type_id, tiles in executable.tables.tiles.items():
                stage = executable.types.cells[type_id].stage(name)
                if executable.uploaded or stage.shared.has_changed():
                    stage.shared.update(lambda parameter: self._parameters[id(parameter)])
                about = (
                    self.plan, type_id, self.plan.first_block(type_id), tiles, self.randomness,
                    self.interpret_gradients,
                )  # fmt: skip
                run = DeviceStageRun(stage, device, *about, arrays[type_id])
                runs.append(run)
                first = executable.slots[name, type_id]
                slots = pinned[first : first + 8 * len(stage.slots)].view(np.int64)
                for slot in stage.used_slots:
                    at = places.get((type_id, slot), places.get((-1, slot)))
                    slots[stage.slots[slot]] = self._slot(run, slot) if at is None else base + at
            first, sweep = executable.steps[name], executable.sweeps[name]
            ours, theirs = (packed[first : first + sweep.steps.nbytes] for packed in (pinned, memory.staging.held))
            steps, listed = ours.view(STEP), theirs.view(np.int64).reshape(len(sweep.steps), -1)
            steps[...] = sweep.steps
            steps["memory"] += base  # offsets in the packing become device addresses
            if self.timer is not None:
                steps["then"][sweep.ends] |= NOTE
            moving = 0
            if moves is not None and name == "forward":
                moving = moves.blocks
                steps["function"][0], steps["memory"][0], steps["tile"][0] = MOVE_ROWS, base + behind, moves.n_pairs
            make_kernel, n_blocks = partial(executable.kernel, name), executable.backend.n_blocks
            launchers[name] = Launcher(device, sweep, listed, runs, make_kernel, n_blocks, moving)
        first = executable.slots["sums", -1]
        pinned[first : first + 8 * len(SUM_SLOTS)].view(np.int64)[:] = [
            device.address(memory.buffer), *(base + places[-1, name] for name in SUM_SLOTS[1:])
        ]  # fmt: skip
        memory.staging.send(executable.n_late, n_ints)
        return launchers

    def _take_targets(self) -> None:
        """Copy the addresses of the gradients to the device."""
        executable, staging, device = self.executable, self.memory.staging, self.executable.backend.device
        for type_id in executable.tables.type_ids:
            stage, first = executable.types.cells[type_id].stage(WEIGHTS), executable.slots[WEIGHTS, type_id]
            slots = staging.pinned[first : first + 8 * len(stage.slots)].view(np.int64)
            for parameter, slot in stage.gradients.items():
                slots[slot : slot + 3] = slots_of(self.targets[stage.keys[parameter]], device.address)
        staging.send(0, executable.n_late)

    def _slot(self, run: DeviceStageRun, name: str) -> int:
        if name == "rows":
            return self.executable.backend.device.address(self.memory.rows) if run.stage.rows_size else 0
        return run.slot(name)

    def _data(self, type_id: int, domain: int) -> tuple[Any, Any]:
        """Return the int and float data of the rows of a domain of a type, as views of the packed ints."""
        ints, floats = self.executable.plan.data(type_id, domain)
        names = data_name(Area.INTS, domain), data_name(Area.FLOATS, domain)
        return self._packed(type_id, names[0], ints), self._packed(type_id, names[1], floats)

    def _flat_data(self, type_id: int) -> dict[str, Any]:
        """Return the data of all domains of a type, by the names that steps use."""
        domains = range(NODE, NODE + len(self.executable.cells.cells[type_id].layout.input_width))
        return {
            data_name(area, domain): data.reshape(-1)
            for domain in domains
            for area, data in zip((Area.INTS, Area.FLOATS), self._data(type_id, domain), strict=True)
        }

    def _packed(self, type_id: int, name: str, array: NDArray[Any]) -> Any:
        """View a packed array on the device."""
        first = self.executable.places[type_id, name]
        return self.memory.staging.held[first : first + array.nbytes].view(array.dtype).reshape(array.shape)


def parameters_of(cell: PlannedCell) -> list[Parameter]:
    """List the parameters that a cell reads, in any stage."""
    vars = cell.program.vars if cell.derivative is None else cell.derivative.vars
    return [var.source.parameter for var in vars if isinstance(var.source, Weight)]
