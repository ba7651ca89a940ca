"""Build the compiled stages of a cell on a device, and their steps: kernels, matrix products and interpreted ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from autobatch.arrays import LongArray
from autobatch.backends.compiled import DATA, CellStages, RowLocation, Stage, StageRun
from autobatch.compiler.cuda.source import ADD_OUTER, ADD_ROW_SUM, MULTIPLY, CudaKernel, CudaSource, print_stage
from autobatch.compiler.lowered import Area
from autobatch.compiler.stage import StageProgram
from autobatch.compiler.statement import Interpreted, Outer, Product, Remainder, RowSum, Scatter
from autobatch.compiler.view import View
from autobatch.compiler.writer import ARRAYS, data_name, is_step
from autobatch.devices.device import Device, DeviceGemm
from autobatch.plan.plan import PlannedCell

THREADS, WARP = 256, 32  # threads of a block and of a warp, as in `support.cuh`
SPARE = 32  # elements of shared memory before the rows of teams
TILE = 16, 64  # rows and columns of the smallest tiles of products, see `products.cuh`
SUMMED = 8  # columns of rows that a block sums, see `sweep.cuh`
TILE_BYTES = 64 << 10  # shared memory of the largest tiles of products
SHARED_SLOTS = ("matrix", "pitch", "shared", "step", "table")  # the beginnings of the names of slots for shared values
ON_HOST = -1  # in place of a function of the device: the host runs the step


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
        most_shared_bytes: the most shared memory of a block.
        waits: for each step, whether all blocks wait after it, because the next step may depend on other blocks.
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
        self._interpreted: dict[int, None] = {}  # the parameters whose gradients the interpreter computes, in one step
        self._add_steps()
        n_batched = self.n_before + self.n_per_batch
        parts = self.steps[: self.n_before], self.steps[self.n_before : n_batched], self.steps[n_batched:]
        self.waits = [wait for part in parts for wait in _find_waits(part)]

    @property
    def rows_size(self) -> int:
        """Return the elements of memory per block for rows that do not fit in shared memory."""
        return max((step.rows_size for step in self.steps), default=0)

    @cached_property
    def shared_names(self) -> set[str]:
        """Return the used slots for values that all rows share."""
        return {name for name in self.used_slots if name.partition("_")[0] in SHARED_SLOTS and name != "table"}

    def shared_slots(self) -> tuple[dict[int, int], list[Any]]:
        """Return the contents of the slots for shared values: addresses, and elements from row to row.

        Returns:
            The contents by slot; and copies that the addresses refer to, of matrices of which neither the rows nor the
            columns are contiguous.
        """
        contents, copies = dict[int, int](), dict[tuple[bool, str], Any]()
        for name in self.shared_names:
            kind, _, value = name.rpartition("_")
            array = self.shared.arrays[int(value)]
            is_matrix = kind in ("matrix", "pitch")
            array = array[0] if is_matrix else array
            is_contiguous = _pitch(array) is not None if is_matrix else kind != "shared" or array.flags.c_contiguous
            if not is_contiguous:
                if (is_matrix, value) not in copies:
                    copies[is_matrix, value] = self.device.xp.ascontiguousarray(array)
                array = copies[is_matrix, value]
            if kind == "pitch":
                content = _pitch(array) or 1
            else:
                content = int(array.strides[1]) // int(array.itemsize) if is_step(name) else self.device.address(array)
            contents[self.slots[name]] = content
        return contents, [*copies.values()]

    def slot(self, name: str) -> int:
        """Return the number of a slot, and mark it as used."""
        self.used_slots.add(name)
        return self.slots.setdefault(name, len(self.slots))

    def place(self, location: RowLocation) -> tuple[int, int, int]:
        """Return the field with the beginning of a value's rows, its offset in a row, and the elements between rows."""
        return self.fields.index(location.first), location.offset, location.width

    def put(self, numbers: Sequence[int] | LongArray) -> tuple[Any, int]:
        """Copy the numbers of a descriptor to the device; return the array, which must stay alive, and its address."""
        array = self.device.put(np.array(numbers, np.int64)) if len(numbers) else None
        return array, 0 if array is None else self.device.address(array)

    def _on_host(self, step: Outer | Scatter | Remainder) -> list[DeviceStep]:
        """Build the single step for all gradients that the interpreter computes, unless it was built before."""
        # The step reads the dict when it runs, so it also computes the gradients that later calls add.
        made, parameters = not self._interpreted, self._interpreted
        parameters.update(dict.fromkeys(step.parameters if isinstance(step, Remainder) else (step.parameter,)))
        return [DeviceStep(run=lambda run, k: run.interpret(run.type_id, tuple(parameters)))] if made else []

    def _make_steps(self, number: int) -> Sequence[DeviceStep]:
        step, kernel = self.program.steps[number], self.source.kernels[number]
        match step:
            case Product():
                return [make_product(self, step, at) for at in range(len(step.terms))]
            case Interpreted():
                return [DeviceStep(run=lambda run, k: run.run_interpreted(step, k))]
            case Outer() if self.precision == "float32":
                return [make_outer(self, step)]
            case RowSum():
                return [make_row_sum(self, step)]
            case Scatter() if self.locate(step.ids).area is Area.INTS:
                return [DeviceStep(scatter=step)]
            case Outer() | Scatter() | Remainder():
                return self._on_host(step)
        assert kernel is not None, "every kernel has a source"
        return [make_kernel(self, kernel)]


