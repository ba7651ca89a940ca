"""The arrays that the steps of a stage read and write: the memory of a run, and the values that all rows share."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.blas.choosing import Chooser
from autobatch.blas.product import readable
from autobatch.compiler.lowered import Area
from autobatch.compiler.numba.sources import StageSources
from autobatch.compiler.numba.support import transpose
from autobatch.compiler.view import View
from autobatch.compiler.writer import ARRAYS, COMMON, is_step
from autobatch.devices.store import HOST
from autobatch.jit.addresses import LINE
from autobatch.ops.randomness import Randomness
from autobatch.plan.plan import Batch, Plan
from autobatch.runtime.interpreter.frame import RowRange
from autobatch.runtime.places import DATA, StagePlaces
from autobatch.runtime.shared_values import SharedValues

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
        self.packed = np.zeros(self.storage.shared_width, dtype)
        self.shared, self._places = SharedValues(stage, HOST, dtype), StagePlaces(stage)
        self._matrices: dict[tuple[int, bool], Array] = {}
        self._copies: list[tuple[Array, Array]] = []
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
        table: Array = self.shared.arrays[int(number)]
        return table.strides[1] // table.itemsize if is_step(name) else table

    def _compute_shared(self) -> None:
        """Update the values that all rows share, and the copies of them that kernels and libraries read."""
        shared = self.shared.arrays
        if self.shared.update(lambda parameter: parameter.data):
            self._matrices.clear()
            self._copies.clear()
        for value, first in self.storage.shared.items():
            self.packed[first : first + self.lowered.sizes[value]] = shared[value].reshape(-1)
        for matrix, copy in self._copies:
            transpose(np.ascontiguousarray(matrix.T), copy)

    def matrix(self, value: int, transposed: bool) -> Array:
        """A shared matrix or its transpose in a form that libraries read; the same array until a parameter moves.

        A transpose is copied to contiguous rows, because libraries multiply by these up to 3 times faster. Copies, of
        transposes or of views that libraries refuse, are made again in every run.
        """
        if (value, transposed) not in self._matrices:
            whole = self.shared.arrays[value][0]
            matrix: Array = whole.T if transposed else whole
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
        place = self._places.place(view)
        return self.slots[ARRAYS[place.area]], place.column, place.offset * self.dtype.itemsize, max(place.width, 1)

    def view(self, view: View, k: int) -> Array:
        """The elements of a view in all rows of a piece: `(rows, *shape)`."""
        place, table = self._places.place(view), self.run.table
        array, size, width = self._array(place.area), self._array(place.area).itemsize, place.width
        first = int(table[k, place.column]) * (width if place.area in DATA else 1)
        n_rows = int(table[k, place.rows])
        offset = (first + place.offset) * size if n_rows and all(place.shape) else 0
        strides = (width * size, *(stride * size for stride in place.strides))
        found: Array = np.ndarray((n_rows, *place.shape), array.dtype, array, offset, strides)
        return found

    def _array(self, area: Area) -> Array:
        plan, (buffer, scratch, kept, *_) = self.run.plan, self.run.common.arrays
        if area in DATA:
            return (plan.int_data if area is Area.INTS else plan.float_data)[self.run.kind].reshape(-1)
        if area is Area.PERSISTENT and self._runs_steps_of_all_rows:
            return kept
        return buffer if ARRAYS[area] == "buffer" else scratch


def flat(array: Array) -> Array:
    """The memory from the first to the last element of an array, as a flat array for compiled code."""
    reach = sum((size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True))
    n = 1 + reach // array.itemsize if array.size else 0
    return np.lib.stride_tricks.as_strided(array, (n,), (array.itemsize,))
