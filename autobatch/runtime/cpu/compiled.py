"""The compiled types of a plan: the memory that their cells need, and their steps, bound to one run at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.compiler.piece_table import STAGES
from autobatch.compiler.writer import COMMON
from autobatch.ir.program import NODE
from autobatch.jit.addresses import address_of
from autobatch.plan.plan import Plan, PlannedTypes
from autobatch.runtime.cpu.piece_table import Places, Widths, make_tables
from autobatch.runtime.cpu.pieces import AllPieces, BatchList, Calls, find_alone, list_calls, most_rows
from autobatch.runtime.cpu.stage_values import Arrays, StageRun
from autobatch.runtime.cpu.stages import CompiledCell, CompiledStage
from autobatch.runtime.cpu.steps import make_calls
from autobatch.runtime.cpu.team import Sweeps

LongArray = NDArray[np.int64]
SCRATCH = COMMON.index("scratch")
MOST_BOUND = 32  # sets of types whose bound stages are cached; making one takes some microseconds


class Prepared(NamedTuple):
    """A plan, prepared for a number of threads.

    Attributes:
        tables: the tables of the plan's types, in the order of the types' numbers.
        mean_rows, kept_size, scratch_size: see `autobatch.runtime.cpu.piece_table.Tables`.
        forward, backward: the calls of a stage; none in backward for inference.
    """

    tables: dict[int, LongArray]
    mean_rows: LongArray
    kept_size: int
    scratch_size: int
    forward: Calls
    backward: Calls


class CompiledTypes:
    """The cells of all types, compiled with the same options.

    Attributes:
        cells: the cells met in a plan, by the number of their type.
        widths: the memory that each type needs.
    """

    def __init__(self, types: PlannedTypes, dtype: np.dtype[Any]) -> None:
        tables, n_types = types.tables, len(types.cells)
        self.dtype, self.stages = dtype, STAGES if types.training else STAGES[:1]
        self.cells: dict[int, CompiledCell] = {}
        scratch = np.zeros((len(self.stages), tables.block_width.size), np.int64)
        columns, turns, kept, most = np.zeros((4, n_types), np.int64)
        steps = np.zeros((len(STAGES), n_types, 3), np.int64)
        self.widths = Widths(
            tables.block_ptr, tables.out_ptr, tables.block_width, types.saved_width, scratch,
            columns, turns, kept, most, steps,
        )  # fmt: skip
        self._bound: dict[tuple[Any, ...], BoundStages] = {}

    def prepare(self, plan: Plan, compile_cell: Callable[[int], CompiledCell], n_threads: int) -> Prepared:
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

    def _add(self, kind: int, cell: CompiledCell) -> None:
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
        widths.most_rows[kind] = most_rows((int(width.sum()) + int(widths.kept[kind])) * self.dtype.itemsize)
        self.cells[kind] = cell  # last, as compiling may be interrupted: only complete types are listed

    def bound(self, name: str, kinds: Sequence[int]) -> BoundStages:
        """The bound stages of some types; the most recently used sets of types are cached."""
        key = name, *kinds
        found = self._bound.pop(key, None)
        if found is None:
            found = BoundStages(name, [self.cells[kind].stage(name) for kind in kinds])
            if len(self._bound) == MOST_BOUND:
                del self._bound[next(iter(self._bound))]
        self._bound[key] = found
        return found


class BoundStages:
    """A stage of several types, bound to one run at a time: the steps of all types, and their calls in order."""

    def __init__(self, name: str, stages: list[CompiledStage]) -> None:
        self.name, self.stages = name, stages
        self.steps = [step for stage in stages for step in stage.steps]
        self._common = np.zeros((1, len(COMMON)), np.int64)
        self._addresses = np.empty((1, len(self.steps), 3), np.int64)
        self._calls: Calls
        self._sweeps = Sweeps()

    def place(self, arrays: tuple[Any, ...], scratch: Any) -> Arrays:
        """Store the addresses of the arrays that all stages read, per thread: each has its own row of scratch."""
        if len(self._common) != len(scratch):
            self._common = np.zeros((len(scratch), len(COMMON)), np.int64)
        found = [address_of(array) for array in arrays]
        for addresses, row in zip(self._common, scratch, strict=True):
            found[SCRATCH] = address_of(row)
            for number, address in enumerate(found):
                addresses[number] = address
        return Arrays(arrays, self._common)

    def bind(self, runs: Iterable[StageRun], calls: Calls) -> None:
        """Take the arrays of a run for each stage, and the calls."""
        for stage, run in zip(self.stages, runs, strict=True):
            stage.bind(run)
        found = [stage.addresses for stage in self.stages]
        if len(self._addresses) != len(found[0]):
            self._addresses = np.empty((len(found[0]), len(self.steps), 3), np.int64)
        np.concatenate(found, axis=1, out=self._addresses)
        self._calls = calls
        self._is_shared = len(self._addresses) > 1 and bool(self._addresses[0, :, 0].all())

    def release(self) -> None:
        """Drop the arrays of the run."""
        for stage in self.stages:
            stage.release()

    @property
    def n_batches(self) -> int:
        """The number of batches of the run."""
        return len(self._calls.ptr) - 3

    def call(self, first: int, last: int) -> int:
        """Make the calls of parts first:last and return their number; part 0 is the prologue, see `Calls`."""
        calls, piece_ptr, ptr, _ = self._calls
        start, end = int(piece_ptr[ptr[first]]), int(piece_ptr[ptr[last]])
        if self._is_shared and ptr[last] - ptr[first] > last - first:
            self._sweeps.run(self._addresses, self._calls, first, last)
        else:
            make_calls(self._addresses[0], self.steps, calls, start, end)
        return end - start
