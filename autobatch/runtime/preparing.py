"""Prepare plans for a backend with compiled steps: where the rows of every piece are, and the calls of each stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from autobatch.compiler.assignment import Storage
from autobatch.compiler.piece_table import STAGES
from autobatch.ir.program import NODE
from autobatch.jit.addresses import address_of
from autobatch.plan.plan import Plan, PlannedCell, PlannedTypes
from autobatch.runtime.piece_table import Places, Widths, make_tables
from autobatch.runtime.pieces import AllPieces, BatchList, Calls, find_alone, list_calls

LongArray = NDArray[np.int64]


class StageSteps(Protocol):
    """A compiled stage of a cell, in a number of steps.

    Attributes:
        columns: the columns of the table of pieces.
        turn_width: elements of scratch memory per piece that do not depend on its rows.
        n_before, n_per_batch, n_after: how many steps run once before all batches, per batch, and once after them.
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
        """The stage "forward" or "backward"."""


C = TypeVar("C", bound=CellStages)


class Prepared(NamedTuple):
    """A plan, prepared for a number of threads.

    Attributes:
        tables: the tables of the plan's types, in the order of the types' numbers.
        mean_rows, kept_size, scratch_size: see `autobatch.runtime.piece_table.Tables`.
        forward, backward: the calls of a stage; none in backward for inference.
    """

    tables: dict[int, LongArray]
    mean_rows: LongArray
    kept_size: int
    scratch_size: int
    forward: Calls
    backward: Calls


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
        steps = np.zeros((len(STAGES), n_types, 3), np.int64)
        self.widths = Widths(
            tables.block_ptr, tables.out_ptr, tables.block_width, types.saved_width, scratch,
            columns, turns, kept, most, steps,
        )  # fmt: skip

    def prepare(self, plan: Plan, compile_cell: Callable[[int], C], n_threads: int) -> Prepared:
        """Prepare a plan; cells that were not met before are lowered, but not yet compiled to machine code.

        Cost: O(pieces), some ten microseconds.
        """
        ends = plan.type_ptr.tolist()
        kinds = [kind for kind in range(len(ends) - 1) if ends[kind] < ends[kind + 1]]
        for kind in kinds:
            if kind not in self.cells:
                self._add(kind, compile_cell(kind))
        edges = np.zeros(self.widths.inputs.size, np.int64)
        for block, ptr in plan.segment_ptr.items():
            edges[block] = address_of(ptr)
        batches = BatchList(plan.schedule.batch_type, plan.schedule.batch_ptr)
        places = Places(batches, plan.base_ptr, plan.base, plan.mirror, plan.dest_base, plan.saved_base, edges)
        made = make_tables(places, self.widths, n_threads)
        first, columns = made.ptr.tolist(), self.widths.columns.tolist()
        tables = {kind: made.flat[first[kind] : first[kind + 1]].reshape(-1, columns[kind]) for kind in kinds}
        alone = nowhere = np.zeros(0, np.bool_)
        if n_threads > 1 and plan.adds_up:
            alone = find_alone(batches, plan.dest_base, plan.dest_ptr, plan.adds, self.widths.out_ptr)
        pieces = AllPieces(made.pieces, self.widths.most_rows, n_threads)
        forward = list_calls(batches, pieces, self.widths.steps[0], alone, False)
        backward = list_calls(batches, pieces, self.widths.steps[1], nowhere, True)
        return Prepared(tables, made.mean_rows, made.kept_size, made.scratch_size, forward, backward)

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
        width = widths.inputs[blocks] + widths.saved[blocks] + widths.scratch[:, blocks].max(0)
        widths.most_rows[kind] = self._most_rows((int(width.sum()) + int(widths.kept[kind])) * self.dtype.itemsize)
        self.cells[kind] = cell  # last, as compiling may be interrupted: only complete types are listed
