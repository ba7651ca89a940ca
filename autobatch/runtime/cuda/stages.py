"""The compiled stages of a cell on a device, and their steps: kernels, matrix products and interpreted ops."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.compiler.cuda.source import CudaKernel, CudaSource, print_stage
from autobatch.compiler.cuda.support import module_text
from autobatch.compiler.lowered import Area
from autobatch.compiler.stage import compile_backward, compile_forward
from autobatch.compiler.statement import Interpreted, Product
from autobatch.compiler.view import View
from autobatch.compiler.writer import ARRAYS, is_step
from autobatch.ir.precision import rounded, rounded_args
from autobatch.ir.program import SHARED, Attribute, Instruction
from autobatch.jit.compiling import compiling
from autobatch.ops.define import run_kernel
from autobatch.ops.randomness import Randomness
from autobatch.plan.plan import Batch, Plan, PlannedCell
from autobatch.runtime.cuda.device import Device, Launch
from autobatch.runtime.cuda.device import Product as DeviceProduct
from autobatch.runtime.interpreter.frame import RowRange
from autobatch.runtime.places import DATA, StagePlaces
from autobatch.runtime.shared_values import SharedValues

WARP, BLOCK, LARGEST_TEAM = 32, 128, 256
SPARE = 32  # elements of shared memory before the rows of teams, see `support.cuh`
BLOCKS_PER_PROCESSOR = 16


class DeviceCell:
    """The stages of a planned cell for one device, float type and precision, each compiled when first needed."""

    def __init__(self, cell: PlannedCell, device: Device, dtype: np.dtype[Any], precision: str) -> None:
        self.cell, self._device, self._dtype, self._precision = cell, device, dtype, precision
        self._stages: dict[str, DeviceStage] = {}

    def stage(self, name: str) -> DeviceStage:
        """The stage "forward" or "backward"."""
        if name not in self._stages:
            with compiling(f"cell {self.cell.program.name!r} ({name})", is_kernel=True):
                stage = compile_forward(self.cell) if name == "forward" else compile_backward(self.cell)
                source = print_stage(stage)
            self._stages[name] = DeviceStage(source, self._device, self._dtype, self._precision)
        return self._stages[name]


class DeviceStage:
    """A stage with its steps; see `autobatch.runtime.preparing.StageSteps`.

    Attributes:
        rows_size: elements of memory for rows that do not fit in shared memory.
    """

    turn_width = 0

    def __init__(self, source: CudaSource, device: Device, dtype: np.dtype[Any], precision: str) -> None:
        self.source, self.device, self.dtype, self.precision = source, device, dtype, precision
        stage = source.stage
        self.cell, self.lowered, self.storage, self.columns = stage.cell, stage.lowered, stage.storage, stage.columns
        self.places, self.shared = StagePlaces(stage), SharedValues(stage, device, dtype)
        self.rows_size = 0
        self.steps: list[Step] = []
        counts = []
        last = len(stage.steps) - stage.n_after
        for part in (range(stage.n_before), range(stage.n_before, last), range(last, len(stage.steps))):
            before = len(self.steps)
            for number in part:
                self.steps += self._make_steps(number)
            counts.append(len(self.steps) - before)
        self.n_before, self.n_per_batch, self.n_after = counts
        self._modules: dict[str, dict[str, Any]] = {}
        used = {name for kernel in source.kernels if kernel is not None for name in kernel.arrays}
        self.used_slots = sorted(used | {"table"}, key=source.slots.__getitem__)

    def kernels(self, place: str) -> dict[str, Any]:
        """The compiled kernels by name, for a type of destinations."""
        if place not in self._modules:
            kernels = [kernel for kernel in self.source.kernels if kernel is not None]
            about = f"cell {self.lowered.name!r} ({self.lowered.stage})"
            with compiling(about, is_kernel=True):
                text = module_text(self.source.text, self.dtype.name, place)
                names = [kernel.name for kernel in kernels]
                self._modules[place] = self.device.load(text, names, about) if kernels else {}
        return self._modules[place]

    def _make_steps(self, number: int) -> list[Step]:
        step, kernel = self.source.stage.steps[number], self.source.kernels[number]
        match step:
            case Product():
                return [ProductStep(self, step, at) for at in range(len(step.terms))]
            case Interpreted():
                return [InterpretedStep(self, step)]
        assert kernel is not None, "every kernel has a source"
        made = KernelStep(self, kernel)
        self.rows_size = max(self.rows_size, made.rows_size)
        return [made]


class StageRun:
    """A stage of a type in a run: the memory that its steps read and write.

    Attributes:
        arrays: the array of each area.
        table: the rows of the table of pieces, on the host.
        slots: the address of the slots on the device.
        kernels: the compiled kernels.
        weights: the shared values by slot, kept alive.
    """

    def __init__(
        self, stage: DeviceStage, plan: Plan, kind: int, arrays: dict[str, Any], table: NDArray[np.int64],
        slots: int, randomness: Randomness,
    ) -> None:  # fmt: skip
        self.stage, self.plan, self.kind, self.arrays, self.table = stage, plan, kind, arrays, table
        self.slots, self.randomness = slots, randomness
        self.kernels = stage.kernels(plan_place(plan))
        self.weights: dict[str, Any] = {}
        self.calls = [partial(step.run, self) for step in stage.steps]

    def slot(self, name: str) -> int:
        """What a slot holds: an address, or the row stride of a table."""
        device, arrays = self.stage.device, self.arrays
        if name in arrays:
            return device.address(arrays[name])
        number = int(name.rsplit("_", 1)[1])
        whole = self.stage.shared.arrays[number]
        if is_step(name):
            return int(whole.strides[1] // whole.itemsize)
        if name.startswith("shared"):
            whole = self.weights[name] = device.xp.ascontiguousarray(whole)
        return device.address(whole)

    def rows(self, k: int) -> RowRange:
        """The rows of a piece."""
        start = int(self.table[k, 0])
        n_rows = int(self.table[k, self.stage.columns.index("rows_n")])
        return RowRange(self.plan, Batch(self.kind, start, start + n_rows, ()), self.stage.device)

    def view(self, view: View, k: int) -> Any:
        """The elements of a view in all rows of a piece: `(rows, *shape)`."""
        place, array = self.stage.places.place(view), self.array_of(view)
        first, width = int(self.table[k, place.column]), place.width
        first *= width if place.area in DATA else 1
        n_rows, size = int(self.table[k, place.rows]), array.itemsize
        shape = (n_rows, *place.shape)
        if not all(shape):
            return self.stage.device.xp.empty(shape, array.dtype)
        strides = (width * size, *(stride * size for stride in place.strides))
        return self.stage.device.xp.lib.stride_tricks.as_strided(array[first + place.offset :], shape, strides)

    def array_of(self, view: View) -> Any:
        """The array that holds a view."""
        return self.arrays[array_name(self.stage.places.place(view).area)]


class KernelStep:
    """A generated kernel."""

    def __init__(self, stage: DeviceStage, kernel: CudaKernel) -> None:
        self.kernel, device, size = kernel, stage.device, stage.dtype.itemsize
        self.own = device.put(kernel.own) if kernel.own.size else None
        self.own_address = 0 if self.own is None else device.address(self.own)
        self.team = team_of(kernel.width)
        self.teams = max(BLOCK // self.team, 1) if self.team <= WARP else 1
        row_bytes = stage.storage.row_width * size if kernel.uses_row else 0
        self.most_blocks = device.n_processors * BLOCKS_PER_PROCESSOR
        self.rows_size = 0
        if SPARE * size + row_bytes > device.most_shared_bytes:
            self.rows_size, row_bytes = self.most_blocks * self.teams * stage.storage.row_width, 0
        while self.teams > 1 and SPARE * size + self.teams * row_bytes > device.most_shared_bytes:
            self.teams //= 2
        self.shared_bytes = SPARE * size + self.teams * row_bytes
        self._n_rows = stage.columns.index("rows_n")

    def run(self, run: StageRun, k: int) -> None:
        """Launch it for a piece."""
        blocks = -(-int(run.table[k, self._n_rows]) // self.teams)
        launch = Launch(
            min(blocks, self.most_blocks), self.team, self.teams, self.shared_bytes, (run.slots, self.own_address, k)
        )
        run.stage.device.launch(run.kernels[self.kernel.name], launch)


class ProductStep:
    """A term of a product: rows times a matrix that all rows share, written to the target or added to it."""

    rows_size = 0

    def __init__(self, stage: DeviceStage, product: Product, number: int) -> None:
        self.term, self.accumulate = product.terms[number], product.adds or number > 0
        self.out = View(product.target, 0, (stage.lowered.sizes[product.target],), (1,))

    def run(self, run: StageRun, k: int) -> None:
        """Multiply the rows of a piece."""
        stage, table = run.stage, run.table
        device, size = stage.device, stage.dtype.itemsize
        a, out = stage.places.place(self.term.rows), stage.places.place(self.out)
        n_rows = int(table[k, a.rows])
        if n_rows == 0 or out.shape[0] == 0:
            return
        matrix = stage.shared.arrays[self.term.weight][0]
        if matrix.strides[1] != size and matrix.strides[0] != size:
            matrix = device.xp.ascontiguousarray(matrix)
        is_columns = matrix.strides[1] != size and matrix.shape[1] > 1
        device.multiply(
            DeviceProduct(
                stage.dtype, stage.precision, n_rows, out.shape[0], a.shape[0],
                device.address(run.array_of(self.term.rows)) + (int(table[k, a.column]) + a.offset) * size, a.width,
                device.address(matrix), max(matrix.strides[1 if is_columns else 0] // size, 1),
                self.term.transposed != is_columns,
                device.address(run.array_of(self.out)) + (int(table[k, out.column]) + out.offset) * size, out.width,
                self.accumulate,
            )
        )  # fmt: skip


class InterpretedStep:
    """An instruction that runs as in the reference backend."""

    rows_size = 0

    def __init__(self, stage: DeviceStage, alone: Interpreted) -> None:
        self.alone = alone

    def run(self, run: StageRun, k: int) -> None:
        """Run it for a piece."""
        stage, target = run.stage, self.alone.target
        lowered, xp = stage.lowered, stage.device.xp
        source = lowered.vars[target].source
        assert isinstance(source, Instruction)
        static = run.rows(k).static(lowered.vars, target, run.randomness, stage.cell.type.owner)
        args = [self._argument(run, arg, k) for arg in self.alone.args]
        if stage.precision == "bf16":
            for at in rounded_args(lowered.vars, target):
                args[at] = rounded(args[at], xp)
        run_kernel(source.op, xp, args, run.view(lowered.views[target], k), static)

    def _argument(self, run: StageRun, arg: int, k: int) -> Any:
        lowered = run.stage.lowered
        if lowered.domains[arg] == SHARED:
            return run.stage.shared.arrays[arg]
        array = run.view(lowered.views[arg], k)
        source = lowered.vars[lowered.views[arg].value].source
        return array.astype(run.stage.dtype) if isinstance(source, Attribute) and source.is_float else array


Step = KernelStep | ProductStep | InterpretedStep


def team_of(width: int) -> int:
    """How many threads work on a row, if so many could: up to a warp for narrow rows, else several warps."""
    if width <= WARP:
        return 1 << max(width - 1, 0).bit_length()
    if width <= 4 * WARP:
        return WARP
    return min(1 << (width // 4 - 1).bit_length(), LARGEST_TEAM)


def array_name(area: Area) -> str:
    """The array that holds an area."""
    return ARRAYS[area]


def plan_place(plan: Plan) -> str:
    """The type of a plan's destinations."""
    return plan.dest.dtype.name
