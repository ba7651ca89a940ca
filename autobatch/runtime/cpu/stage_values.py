"""The arrays that the steps of a stage read and write: the memory of a run, and the values that all rows share."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.blas.choosing import Chooser
from autobatch.blas.product import readable
from autobatch.compiler.fusion import Kernel
from autobatch.compiler.lowered import Area, Home
from autobatch.compiler.numba.sources import StageSources
from autobatch.compiler.numba.support import transpose
from autobatch.compiler.piece_table import column_of, letter_of
from autobatch.compiler.stage import StageProgram
from autobatch.compiler.statement import Interpreted, Product
from autobatch.compiler.view import View
from autobatch.compiler.writer import ARRAYS, COMMON, is_step
from autobatch.ir.program import NODE, SHARED, Constant, Instruction, Weight
from autobatch.jit.addresses import LINE
from autobatch.ops.define import run_kernel
from autobatch.ops.randomness import Randomness
from autobatch.params.store import HOST
from autobatch.plan.plan import Batch, Plan
from autobatch.runtime.interpreter.frame import RowRange, constant_row

Array = NDArray[Any]


class Arrays(NamedTuple):
    """The first arrays of the memory of all stages, and their addresses by thread: each has its own scratch memory."""

    arrays: tuple[Array, ...]
    addresses: Array


class StageRun(NamedTuple):
    """The arrays and numbers of a run that a stage of a type reads.

    Attributes:
        common: buffer, scratch memory of pieces and of all rows, and destinations: the same for all types.
        place: the name of the type of destinations.
        table: see `autobatch.compiler.piece_table`.
        mean_rows: mean rows of pieces, per domain; see `autobatch.runtime.piece_table`.
        randomness: the randomness of the mini-batch.
    """

    plan: Plan
    kind: int
    common: Arrays
    place: str
    table: Array
    mean_rows: Array
    chooser: Chooser
    randomness: Randomness

    def rows(self, k: int, n_column: int) -> RowRange:
        """The rows of a piece."""
        start = int(self.table[k, 0])
        return RowRange(self.plan, Batch(self.kind, start, start + int(self.table[k, n_column]), ()), HOST)


class StageValues:
    """Maps the values of a stage to the arrays of a run, and computes the values that all rows share.

    Attributes:
        arrays: the arrays of the memory's slots, for kernels that run as plain Python.
        turn_width: elements of scratch memory per piece that do not depend on its rows: for a row in kernels, then for
            steps.
    """

    def __init__(self, sources: StageSources, dtype: np.dtype[Any], jitted: bool, precision: str) -> None:
        self.dtype, self.jitted, self.precision, stage = dtype, jitted, precision, sources.stage
        self.cell, self.lowered, self.storage, self.columns = stage.cell, stage.lowered, stage.storage, stage.columns
        self.slots = sources.slots
        used = {"table", *(name for source in sources.kernels if source is not None for name in source.arrays)}
        self._own_slots = sorted(used - {*COMMON})
        self.arrays: list[Array | int] = []
        self.run: StageRun
        self._find_shared(stage)
        self.turn_width = -(-self.storage.row_width * dtype.itemsize // LINE) * LINE // dtype.itemsize

    @property
    def _runs_steps_of_all_rows(self) -> bool:
        """Whether hoisted steps run over all rows; if not, persistent values are in the scratch memory of pieces."""
        return bool(self.run.mean_rows[0, 1])

    def _find(self, name: str) -> Array | int:
        """The array of a slot, or its number."""
        plan, kind = self.run.plan, self.run.kind
        match name:
            case "shared":
                return self.packed
            case "table":
                return self.run.table
            case "ints":
                return plan.int_data[kind]
            case "floats":
                return plan.float_data[kind]
        family, number = name.rsplit("_", 1)
        if family == "segments":
            return plan.segment_ptr[plan.first_block(kind) + 1 + int(number)]
        table: Array = self.shared[int(number)]
        return table.strides[1] // table.itemsize if is_step(name) else table

    def _find_shared(self, stage: StageProgram) -> None:
        """Find the shared values that steps read, and what these are computed from."""
        vars = self.lowered.vars
        read = {*self.storage.shared, *_looked_up(stage), *_read_by_steps(stage)}
        for index in reversed(self.lowered.shared):
            if index in read:
                read.update(_instruction(vars[index].source).args)
        self._computed = [index for index in self.lowered.shared if index in read]
        self._weights = [(i, source) for i in sorted(read) if isinstance(source := vars[i].source, Weight)]
        self._data: list[Array] | None = None
        self.packed = np.zeros(self.storage.shared_width, self.dtype)
        self.shared: dict[int, Any] = {
            i: constant_row(source.data, self.dtype)
            for i in sorted(read)
            if isinstance(source := vars[i].source, Constant)
        }
        self._matrices: dict[tuple[int, bool], Array] = {}
        self._copies: list[tuple[Array, Array]] = []

    def _compute_shared(self) -> None:
        """Update the values that all rows share: parameters, and values computed from them; `(1, *shape)`."""
        vars, shared = self.lowered.vars, self.shared
        data = [source.parameter.data for _, source in self._weights]
        moved = self._data is None or any(a is not b for a, b in zip(data, self._data, strict=True))
        if moved:
            self._matrices.clear()
            self._copies.clear()
            shared.update((i, array[None]) for (i, _), array in zip(self._weights, data, strict=True))
        for index in self._computed:
            source = _instruction(vars[index].source)
            args = [shared[arg] for arg in source.args]
            if not source.op.view:
                if moved:
                    shared[index] = np.empty((1, *vars[index].shape), self.dtype)
                run_kernel(source.op, np, args, shared[index], source.static)
            elif moved:
                shared[index] = source.op.kernel(np, args[0], **source.static)
        for value, first in self.storage.shared.items():
            self.packed[first : first + self.lowered.sizes[value]] = shared[value].reshape(-1)
        for matrix, copy in self._copies:
            transpose(np.ascontiguousarray(matrix.T), copy)
        self._data = data

    def matrix(self, value: int, transposed: bool) -> Array:
        """A shared matrix or its transpose in a form that libraries read; the same array until a parameter moves.

        A transpose is copied to contiguous rows, because libraries multiply by these up to 3 times faster. Copies, of
        transposes or of views that libraries refuse, are made again in every run.
        """
        if (value, transposed) not in self._matrices:
            matrix: Array = self.shared[value][0].T if transposed else self.shared[value][0]
            is_right = matrix.flags.c_contiguous if transposed else readable(matrix) is matrix
            if not is_right:
                copy = np.empty(matrix.shape, matrix.dtype)
                self._copies.append((matrix, copy))
                transpose(np.ascontiguousarray(matrix.T), copy)
                matrix = copy
            self._matrices[value, transposed] = matrix
        return self._matrices[value, transposed]

    def place(self, view: View) -> tuple[int, int, int, int]:
        """The slot of a view's array, the table column where rows begin, the bytes from there, and elements per row."""
        home, view = self.storage.home(view)
        size = self.dtype.itemsize
        column = self.columns.index(self._column(home))
        return self.slots[ARRAYS[home.area]], column, (home.column + view.offset) * size, max(self._width(home), 1)

    def view(self, view: View, k: int) -> Array:
        """The elements of a view in all rows of a piece: `(rows, *shape)`."""
        home, view = self.storage.home(view)
        array, width, table = self._array(home), self._width(home), self.run.table
        column = self._column(home)
        first = int(table[k, self.columns.index(column)])
        first = first * width if column == "start" else first
        n_rows = int(table[k, self.columns.index(f"rows_{letter_of(home.domain)}")])
        size = array.itemsize
        offset = (first + home.column + view.offset) * size if n_rows and all(view.shape) else 0
        strides = (width * size, *(stride * size for stride in view.strides))
        found: Array = np.ndarray((n_rows, *view.shape), array.dtype, array, offset, strides)
        return found

    def _array(self, home: Home) -> Array:
        plan, (buffer, scratch, kept, *_) = self.run.plan, self.run.common.arrays
        if home.area in (Area.INTS, Area.FLOATS):
            return (plan.int_data if home.area is Area.INTS else plan.float_data)[self.run.kind].reshape(-1)
        if home.area is Area.PERSISTENT and self._runs_steps_of_all_rows:
            return kept
        return buffer if ARRAYS[home.area] == "buffer" else scratch

    def _column(self, home: Home) -> str:
        """The column of the table that holds where the rows of an area begin."""
        if home.area in (Area.INTS, Area.FLOATS):
            return "start"
        return column_of(home, self.lowered.stage)

    def _width(self, home: Home) -> int:
        """Elements from one row of an area to the next."""
        if home.area in (Area.INTS, Area.FLOATS):
            return self.cell.program.words(home.area is Area.FLOATS)
        if home.area in (Area.BATCH, Area.PERSISTENT):
            is_batch = home.area is Area.BATCH
            return self.storage.batch_width[home.domain] if is_batch else self.storage.persistent_width
        layout = self.cell.layout
        return (layout.saved_width if home.area is Area.SAVED else layout.input_width)[home.domain - NODE]


def flat(array: Array) -> Array:
    """The memory from the first to the last element of an array, as a flat array for compiled code."""
    reach = sum((size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True))
    n = 1 + reach // array.itemsize if array.size else 0
    return np.lib.stride_tricks.as_strided(array, (n,), (array.itemsize,))


def _read_by_steps(stage: StageProgram) -> set[int]:
    """The shared values that products and interpreted ops read; kernels read packed copies."""
    found: set[int] = set()
    for step in stage.steps:
        match step:
            case Product(terms=terms):
                found.update(term.weight for term in terms)
            case Interpreted(args=args):
                found.update(arg for arg in args if stage.lowered.domains[arg] == SHARED)
    return found


def _looked_up(stage: StageProgram) -> set[int]:
    """The parameters whose rows kernels look up."""
    kernels = [step for step in stage.steps if isinstance(step, Kernel)]
    loops = [loop for kernel in kernels for block in kernel.blocks for loop in block.loops]
    read = {operand.view.value for loop in loops for operand in loop.operands if operand.moved is not None}
    return {value for value in read if stage.lowered.domains[value] == SHARED}


def _instruction(source: object) -> Instruction:
    assert isinstance(source, Instruction), "shared values that are no parameters are computed"
    return source