@dataclass(eq=False)
class DeviceStageRun(StageRun):
    """A stage of a type in a run on a device.

    Attributes:
        arrays: the arrays of areas, by name.
        slots: the contents of the stage's slots.
    """

    stage: DeviceStage
    arrays: dict[str, Any]
    slots: LongArray

    def slot(self, name: str) -> int:
        """Return the content of a slot: an address, or elements from row to row."""
        return int(self.slots[self.stage.slots[name]])

    def _array(self, location: RowLocation) -> Any:
        is_data = location.area in DATA
        return self.arrays[data_name(location.area, location.domain) if is_data else ARRAYS[location.area]]

    def _strided(self, array: Any, first: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        steps = [stride * array.itemsize for stride in strides]
        return self.stage.device.xp.lib.stride_tricks.as_strided(array[first:], shape, steps)

    def address(self, location: RowLocation, k: int) -> int:
        """Return the address of a value in the first row of a tile."""
        first = int(self.tiles[k][location.first]) + location.offset
        return self.stage.device.address(self._array(location)) + first * self.stage.dtype.itemsize


class BlockRule(NamedTuple):
    """The number of blocks that have work in a step: `times` for each `at_once` of `per_row` threads per row.

    Attributes:
        field: the number of the field of a tile that holds its rows; -1 for `times` blocks, whatever the tile.
    """

    field: int
    per_row: int
    at_once: int
    times: int


NO_BLOCKS = BlockRule(-1, 0, 1, 0)


@dataclass(eq=False, slots=True)
class DeviceStep:
    """A step that runs on the device or on the host.

    Attributes:
        function: the name of a generated kernel, the number of a function of `sweep.cuh`, or ON_HOST.
        descriptor: the ints that a function of the device reads, on the device.
        address: the address of the descriptor.
        team: the number of threads that work on a row.
        shared_bytes: shared memory per block.
        rows_size: elements of memory per block for rows that do not fit in shared memory.
        blocks: the rule for the number of blocks that have work; see `BlockRule` in `native/plan/device_steps.h`.
        run: runs the step on the host, given the number of a tile.
        product: the locations of the rows that a product reads and writes.
        scatter: the rows that the host adds to the gradient of a table, at ids that are data of the nodes.
    """

    function: str | int = ON_HOST
    descriptor: Any = None
    address: int = 0
    team: int = 0
    shared_bytes: int = 0
    rows_size: int = 0
    blocks: BlockRule = NO_BLOCKS
    run: Callable[[DeviceStageRun, int], None] | None = None
    product: tuple[RowLocation, RowLocation] | None = None
    scatter: Scatter | None = None


def make_kernel(stage: DeviceStage, kernel: CudaKernel) -> DeviceStep:
    """Build the step of a generated kernel."""
    fit = fit_rows(kernel, stage.storage.row_width, stage.dtype.itemsize, stage.most_shared_bytes)
    rule = BlockRule(stage.fields.index(kernel.n_rows), fit.team, THREADS, 1)
    return DeviceStep(kernel.name, *stage.put(kernel.descriptor), *fit, rule)


def make_product(stage: DeviceStage, product: Product, number: int) -> DeviceStep:
    """Build the step of a term of a product, by a function of the device or, if operands are rounded, by a library."""
    term, accumulate = product.terms[number], product.adds or number > 0
    matrix, pitch = f"matrix_{term.weight}", f"pitch_{term.weight}"
    a = stage.locate(term.rows)
    out = stage.locate(View(product.target, 0, (stage.lowered.sizes[product.target],), (1,)))
    n, inner = out.shape[0], a.shape[0]
    slots = [stage.slot(name) for name in ("table", ARRAYS[a.area], matrix, ARRAYS[out.area])]
    numbers = (
        *slots, stage.fields.index(a.rows), *stage.place(a), *stage.place(out), stage.slot(pitch), n, inner,
        term.transposed + 2 * accumulate, len(stage.fields),
    )  # fmt: skip

    rule = BlockRule(stage.fields.index(a.rows), 1, TILE[0], -(-n // TILE[1]))

    def run(run: DeviceStageRun, k: int) -> None:
        n_rows = int(run.tiles[k][a.rows])
        if n_rows and n:
            step = run.slot(pitch)
            # A negative pitch is that of a matrix that is stored by columns; see `_pitch`.
            gemm = DeviceGemm(
                stage.dtype, stage.precision, n_rows, n, inner, run.address(a, k), a.width, run.slot(matrix), abs(step),
                term.transposed != (step < 0), run.address(out, k), out.width, accumulate,
            )  # fmt: skip
            stage.device.multiply(gemm)

    function = MULTIPLY if stage.precision == "float32" else ON_HOST
    return DeviceStep(function, *stage.put(numbers), THREADS, TILE_BYTES, blocks=rule, run=run, product=(a, out))


def make_outer(stage: DeviceStage, outer: Outer) -> DeviceStep:
    """Build the step of a product over all rows of a type, added to the gradient of a parameter."""
    left, right = stage.locate(outer.left), stage.locate(outer.right)
    m, n = outer.left.size, outer.right.size
    slots = [stage.slot(name) for name in ("table", ARRAYS[left.area], ARRAYS[right.area])]
    places = stage.fields.index(left.rows), *stage.place(left), *stage.place(right)
    numbers = (*slots, *places, stage.gradient_slot(outer.parameter), m, n, len(stage.fields))
    n_blocks = max(count_product_tiles(m, n), count_product_tiles(n, m))  # the gradient may be stored as the transpose
    return DeviceStep(ADD_OUTER, *stage.put(numbers), THREADS, TILE_BYTES, blocks=NO_BLOCKS._replace(times=n_blocks))


def make_row_sum(stage: DeviceStage, total: RowSum) -> DeviceStep:
    """Build the step of a sum of all rows of a type, added to the gradients of parameters."""
    rows, size = stage.locate(total.rows), total.rows.size
    slots = stage.slot("table"), stage.slot(ARRAYS[rows.area])
    shape = stage.lowered.vars[total.parameters[0]].shape
    n = size // max(shape[0], 1) if len(shape) > 1 else size
    gradients = [stage.gradient_slot(parameter) for parameter in total.parameters]
    place = stage.fields.index(rows.rows), *stage.place(rows), size
    numbers = (*slots, *place, max(n, 1), len(gradients), len(stage.fields), *gradients)
    shared_bytes = THREADS // SUMMED * (SUMMED + 1) * stage.dtype.itemsize
    return DeviceStep(
        ADD_ROW_SUM, *stage.put(numbers), THREADS, shared_bytes,
        blocks=NO_BLOCKS._replace(times=-(-size // SUMMED)),
    )  # fmt: skip


class Fit(NamedTuple):
    """The threads and memory of a kernel; see the attributes of `DeviceStep`."""

    team: int
    shared_bytes: int
    rows_size: int


def fit_rows(kernel: CudaKernel, row_width: int, itemsize: int, most_shared_bytes: int) -> Fit:
    """Choose the threads per row: those of `team_of`, or more if the rows of a block would not fit in shared memory.

    If even a single row does not fit, blocks use other memory (`Fit.rows_size`).

    Args:
        row_width: elements of the row storage of the kernel's stage.
        itemsize: bytes of an element.
        most_shared_bytes: the most shared memory of a block on the device.
    """
    team, width, room = (
        team_of(kernel.width),
        row_width if kernel.uses_row else 0,
        most_shared_bytes // itemsize - SPARE,
    )
    # A block has a row per team, so larger teams need less memory.
    while team < THREADS and THREADS // team * width > room:
        team *= 2
    in_rows = THREADS // team * width
    if in_rows > room:
        return Fit(team, SPARE * itemsize, in_rows)
    return Fit(team, (SPARE + in_rows) * itemsize, 0)


def count_product_tiles(n_rows: int, n_columns: int) -> int:
    """Count the smallest tiles that cover the result of a product."""
    return -(-n_rows // TILE[0]) * -(-n_columns // TILE[1])


def team_of(width: int) -> int:
    """Choose the threads for a row of `width` elements, a power of two.

    Each element has a thread, up to a warp. Up to 4 * WARP elements share a warp. Beyond, a thread has about 4
    elements, and more if that would take more than `THREADS`.
    """
    if width <= WARP:
        return 1 << max(width - 1, 0).bit_length()
    if width <= 4 * WARP:
        return WARP
    return min(1 << (width // 4 - 1).bit_length(), THREADS)


def overlap(one: RowLocation, other: RowLocation) -> bool:
    """Return whether two contiguous places have common elements."""
    if (one.area, one.first) != (other.area, other.first):
        return False
    return one.offset < other.offset + other.shape[0] and other.offset < one.offset + one.shape[0]


def _pitch(matrix: Any) -> int | None:
    """Return the row stride in elements if rows are contiguous, or minus the column stride if columns are contiguous.

    Returns None if neither are, or if strides are negative or overlap. Axes of length one count as contiguous.
    """
    (rows, columns), (n_rows, n_columns) = (int(s) // int(matrix.itemsize) for s in matrix.strides), matrix.shape
    if (n_columns <= 1 or columns == 1) and (n_rows <= 1 or rows >= n_columns):
        return rows if n_rows > 1 else max(n_columns, 1)
    if (n_rows <= 1 or rows == 1) and (n_columns <= 1 or columns >= n_rows):
        return -columns if n_columns > 1 else -max(n_rows, 1)
    return None


def _find_waits(steps: list[DeviceStep]) -> list[bool]:
    """Return, for each step, whether all blocks wait after it; they do not between independent products."""
    waits: list[bool] = []
    since: list[tuple[RowLocation, RowLocation]] = []
    for step, following in zip_longest(steps, steps[1:]):
        if step.product is not None and following is not None and following.product is not None:
            # All products since the last wait may still be running in other blocks, not only the previous one.
            since.append(step.product)
            waits.append(any(_meet(following.product, other) for other in since))
        else:
            waits.append(True)
        if waits[-1]:
            since.clear()
    return waits


def _meet(one: tuple[RowLocation, RowLocation], other: tuple[RowLocation, RowLocation]) -> bool:
    """Return whether one product writes an operand or the result of the other.

    Equal results do not count: the same blocks compute the same tiles of both products, one after the other.
    """
    (a, out), (other_a, other_out) = one, other
    if overlap(out, other_a) or overlap(other_out, a):
        return True
    return out != other_out and overlap(out, other_out)
