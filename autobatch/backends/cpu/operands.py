"""Provide the operands of the steps of a stage: arrays of a run, and values and matrices that all rows share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np

from autobatch._native import pack, transpose
from autobatch.arrays import LINE, Array, address_of, aligned, rounded
from autobatch.backends.compiled import DATA, RowLocation, Stage, StageRun
from autobatch.backends.cpu.step import StepTemplate
from autobatch.blas.packed import panel_words
from autobatch.blas.provider import find_step, readable
from autobatch.compiler.llvm.source import StageSources
from autobatch.compiler.lowered import Area
from autobatch.compiler.statement import Term
from autobatch.compiler.view import View
from autobatch.compiler.writer import ARRAYS, COMMON, is_step, letter_of
from autobatch.devices.store import HOST
from autobatch.errors import GraphError
from autobatch.ir.program import NODE
from autobatch.params.sparse_rows import Gradient
from autobatch.params.stacks import parts_of

ARRAY = attrgetter("array")


@dataclass(eq=False)
class CpuStageRun(StageRun):
    """A stage of a type in a run, for steps that Python runs.

    Attributes:
        buffer, scratch, kept: the memory of values, of a tile, and of persistent values; if no steps run for all rows
            of the type, `kept` is `scratch`.
        gradients: in the weight stage, the gradients by `id` of the parameter or stack.
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


