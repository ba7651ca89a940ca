"""The compiled stages of a cell on a device, and their steps: kernels, matrix products and interpreted ops."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.backends.gradient_slots import GradientSlots
from autobatch.backends.places import DATA, Place, StagePlaces
from autobatch.backends.shared_values import SharedValues
from autobatch.backends.values import RowRange
from autobatch.compiler.cuda.source import CudaKernel, CudaSource, print_stage
from autobatch.compiler.stages import COMPILE
from autobatch.compiler.statement import Interpreted, Outer, Product, Remainder, RowSum, Scatter
from autobatch.compiler.view import View
from autobatch.compiler.writer import ARRAYS, data_name, is_step
from autobatch.devices.device import Device, DeviceGemm
from autobatch.ir.precision import rounded_args
from autobatch.ir.program import SHARED, Attribute, Instruction
from autobatch.jit.bits import rounded
from autobatch.jit.compiling import compiling
from autobatch.ops.define import run_kernel
from autobatch.ops.randomness import Randomness
from autobatch.plan.plan import Batch, Plan, PlannedCell

THREADS, WARP = 256, 32  # of a block and a warp, as in `support.cuh`
SPARE = 32  # elements of shared memory before the rows of teams
TILE = 16, 64  # the rows and columns of the smallest tiles of products, see `products.cuh`
SUMMED = 8  # columns of rows that a block sums, see `sweep.cuh`
TILE_BYTES = 64 << 10  # shared memory of the largest ones


class DeviceCell:
    """The stages of a planned cell for one device, float type and precision, each compiled when first needed."""

    def __init__(
        self, cell: PlannedCell, device: Device, dtype: np.dtype[Any], precision: str, most_shared_bytes: int
    ) -> None:
        self.cell, self._device, self._dtype, self._precision = cell, device, dtype, precision
        self._most_shared_bytes = most_shared_bytes
        self._stages: dict[str, DeviceStage] = {}

    def stage(self, name: str) -> DeviceStage:
        """The stage "forward", "backward" or "weights"."""
        if name not in self._stages:
            with compiling(f"cell {self.cell.program.name!r} ({name})", is_kernel=True):
                source = print_stage(COMPILE[name](self.cell))
            about = self._dtype, self._precision, self._most_shared_bytes
            self._stages[name] = DeviceStage(source, self._device, *about)
        return self._stages[name]


class DeviceStage:
    """A stage with its steps; see `autobatch.backends.preparing.StageSteps`.

    Attributes:
        most_shared_bytes: shared memory that a block may have.
        slots: the numbers of the slots, by name.
        gradients: the slots of the gradients that steps write.
        keys: by what runs know a parameter, by its number.
        waits: for each step, whether the next one may read what other blocks wrote.
    """

    turn_width = 0

    def __init__(
        self, source: CudaSource, device: Device, dtype: np.dtype[Any], precision: str, most_shared_bytes: int
    ) -> None:
        self.source, self.device, self.dtype, self.precision = source, device, dtype, precision
        self.most_shared_bytes = most_shared_bytes
        stage = source.stage
        self.cell, self.lowered, self.storage, self.columns = stage.cell, stage.lowered, stage.storage, stage.columns
        self.places, self.shared = StagePlaces(stage), SharedValues(stage, device, dtype)
        self.slots = dict(source.slots)
        self.used_slots = {
            "table",
            *(name for kernel in source.kernels if kernel is not None for name in kernel.arrays),
        }
        self.gradients = GradientSlots(self.slots)
        self._remainder: RemainderStep | None = None
        self.keys = {} if self.cell.derivative is None else self.cell.derivative.keys
        self.steps: list[Step] = []
        self.waits: list[bool] = []
        counts = []
        last = len(stage.steps) - stage.n_after
        for part in (range(stage.n_before), range(stage.n_before, last), range(last, len(stage.steps))):
            steps = [step for number in part for step in self._make_steps(number)]
            self.steps += steps
            self.waits += _find_waits(steps)
            counts.append(len(steps))
        self.n_before, self.n_per_batch, self.n_after = counts

    @property
    def rows_size(self) -> int:
        """Elements of memory per block for rows that do not fit in shared memory."""
        return max((step.rows_size for step in self.steps if isinstance(step, KernelStep)), default=0)

    def slot(self, name: str) -> int:
        """The number of a slot, which is used."""
        self.used_slots.add(name)
        return self.slots.setdefault(name, len(self.slots))

    def _on_host(self, step: Outer | Scatter | Remainder) -> list[Step]:
        """The one step that adds to all gradients that the interpreter computes; none if there is one already."""
        parameters = step.parameters if isinstance(step, Remainder) else (step.parameter,)
        made = self._remainder is None
        self._remainder = self._remainder or RemainderStep()
        self._remainder.parameters |= dict.fromkeys(parameters)
        return [self._remainder] if made else []

    def _make_steps(self, number: int) -> list[Step]:
        step, kernel = self.source.stage.steps[number], self.source.kernels[number]
        match step:
            case Product():
                return [ProductStep(self, step, at) for at in range(len(step.terms))]
            case Interpreted():
                return [InterpretedStep(step)]
            case Outer() if self.precision == "float32":
                return [OuterStep(self, step)]
            case RowSum():
                return [RowSumStep(self, step)]
            case Outer() | Scatter() | Remainder():
                return self._on_host(step)
        assert kernel is not None, "every kernel has a source"
        return [KernelStep(self, kernel)]


class StageRun:
    """A stage of a type in a run: the memory that its steps read and write.

    Attributes:
        arrays: the arrays of areas, by name.
        table: the rows of the table of pieces, on the host.
        interpret: computes gradients of parameters of a type, given by the numbers of their values.
    """

    def __init__(
        self, stage: DeviceStage, plan: Plan, kind: int, arrays: dict[str, Any], table: NDArray[np.int64],
        randomness: Randomness, interpret: Callable[[int, tuple[int, ...]], None],
    ) -> None:  # fmt: skip
        self.stage, self.plan, self.kind, self.arrays, self.table = stage, plan, kind, arrays, table
        self.randomness, self.interpret = randomness, interpret
        self._read: dict[str, Any] = {}  # kept alive

    def slot(self, name: str) -> int:
        """What a slot of no plan array holds: an address, or elements from row to row."""
        device = self.stage.device
        if name in self.arrays:
            return device.address(self.arrays[name])
        kind, _, value = name.rpartition("_")
        whole = self.stage.shared.arrays[int(value)]
        match kind:
            case "matrix":
                return device.address(self._matrix(int(value)))
            case "pitch":
                return _pitch(self._matrix(int(value))) or 1
            case "shared":
                whole = self._read[name] = device.xp.ascontiguousarray(whole)
        return int(whole.strides[1]) // int(whole.itemsize) if is_step(name) else device.address(whole)

    def _matrix(self, value: int) -> Any:
        """A shared matrix whose rows or columns are contiguous."""
        name = f"matrix_{value}"
        if name not in self._read:
            matrix = self.stage.shared.arrays[value][0]
            self._read[name] = matrix if _pitch(matrix) is not None else self.stage.device.xp.ascontiguousarray(matrix)
        return self._read[name]

    def rows(self, k: int) -> RowRange:
        """The rows of a piece."""
        start = int(self.table[k, 0])
        n_rows = int(self.table[k, self.stage.columns.index("rows_n")])
        return RowRange(self.plan, Batch(self.kind, start, start + n_rows, ()), self.stage.device)

    def view(self, view: View, k: int) -> Any:
        """The elements of a view in all rows of a piece: `(rows, *shape)`."""
        place = self.stage.places.place(view)
        first, width, name = int(self.table[k, place.column]), place.width, ARRAYS[place.area]
        if place.area in DATA:
            first, name = self.rows(k).of(place.domain)[0] * width, data_name(place.area, place.domain)
        array = self.arrays[name]
        n_rows, size = int(self.table[k, place.rows]), array.itemsize
        shape = (n_rows, *place.shape)
        if not all(shape):
            return self.stage.device.xp.empty(shape, array.dtype)
        strides = (width * size, *(stride * size for stride in place.strides))
        return self.stage.device.xp.lib.stride_tricks.as_strided(array[first + place.offset :], shape, strides)

    def address(self, place: Place, k: int) -> int:
        """The address where a value begins in the rows of a piece."""
        array = self.arrays[ARRAYS[place.area]]
        first = int(self.table[k, place.column]) + place.offset
        return self.stage.device.address(array) + first * self.stage.dtype.itemsize


class Own:
    """Own numbers of a step, on the device."""

    def __init__(self, device: Device, numbers: NDArray[np.int64]) -> None:
        self._array = device.put(numbers) if numbers.size else None
        self.address = 0 if self._array is None else device.address(self._array)


class KernelStep:
    """A generated kernel.

    Attributes:
        own: the address of its own numbers.
        team: the threads that work on a row.
        shared_bytes: shared memory per block.
        rows_size: elements of memory per block for rows that do not fit in shared memory.
    """

    def __init__(self, stage: DeviceStage, kernel: CudaKernel) -> None:
        self.name, self._own = kernel.name, Own(stage.device, kernel.own)
        self.own, self._n_rows = self._own.address, stage.columns.index(kernel.n_rows)
        self.team, self.shared_bytes, self.rows_size = fit_rows(
            kernel, stage.storage.row_width, stage.dtype.itemsize, stage.most_shared_bytes
        )

    def blocks(self, table: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many blocks have work, for each piece."""
        return -(-table[:, self._n_rows] * self.team // THREADS)


class ProductStep:
    """A term of a product: rows times a matrix that all rows share, written to the target or added to it."""

    team = THREADS

    def __init__(self, stage: DeviceStage, product: Product, number: int) -> None:
        term, self.accumulate = product.terms[number], product.adds or number > 0
        target = View(product.target, 0, (stage.lowered.sizes[product.target],), (1,))
        self.weight, self.transposed = term.weight, term.transposed
        self.a, self.out = stage.places.place(term.rows), stage.places.place(target)
        slots = [stage.slot(name) for name in ("table", ARRAYS[self.a.area], f"matrix_{self.weight}")]
        numbers = (
            *slots, stage.slot(ARRAYS[self.out.area]), self.a.rows, self.a.column, self.a.offset, self.a.width,
            self.out.column, self.out.offset, self.out.width, stage.slot(f"pitch_{self.weight}"),
            self.out.shape[0], self.a.shape[0], self.transposed + 2 * self.accumulate, len(stage.columns),
        )  # fmt: skip
        self._own = Own(stage.device, np.array(numbers, np.int64))
        self.own = self._own.address
        self.shared_bytes = TILE_BYTES

    def blocks(self, table: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many blocks have work, for each piece."""
        n_tiles: NDArray[np.int64] = count_tiles(table[:, self.a.rows], self.out.shape[0])
        return n_tiles

    def meets(self, other: ProductStep) -> bool:
        """Whether one writes what the other reads or writes, other than sums of the same tiles."""
        if self.out == other.out:
            return overlap(self.out, other.a) or overlap(other.out, self.a)
        return overlap(self.out, other.a) or overlap(other.out, self.a) or overlap(self.out, other.out)

    def run(self, run: StageRun, k: int) -> None:
        """Multiply the rows of a piece by a library."""
        stage = run.stage
        n_rows = int(run.table[k, self.a.rows])
        if n_rows and self.out.shape[0]:
            pitch = run.slot(f"pitch_{self.weight}")
            product = DeviceGemm(
                stage.dtype, stage.precision, n_rows, self.out.shape[0], self.a.shape[0],
                run.address(self.a, k), self.a.width, run.slot(f"matrix_{self.weight}"), abs(pitch),
                self.transposed != (pitch < 0), run.address(self.out, k), self.out.width, self.accumulate,
            )  # fmt: skip
            stage.device.multiply(product)


class InterpretedStep:
    """An instruction that runs as in the reference backend."""

    own = team = shared_bytes = 0

    def __init__(self, alone: Interpreted) -> None:
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

    def blocks(self, table: NDArray[np.int64]) -> NDArray[np.int64]:
        """None: no kernel runs."""
        return np.zeros(len(table), np.int64)

    def _argument(self, run: StageRun, arg: int, k: int) -> Any:
        lowered = run.stage.lowered
        if lowered.domains[arg] == SHARED:
            return run.stage.shared.arrays[arg]
        array = run.view(lowered.views[arg], k)
        source = lowered.vars[lowered.views[arg].value].source
        return array.astype(run.stage.dtype) if isinstance(source, Attribute) and source.is_float else array


class OuterStep:
    """A product over all rows of a type, added to the gradient of a parameter."""

    team = THREADS

    def __init__(self, stage: DeviceStage, outer: Outer) -> None:
        left, right = stage.places.place(outer.left), stage.places.place(outer.right)
        slots = [stage.slot(name) for name in ("table", ARRAYS[left.area], ARRAYS[right.area])]
        self._shape = prod(outer.left.shape), prod(outer.right.shape)
        of_left, of_right = ((one.column, one.offset, one.width) for one in (left, right))
        about = stage.gradients.of(outer.parameter), *self._shape, len(stage.columns)
        self._own = Own(stage.device, np.array([*slots, left.rows, *of_left, *of_right, *about], np.int64))
        self.own = self._own.address
        self.shared_bytes = TILE_BYTES

    def blocks(self, table: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many blocks have work, for each piece."""
        m, n = self._shape
        return np.full(len(table), max(count_tiles(m, n), count_tiles(n, m)))  # it may be stored as the transpose


class RowSumStep:
    """A sum of all rows of a type, added to the gradients of parameters."""

    team = THREADS

    def __init__(self, stage: DeviceStage, total: RowSum) -> None:
        rows, self._size = stage.places.place(total.rows), prod(total.rows.shape)
        slots = stage.slot("table"), stage.slot(ARRAYS[rows.area])
        shape = stage.lowered.vars[total.parameters[0]].shape
        n = self._size // max(shape[0], 1) if len(shape) > 1 else self._size
        place = rows.rows, rows.column, rows.offset, rows.width, self._size
        of_gradients = [stage.gradients.of(parameter) for parameter in total.parameters]
        numbers = (*slots, *place, max(n, 1), len(of_gradients), len(stage.columns), *of_gradients)
        self._own = Own(stage.device, np.array(numbers, np.int64))
        self.own = self._own.address
        self.shared_bytes = THREADS // SUMMED * (SUMMED + 1) * stage.dtype.itemsize

    def blocks(self, table: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many blocks have work, for each piece."""
        return np.full(len(table), -(-self._size // SUMMED))


class RemainderStep:
    """The gradients that the interpreter computes, on the device's arrays."""

    own = team = shared_bytes = 0

    def __init__(self) -> None:
        self.parameters: dict[int, None] = {}

    def run(self, run: StageRun, k: int) -> None:
        """Run the interpreter."""
        run.interpret(run.kind, tuple(self.parameters))

    def blocks(self, table: NDArray[np.int64]) -> NDArray[np.int64]:
        """None: no kernel runs."""
        return np.zeros(len(table), np.int64)


Step = KernelStep | ProductStep | InterpretedStep | OuterStep | RowSumStep | RemainderStep


class Fit(NamedTuple):
    """How a kernel runs on a device: see the attributes of `KernelStep`."""

    team: int
    shared_bytes: int
    rows_size: int


def fit_rows(kernel: CudaKernel, row_width: int, itemsize: int, most_shared_bytes: int) -> Fit:
    """Choose the threads per row: more work on one where else the rows of a block do not fit in shared memory.

    Args:
        row_width: elements of the row storage of the kernel's stage.
        itemsize: bytes of an element.
        most_shared_bytes: shared memory that a block may have on the device.
    """
    team, width, room = (
        team_of(kernel.width),
        row_width if kernel.uses_row else 0,
        most_shared_bytes // itemsize - SPARE,
    )
    while team < THREADS and THREADS // team * width > room:
        team *= 2
    in_rows = THREADS // team * width
    if in_rows > room:
        return Fit(team, SPARE * itemsize, in_rows)
    return Fit(team, (SPARE + in_rows) * itemsize, 0)


def count_tiles(n_rows: Any, n_columns: int) -> Any:
    """How many tiles a product has."""
    return -(-n_rows // TILE[0]) * -(-n_columns // TILE[1])


def team_of(width: int) -> int:
    """How many threads work on a row, if so many could: up to a warp for narrow rows, else several warps."""
    if width <= WARP:
        return 1 << max(width - 1, 0).bit_length()
    if width <= 4 * WARP:
        return WARP
    return min(1 << (width // 4 - 1).bit_length(), THREADS)


def overlap(one: Place, other: Place) -> bool:
    """Whether two contiguous places have elements in common."""
    if (one.area, one.column) != (other.area, other.column):
        return False
    return one.offset < other.offset + other.shape[0] and other.offset < one.offset + one.shape[0]


def _pitch(matrix: Any) -> int | None:
    """The elements from row to row if rows are contiguous and in order; minus those between columns if columns are.

    None if neither are. Axes of length one have no order.
    """
    (rows, columns), (n_rows, n_columns) = (int(s) // int(matrix.itemsize) for s in matrix.strides), matrix.shape
    if (n_columns <= 1 or columns == 1) and (n_rows <= 1 or rows >= n_columns):
        return rows if n_rows > 1 else max(n_columns, 1)
    if (n_rows <= 1 or rows == 1) and (n_columns <= 1 or columns >= n_rows):
        return -columns if n_columns > 1 else -max(n_rows, 1)
    return None


def _find_waits(steps: list[Step]) -> list[bool]:
    """For each step, whether all blocks wait after it: not between products that have nothing to do with each other."""
    waits: list[bool] = []
    since: list[ProductStep] = []
    for step, following in zip_longest(steps, steps[1:]):
        if isinstance(step, ProductStep) and isinstance(following, ProductStep):
            since.append(step)
            waits.append(any(following.meets(other) for other in since))
        else:
            waits.append(True)
        if waits[-1]:
            since.clear()
    return waits
