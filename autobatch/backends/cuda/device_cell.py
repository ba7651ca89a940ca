"""The compiled stages of a cell on a device, and their steps: kernels, matrix products and interpreted ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.backends.compiled import DATA, CellStages, RowLocation, Stage, StageRun
from autobatch.compiler.cuda.source import CudaKernel, CudaSource, print_stage
from autobatch.compiler.stage import StageProgram
from autobatch.compiler.statement import Interpreted, Outer, Product, Remainder, RowSum, Scatter
from autobatch.compiler.view import View
from autobatch.compiler.writer import ARRAYS, data_name, is_step
from autobatch.devices.device import Device, DeviceGemm
from autobatch.plan.plan import PlannedCell

THREADS, WARP = 256, 32  # of a block and a warp, as in `support.cuh`
SPARE = 32  # elements of shared memory before the rows of teams
TILE = 16, 64  # the rows and columns of the smallest tiles of products, see `products.cuh`
SUMMED = 8  # columns of rows that a block sums, see `sweep.cuh`
TILE_BYTES = 64 << 10  # shared memory of the largest ones


class DeviceCell(CellStages["DeviceStage"]):
    """The stages of a planned cell for one device, float type and precision."""

    def __init__(
        self, cell: PlannedCell, device: Device, dtype: np.dtype[Any], precision: str, most_shared_bytes: int
    ) -> None:
        super().__init__(cell)
        self._options = device, dtype, precision, most_shared_bytes

    def _make(self, program: StageProgram) -> DeviceStage:
        return DeviceStage(print_stage(program), *self._options)


class DeviceStage(Stage["DeviceStep"]):
    """A stage with its steps.

    Attributes:
        most_shared_bytes: shared memory that a block may have.
        waits: for each step, whether the next one may read what other blocks wrote.
    """

    def __init__(
        self, source: CudaSource, device: Device, dtype: np.dtype[Any], precision: str, most_shared_bytes: int
    ) -> None:
        super().__init__(source.stage, dict(source.slots), device, dtype, precision)
        self.source, self.device, self.most_shared_bytes = source, device, most_shared_bytes
        self.used_slots = {
            "table",
            *(name for kernel in source.kernels if kernel is not None for name in kernel.arrays),
        }
        self._remainder: RemainderStep | None = None
        self._add_steps()
        n_batched = self.n_before + self.n_per_batch
        parts = self.steps[: self.n_before], self.steps[self.n_before : n_batched], self.steps[n_batched:]
        self.waits = [wait for part in parts for wait in _find_waits(part)]

    @property
    def rows_size(self) -> int:
        """Elements of memory per block for rows that do not fit in shared memory."""
        return max((step.rows_size for step in self.steps if isinstance(step, KernelStep)), default=0)

    def slot(self, name: str) -> int:
        """The number of a slot, which is used."""
        self.used_slots.add(name)
        return self.slots.setdefault(name, len(self.slots))

    def place(self, location: RowLocation) -> tuple[int, int, int]:
        """The field where the rows of a value begin, the elements from there, and those from one row to the next."""
        return self.fields.index(location.first), location.offset, location.width

    def _on_host(self, step: Outer | Scatter | Remainder) -> list[DeviceStep]:
        """The one step that adds to all gradients that the interpreter computes; none if there is one already."""
        parameters = step.parameters if isinstance(step, Remainder) else (step.parameter,)
        made = self._remainder is None
        self._remainder = self._remainder or RemainderStep()
        self._remainder.parameters |= dict.fromkeys(parameters)
        return [self._remainder] if made else []

    def _make_steps(self, number: int) -> Sequence[DeviceStep]:
        step, kernel = self.program.steps[number], self.source.kernels[number]
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


@dataclass(eq=False)
class DeviceStageRun(StageRun):
    """A stage of a type in a run on a device.

    Attributes:
        arrays: the arrays of areas, by name.
    """

    stage: DeviceStage
    arrays: dict[str, Any]
    _read: dict[str, Any] = field(default_factory=dict)  # kept alive

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

    def _array(self, location: RowLocation) -> Any:
        is_data = location.area in DATA
        return self.arrays[data_name(location.area, location.domain) if is_data else ARRAYS[location.area]]

    def _strided(self, array: Any, first: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        steps = [stride * array.itemsize for stride in strides]
        return self.stage.device.xp.lib.stride_tricks.as_strided(array[first:], shape, steps)

    def address(self, location: RowLocation, k: int) -> int:
        """The address where a value begins in the rows of a tile."""
        first = int(self.tiles[k][location.first]) + location.offset
        return self.stage.device.address(self._array(location)) + first * self.stage.dtype.itemsize


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
        self.name, self._own = kernel.name, Own(stage.device, kernel.descriptor)
        self.own, self._rows = self._own.address, kernel.n_rows
        self.team, self.shared_bytes, self.rows_size = fit_rows(
            kernel, stage.storage.row_width, stage.dtype.itemsize, stage.most_shared_bytes
        )

    def blocks(self, tiles: NDArray[Any]) -> NDArray[np.int64]:
        """How many blocks have work, for each tile."""
        found: NDArray[np.int64] = -(-tiles[self._rows] * self.team // THREADS)
        return found


class ProductStep:
    """A term of a product: rows times a matrix that all rows share, written to the target or added to it."""

    team = THREADS

    def __init__(self, stage: DeviceStage, product: Product, number: int) -> None:
        term, self.accumulate = product.terms[number], product.adds or number > 0
        target = View(product.target, 0, (stage.lowered.sizes[product.target],), (1,))
        self.weight, self.transposed = term.weight, term.transposed
        self.a, self.out = stage.locate(term.rows), stage.locate(target)
        slots = [stage.slot(name) for name in ("table", ARRAYS[self.a.area], f"matrix_{self.weight}")]
        numbers = (
            *slots, stage.slot(ARRAYS[self.out.area]), stage.fields.index(self.a.rows), *stage.place(self.a),
            *stage.place(self.out), stage.slot(f"pitch_{self.weight}"), self.out.shape[0], self.a.shape[0],
            self.transposed + 2 * self.accumulate, len(stage.fields),
        )  # fmt: skip
        self._own = Own(stage.device, np.array(numbers, np.int64))
        self.own = self._own.address
        self.shared_bytes = TILE_BYTES

    def blocks(self, tiles: NDArray[Any]) -> NDArray[np.int64]:
        """How many blocks have work, for each tile."""
        found: NDArray[np.int64] = count_product_tiles(tiles[self.a.rows], self.out.shape[0])
        return found

    def meets(self, other: ProductStep) -> bool:
        """Whether one writes what the other reads or writes, other than sums of the same tiles."""
        if self.out == other.out:
            return overlap(self.out, other.a) or overlap(other.out, self.a)
        return overlap(self.out, other.a) or overlap(other.out, self.a) or overlap(self.out, other.out)

    def run(self, run: DeviceStageRun, k: int) -> None:
        """Multiply the rows of a tile by a library."""
        stage = run.stage
        n_rows = int(run.tiles[k][self.a.rows])
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

    def __init__(self, interpreted: Interpreted) -> None:
        self.interpreted = interpreted

    def run(self, run: DeviceStageRun, k: int) -> None:
        """Run it for a tile."""
        run.run_interpreted(self.interpreted, k)

    def blocks(self, tiles: NDArray[Any]) -> NDArray[np.int64]:
        """None: no kernel runs."""
        return np.zeros(len(tiles), np.int64)


class OuterStep:
    """A product over all rows of a type, added to the gradient of a parameter."""

    team = THREADS

    def __init__(self, stage: DeviceStage, outer: Outer) -> None:
        left, right = stage.locate(outer.left), stage.locate(outer.right)
        slots = [stage.slot(name) for name in ("table", ARRAYS[left.area], ARRAYS[right.area])]
        self._shape = prod(outer.left.shape), prod(outer.right.shape)
        places = stage.fields.index(left.rows), *stage.place(left), *stage.place(right)
        about = stage.gradient_slot(outer.parameter), *self._shape, len(stage.fields)
        self._own = Own(stage.device, np.array([*slots, *places, *about], np.int64))
        self.own = self._own.address
        self.shared_bytes = TILE_BYTES

    def blocks(self, tiles: NDArray[Any]) -> NDArray[np.int64]:
        """How many blocks have work, for each tile."""
        m, n = self._shape
        # The gradient may be stored as the transpose.
        return np.full(len(tiles), max(count_product_tiles(m, n), count_product_tiles(n, m)))


class RowSumStep:
    """A sum of all rows of a type, added to the gradients of parameters."""

    team = THREADS

    def __init__(self, stage: DeviceStage, total: RowSum) -> None:
        rows, self._size = stage.locate(total.rows), prod(total.rows.shape)
        slots = stage.slot("table"), stage.slot(ARRAYS[rows.area])
        shape = stage.lowered.vars[total.parameters[0]].shape
        n = self._size // max(shape[0], 1) if len(shape) > 1 else self._size
        place = stage.fields.index(rows.rows), *stage.place(rows), self._size
        of_gradients = [stage.gradient_slot(parameter) for parameter in total.parameters]
        numbers = (*slots, *place, max(n, 1), len(of_gradients), len(stage.fields), *of_gradients)
        self._own = Own(stage.device, np.array(numbers, np.int64))
        self.own = self._own.address
        self.shared_bytes = THREADS // SUMMED * (SUMMED + 1) * stage.dtype.itemsize

    def blocks(self, tiles: NDArray[Any]) -> NDArray[np.int64]:
        """How many blocks have work, for each tile."""
        return np.full(len(tiles), -(-self._size // SUMMED))


class RemainderStep:
    """The gradients that the interpreter computes, on the device's arrays."""

    own = team = shared_bytes = 0

    def __init__(self) -> None:
        self.parameters: dict[int, None] = {}

    def run(self, run: DeviceStageRun, k: int) -> None:
        """Run the interpreter."""
        run.interpret(run.type_id, tuple(self.parameters))

    def blocks(self, tiles: NDArray[Any]) -> NDArray[np.int64]:
        """None: no kernel runs."""
        return np.zeros(len(tiles), np.int64)


DeviceStep = KernelStep | ProductStep | InterpretedStep | OuterStep | RowSumStep | RemainderStep


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


def count_product_tiles(n_rows: Any, n_columns: int) -> Any:
    """How many tiles a product has."""
    return -(-n_rows // TILE[0]) * -(-n_columns // TILE[1])


def team_of(width: int) -> int:
    """How many threads work on a row, if so many could: up to a warp for narrow rows, else several warps."""
    if width <= WARP:
        return 1 << max(width - 1, 0).bit_length()
    if width <= 4 * WARP:
        return WARP
    return min(1 << (width // 4 - 1).bit_length(), THREADS)


def overlap(one: RowLocation, other: RowLocation) -> bool:
    """Whether two contiguous places have elements in common."""
    if (one.area, one.first) != (other.area, other.first):
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


def _find_waits(steps: list[DeviceStep]) -> list[bool]:
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