class StageValues(Stage[StepTemplate]):
    """A stage that maps its values to the arrays of a run, and computes the values that all rows share.

    Attributes:
        plan_slots: the slots for arrays of plans, by name.
        version: the number of times that the shared values were computed.
        n_moved: the number of times that arrays of shared values were replaced.
        run: the current run, for steps that Python runs.
        packed: the shared values that kernels read, in one array.
        scratch_width: elements of scratch memory per tile: a row for kernels, and room that other steps add.
    """

    def __init__(self, sources: StageSources, dtype: np.dtype[Any], precision: str) -> None:
        super().__init__(sources.stage, sources.slots, HOST, dtype, precision)
        self.source = sources
        used = {"table", *(name for source in sources.kernels if source is not None for name in source.arrays)}
        names = sorted(used - {*COMMON})
        self.plan_slots = {name: self.slots[name] for name in names if _is_of_plan(name)}
        self._shared_slots = {name: self.slots[name] for name in names if not _is_of_plan(name)}
        self.version, self.n_moved, self._is_fresh = 0, 0, False
        self.run: CpuStageRun
        self.packed = np.zeros(self.storage.shared_width, dtype)
        self._matrices: dict[tuple[int, bool, bool, bool], SharedMatrix] = {}
        self.scratch_width = -(-self.storage.row_width * dtype.itemsize // LINE) * LINE // dtype.itemsize

    def n_strips(self, n_threads: int) -> int:
        """Return the number of strips (parts that threads compute) of each gradient: one per thread; 1 if gradients
        overlap.
        """
        derivative = self.cell.derivative
        assert derivative is not None
        parts = [part for index in self.keys for part in parts_of(derivative.parameter(index))]
        return n_threads if len(parts) == len({id(part) for part in parts}) else 1

    def refresh(self) -> None:
        """Update the values that all rows share if parameters have changed."""
        # `has_changed` must be called even if the values are not fresh: it notes the versions that `update` stores.
        if not self.shared.has_changed() and self._is_fresh:
            return
        self._is_fresh, shared = False, self.shared.arrays  # an interrupt may break off the update
        if self.shared.update(ARRAY):
            self.n_moved += 1
        for value, first in self.storage.shared.items():
            self.packed[first : first + self.lowered.sizes[value]] = shared[value].reshape(-1)
        self.version += 1
        self._is_fresh = True

    def shared_arrays(self) -> dict[int, Array | int]:
        """Return the contents of the slots for shared values: arrays, or row strides of tables in elements."""
        return {slot: self._find_shared(name) for name, slot in self._shared_slots.items()}

    def _find_shared(self, name: str) -> Array | int:
        if name == "shared":
            return self.packed
        table: Array = self.shared.arrays[int(name.rsplit("_", 1)[1])]
        if not table[0, :1].flags.c_contiguous:
            raise GraphError(
                f"rows of a table of shape {table.shape[1:]} must be contiguous to be looked up, but it is a view of a "
                f"tensor with another layout, such as its transpose; look up rows of a copy, x.contiguous(), or give "
                f"the table this layout and make the other tensor the view."
            )
        return table.strides[1] // table.itemsize if is_step(name) else table

    def matrix(self, term: Term, is_packed: bool, by_bf16: bool) -> SharedMatrix:
        """Return the matrix of a term, packed or rounded as requested; terms that need the same form share it."""
        key = term.weight, term.transposed, is_packed, by_bf16
        if key not in self._matrices:
            self._matrices[key] = SharedMatrix(self, term, is_packed, by_bf16)
        return self._matrices[key]

    def operand(self, view: View) -> tuple[int, int, int, int]:
        """Return the place of the rows of a view; see `OPERAND`."""
        at = self.locate(view)
        slot, first = self.slots[ARRAYS[at.area]], self.fields.index(at.first)
        return slot, first, at.offset * self.dtype.itemsize, max(at.width, 1)

    def describe(self, dtype: np.dtype[np.void], domain: int) -> Array:
        """Build a descriptor of this type for a step over the rows of a domain."""
        descriptor = np.zeros((), dtype)
        descriptor["n_fields"], descriptor["itemsize"] = len(self.fields), self.dtype.itemsize
        descriptor["rows"] = self.fields.index(f"rows_{letter_of(domain)}")
        return descriptor


class SharedMatrix:
    """A matrix that all rows share, in the form that a product reads.

    Args:
        is_packed: whether to pack it for a native product, or to keep it in rows for a library.
        by_bf16: whether to round it to bf16 when it is packed. If not, precision "bf16" rounds it to bf16 numbers that
            are stored as float32.

    Attributes:
        array: the matrix (inner, n), or its packed words.
    """

    def __init__(self, stage: StageValues, term: Term, is_packed: bool, by_bf16: bool) -> None:
        self._stage, self._term, self._is_packed, self._by_bf16 = stage, term, is_packed, by_bf16
        self._is_rounded = stage.precision == "bf16" and not by_bf16
        self._version = self._n_moved = -1
        self._source: Array  # a view of the shared value
        self._copy: Array | None = None
        self._place = (False, 0, 0)
        self.array: Array = np.empty((0, 0), np.uint32)

    def update(self) -> tuple[bool, int, int]:
        """Update the matrix if parameters have changed; return its location, the same tuple until it moves.

        Returns:
            Whether the matrix is the transpose of contiguous rows; its address; the elements from one row to the next.
        """
        stage = self._stage
        if self._version != stage.version:
            if self._n_moved != stage.n_moved:
                self._find()
                self._n_moved = stage.n_moved
            self._read()
            self._version = stage.version  # last, because an interrupt may break off the update
        return self._place

    def _find(self) -> None:
        """Find the matrix, and allocate a copy if one is needed.

        For libraries, a transpose is copied to contiguous rows, because products with these are up to 3 times as fast.
        """
        whole: Array = self._stage.shared.arrays[self._term.weight][0]
        self._source = whole.T if self._term.transposed else whole
        # Packing reads rows or columns, so it needs a copy only of a matrix that has neither contiguous. Rounding
        # copies anyway.
        if self._term.transposed and not self._is_packed:
            is_right = self._source.flags.c_contiguous
        else:
            is_right = readable(whole) is whole
        self._copy = None if is_right or self._is_rounded else np.empty(self._source.shape, whole.dtype)
        if self._is_packed:
            inner, n = self._source.shape
            n_words = panel_words(inner, n, self._by_bf16)
            self.array = self.array if self.array.size == n_words else aligned(n_words, np.dtype(np.uint32))
            self._place = False, address_of(self.array), 0

    def _read(self) -> None:
        """Copy, round or pack the current matrix."""
        matrix = self._source
        if self._copy is not None:
            transpose(np.ascontiguousarray(matrix.T), self._copy)
            matrix = self._copy
        elif self._is_rounded:
            matrix = rounded(matrix)
        if self._is_packed:
            pack(matrix, self.array, self._by_bf16)
        # A copy that is only filled again has not moved, so the place stays the same tuple.
        elif matrix is not self.array:
            self.array = matrix
            is_flipped, step = find_step("a shared matrix", matrix)
            self._place = is_flipped, address_of(matrix), step


def _is_of_plan(name: str) -> bool:
    """Return whether a slot is for an array of a plan; the others, except `COMMON`, are for shared values."""
    return name == "table" or name.partition("_")[0] in ("ints", "floats", "segments")
