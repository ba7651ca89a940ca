"""Prepare plans for a backend with compiled steps: where the rows of every piece are, and the calls of each stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from autobatch.backends.piece_table import Places, Tables, Widths, make_tables
from autobatch.backends.pieces import (
    WHOLE,
    AllPieces,
    BatchList,
    Calls,
    OutputRows,
    find_alone,
    list_calls,
    list_weight_calls,
)
from autobatch.compiler.assignment import Storage
from autobatch.compiler.piece_table import STAGES, WEIGHTS
from autobatch.compiler.writer import split_name
from autobatch.ir.program import NODE, Instruction
from autobatch.jit.arrays import FloatArray, IntArray
from autobatch.jit.loops import compiled
from autobatch.plan.plan import Plan, PlannedCell, PlannedTypes

LongArray = NDArray[np.int64]
WORD = 8  # bytes of an int64
N_DESTINATIONS = 3  # the first addresses: of `dest_ptr`, `dest` and `adds`


class StageSteps(Protocol):
    """A compiled stage of a cell, in a number of steps.

    Attributes:
        columns: the columns of the table of pieces.
        turn_width: elements of scratch memory per piece that do not depend on its rows.
        n_before, n_per_batch, n_after: how many steps run once before all batches, per batch, and once after them; of
            the weight stage how many are compiled, none, and how many Python runs.
    """

    columns: tuple[str, ...]
    storage: Storage
    turn_width: int
    n_before: int
    n_per_batch: int
    n_after: int


class CellStages(Protocol):
    """A compiled cell."""

    cell: PlannedCell

    def stage(self, name: str) -> StageSteps:
        """The stage "forward", "backward" or "weights"."""


C = TypeVar("C", bound=CellStages)


class PlanArrays(NamedTuple):
    """The arrays of a plan that are read in the order of rows; see `autobatch.plan.plan.Plan`."""

    dest_ptr: LongArray
    dest: NDArray[Any]
    adds: NDArray[np.bool_]
    segments: LongArray
    segment_base: LongArray
    ints: IntArray
    floats: FloatArray
    block_rows: LongArray
    block_ints: IntArray
    block_floats: IntArray


@dataclass(eq=False)
class Prepared:
    """A plan, prepared for a number of threads.

    Attributes:
        kinds: the numbers of the plan's types.
        made: all tables of pieces.
        mean_rows, kept_size, scratch_size: see `autobatch.backends.piece_table.Tables`.
        calls: of each stage, by name; none in inference but those of forward.
        addresses: of `dest_ptr`, `dest` and `adds`; per type of the table; and per block of the ints, of the floats, of
            the segments, as `place_of` numbers them.
        size_classes: the classes of mean rows between which the choice of a product may differ, as bytes.
        block_rows: rows of each block, as in `autobatch.plan.plan.Plan`.
    """

    kinds: tuple[int, ...]
    made: Tables
    columns: LongArray
    calls: dict[str, Calls]
    addresses: LongArray
    size_classes: bytes
    block_rows: LongArray

    def __post_init__(self) -> None:
        self.mean_rows, self.kept_size, self.scratch_size = self.made[-3:]

    @cached_property
    def row_classes(self) -> bytes:
        """As `size_classes`, of the rows of types."""
        return bytes(n.bit_length() for n in self.block_rows.tolist())

    @cached_property
    def tables(self) -> dict[int, LongArray]:
        """The table of each type."""
        first = self.made.ptr.tolist()
        return {
            kind: self.made.flat[first[kind] : first[kind + 1]].reshape(-1, self.columns[kind]) for kind in self.kinds
        }


class PreparedTypes(Generic[C]):
    """The cells of all types, compiled with the same options, and the memory that they need.

    Args:
        most_rows: the largest number of rows of a piece, given the bytes that a row takes.

    Attributes:
        cells: the cells met in a plan, by the number of their type.
        widths: the memory that each type needs.
    """

    def __init__(self, types: PlannedTypes, dtype: np.dtype[Any], most_rows: Callable[[int], int]) -> None:
        tables, n_types = types.tables, len(types.cells)
        self.dtype, self.stages, self._most_rows = dtype, STAGES if types.training else STAGES[:1], most_rows
        self.cells: dict[int, C] = {}
        scratch = np.zeros((len(self.stages), tables.block_width.size), np.int64)
        columns, turns, kept, most = np.zeros((4, n_types), np.int64)
        steps = np.zeros((len(STAGES) + 1, n_types, 3), np.int64)
        self.widths = Widths(
            tables.block_ptr, tables.out_ptr, tables.out_block, tables.block_width, types.saved_width, scratch,
            columns, turns, kept, most, steps,
        )  # fmt: skip

    def prepare(self, plan: Plan, compile_cell: Callable[[int], C], n_threads: int) -> Prepared:
        """Prepare a plan; cells that were not met before are lowered, but not yet compiled to machine code.

        Cost: O(pieces), some ten microseconds.
        """
        ends = plan.type_ptr.tolist()
        kinds = tuple([kind for kind in range(len(ends) - 1) if ends[kind] < ends[kind + 1]])
        for kind in kinds:
            if kind not in self.cells:
                self._add(kind, compile_cell(kind))
        batches = BatchList(plan.schedule.batch_type, plan.schedule.batch_ptr)
        edges = np.empty(self.widths.inputs.size, np.int64)
        places = Places(batches, plan.base_ptr, plan.base, plan.mirror, plan.dest_base, plan.saved_base, edges)
        arrays = PlanArrays(
            plan.dest_ptr, plan.dest, plan.adds, plan.segments, plan.segment_base, plan.ints, plan.floats,
            plan.block_rows, plan.tables.block_ints, plan.tables.block_floats,
        )  # fmt: skip
        made, *calls, addresses, classes = prepare_all(places, self.widths, arrays, n_threads)
        by_name = dict(zip((*STAGES, WEIGHTS), calls, strict=True))
        return Prepared(kinds, made, self.widths.columns, by_name, addresses, classes.tobytes(), plan.block_rows)

    def _add(self, kind: int, cell: C) -> None:
        """Add a type."""
        widths = self.widths
        blocks = slice(int(widths.block_ptr[kind]), int(widths.block_ptr[kind + 1]))
        forward = cell.stage("forward")
        widths.columns[kind], widths.kept[kind] = len(forward.columns), forward.storage.persistent_width
        widths.turns[kind] = max(cell.stage(name).turn_width for name in self.stages)
        for number, name in enumerate(self.stages):
            stage = cell.stage(name)
            for domain in range(NODE, NODE + len(cell.cell.layout.input_width)):
                widths.scratch[number, blocks.start + domain - NODE] = stage.storage.batch_width[domain]
            widths.steps[number, kind] = stage.n_before, stage.n_per_batch, stage.n_after
        if len(self.stages) > 1:
            weights = cell.stage(WEIGHTS)
            widths.turns[kind] = max(widths.turns[kind], weights.turn_width)
            widths.steps[-1, kind] = weights.n_before, weights.n_after, 0
        width = widths.inputs[blocks] + widths.saved[blocks] + widths.scratch[:, blocks].max(0)
        row_bytes = (int(width.sum()) + int(widths.kept[kind])) * self.dtype.itemsize
        sources = [var.source for var in cell.cell.program.vars]
        is_whole = any(isinstance(source, Instruction) and source.op.whole for source in sources)
        widths.most_rows[kind] = WHOLE if is_whole else self._most_rows(row_bytes)
        self.cells[kind] = cell  # last, as compiling may be interrupted: only complete types are listed


@compiled
def prepare_all(
    places: Places, widths: Widths, arrays: PlanArrays, n_threads: int
) -> tuple[Tables, Calls, Calls, Calls, LongArray, NDArray[np.uint8]]:
    """Make the tables and the calls of a plan, list its addresses, and class the mean rows."""
    n_types, edges = widths.columns.size, places.edges
    for block in range(edges.size):
        edges[block] = arrays.segments.ctypes.data + WORD * arrays.segment_base[block]
    made = make_tables(places, widths, n_threads)
    adds_alone = nowhere = np.zeros(0, np.bool_)
    if n_threads > 1 and arrays.adds.any():
        outputs = OutputRows(
            widths.out_ptr, widths.out_block, places.dest_base, widths.block_ptr, arrays.segments, arrays.segment_base
        )  # fmt: skip
        adds_alone = find_alone(places.batches, outputs, arrays.dest_ptr, arrays.adds)
    pieces = AllPieces(made.pieces, widths.most_rows, n_threads)
    forward = list_calls(places.batches, pieces, widths.steps[0], adds_alone, False)
    backward = list_calls(places.batches, pieces, widths.steps[1], nowhere, True)
    weights = list_weight_calls(made.pieces, widths.steps[2], n_threads)
    addresses = np.empty(N_DESTINATIONS + n_types + 3 * edges.size, np.int64)
    addresses[0], addresses[1] = arrays.dest_ptr.ctypes.data, arrays.dest.ctypes.data
    addresses[2] = arrays.adds.ctypes.data
    ints, floats = arrays.ints.ctypes.data, arrays.floats.ctypes.data
    for kind in range(n_types):
        addresses[N_DESTINATIONS + kind] = made.flat.ctypes.data + WORD * made.ptr[kind]
    for block in range(edges.size):
        own = addresses[N_DESTINATIONS + n_types + block :: edges.size]
        own[0], own[1], own[2] = ints, floats, edges[block]
        ints += arrays.ints.itemsize * arrays.block_rows[block] * arrays.block_ints[block]
        floats += arrays.floats.itemsize * arrays.block_rows[block] * arrays.block_floats[block]
    classes = np.zeros(made.mean_rows.shape, np.uint8)
    for block in range(len(classes)):
        for moment in range(2):
            rows = made.mean_rows[block, moment]
            while rows:
                rows >>= 1
                classes[block, moment] += 1
    return made, forward, backward, weights, addresses, classes


def place_of(name: str, kind: int, block: int, n_types: int, n_blocks: int) -> int:
    """The position among the addresses of what kernels call "table", "ints", "floats_0" or "segments_0" and so on.

    Args:
        block: the number of the type's block of nodes.
    """
    if name == "table":
        return N_DESTINATIONS + kind
    what, group = split_name(name)
    return N_DESTINATIONS + n_types + ("ints", "floats", "segments").index(what) * n_blocks + block + group - NODE
