"""The arrays that the steps of a stage read and write: the memory of a run, and the values that all rows share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch._native import transpose
from autobatch.arrays import LINE
from autobatch.backends.stages import Stage, StageRun
from autobatch.backends.values import DATA, RowLocation
from autobatch.blas.product import readable
from autobatch.compiler.llvm.source import StageSources
from autobatch.compiler.lowered import Area
from autobatch.compiler.view import View
from autobatch.compiler.writer import ARRAYS, COMMON, is_step
from autobatch.devices.store import HOST
from autobatch.ir.program import NODE
from autobatch.params.sparse_rows import Gradient
from autobatch.params.stacks import parts_of

Array = NDArray[Any]


@dataclass(eq=False)
class CpuStageRun(StageRun):
    """A stage of a type in a run, for steps that Python runs.

    Attributes:
        buffer, scratch, kept: the memory of the run; `kept` is the scratch memory of tiles if no steps run for all
            rows of the type.
        gradients: in the weight stage, by `id` of the parameter or stack.
    """

    buffer: Array
    scratch: Array
    kept: Array
    gradients: Mapping[int, Gradient] = field(default_factory=dict)

    def _array(self, location: RowLocation) -> Array:
        area = location.area
        if area in DATA:
            data = self.plan.int_data if area is Area.INTS else self.plan.float_data
            return data[self.block + location.domain - NODE].reshape(-1)
        if area is Area.PERSISTENT:
            return self.kept
        return self.buffer if ARRAYS[area] == "buffer" else self.scratch

    def _strided(self, array: Array, first: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        size = array.itemsize
        return np.ndarray(shape, array.dtype, array, first * size, [stride * size for stride in strides])


class StageValues(Stage[Any]):
    """Maps the values of a stage to the arrays of a run, and computes the values that all rows share.

    Attributes:
        plan_slots: the slots for arrays of plans, by name.
        version: how often the shared values were computed; n_moved: how often arrays of them were replaced.
        run: the run that is on its way, for steps that Python runs.
        turn_width: for a row in kernels; more for steps that need more.
    """

    def __init__(self, sources: StageSources, dtype: np.dtype[Any], precision: str) -> None:
        super().__init__(sources.stage, sources.slots, HOST, dtype, precision)
        self.source = sources
        used = {"table", *(name for source in sources.kernels if source is not None for name in source.arrays)}
        own = sorted(used - {*COMMON})
        self.plan_slots = {name: self.slots[name] for name in own if _is_of_plan(name)}
        self._shared_slots = {name: self.slots[name] for name in own if not _is_of_plan(name)}
        self.version, self.n_moved, self._is_fresh = 0, 0, False
        self.run: CpuStageRun
        self.packed = np.zeros(self.storage.shared_width, dtype)
        self._matrices: dict[tuple[int, bool], Array] = {}
        self._copies: list[tuple[Array, Array]] = []
        self.turn_width = -(-self.storage.row_width * dtype.itemsize // LINE) * LINE // dtype.itemsize

    def n_strips(self, n_threads: int) -> int:
        """The strips of each gradient that as many threads compute: one where gradients of the stage overlap."""
        derivative = self.cell.derivative
        assert derivative is not None
        parts = [part for index in self.keys for part in parts_of(derivative.parameter(index))]
        return n_threads if len(parts) == len({id(part) for part in parts}) else 1

    def refresh(self) -> None:
        """Update the values that all rows share, and the copies of them that libraries read, if parameters changed."""
        if not self.shared.has_changed() and self._is_fresh:
            return
        self._is_fresh, shared = False, self.shared.arrays  # an interrupt may come
        if self.shared.update(lambda parameter: parameter.array):
            self._matrices.clear()
            self._copies.clear()
            self.n_moved += 1
        for value, first in self.storage.shared.items():
            self.packed[first : first + self.lowered.sizes[value]] = shared[value].reshape(-1)
        for matrix, copy in self._copies:
            transpose(np.ascontiguousarray(matrix.T), copy)
        self.version += 1
        self._is_fresh = True

    def shared_arrays(self) -> dict[int, Array | int]:
        """What the slots for shared values hold: arrays, or the row strides of tables in elements."""
        return {slot: self._find_shared(name) for name, slot in self._shared_slots.items()}

    def _find_shared(self, name: str) -> Array | int:
        if name == "shared":
            return self.packed
        table: Array = self.shared.arrays[int(name.rsplit("_", 1)[1])]
        return table.strides[1] // table.itemsize if is_step(name) else table

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
        """The slot of a view's array, the field where its rows begin, the bytes from there, and elements per row."""
        at = self.locate(view)
        slot, first = self.slots[ARRAYS[at.area]], self.fields.index(at.first)
        return slot, first, at.offset * self.dtype.itemsize, max(at.width, 1)


def _is_of_plan(name: str) -> bool:
    """Whether a slot is for an array of a plan; the others that types have of their own are for shared values."""
    return name == "table" or name.partition("_")[0] in ("ints", "floats", "segments")
