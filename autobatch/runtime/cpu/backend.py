"""The cpu backend: cells compiled into a few steps, on the same buffer and plan as the reference backend.

Batches are cut in pieces. Where the rows of each are, and what is called for it, is worked out once per plan. A step is
then a call with the number of a piece: a generated kernel, a matrix product, or an op as the reference backend runs it;
one compiled loop makes all calls, stopping only for ops of the last kind, or several threads do, if there are none.
What cells compute from parameters alone runs once per run. The gradient of a weight is one product over all rows of a
type, and that of a bias one pass over them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from autobatch.blas.choosing import BY_SIZE, Chooser
from autobatch.blas.product import readable
from autobatch.blas.threads import limit_threads, threads_now
from autobatch.compiler.numba.loading import is_jitted
from autobatch.compiler.numba.support import add_rows
from autobatch.compiler.numba.writer import COMMON
from autobatch.ir.passes.autodiff import ROW_SUM
from autobatch.ir.precision import rounded_args
from autobatch.ir.program import Instruction
from autobatch.jit.addresses import address_of, aligned
from autobatch.ops.randomness import Randomness
from autobatch.params.rows import Gradient
from autobatch.plan.plan import Batch, Plan, PlannedTypes
from autobatch.runtime.activity import Activity
from autobatch.runtime.backend import Counts
from autobatch.runtime.cpu.pieces import Calls
from autobatch.runtime.cpu.rounding import Outers, add_outer
from autobatch.runtime.cpu.stage_memory import Arrays, Run
from autobatch.runtime.cpu.stages import CompiledCell, CompiledStage
from autobatch.runtime.cpu.steps import make_calls
from autobatch.runtime.cpu.table import Prepared, Shapes
from autobatch.runtime.cpu.team import Sweeps
from autobatch.runtime.cpu.weights import WeightStage
from autobatch.runtime.interpreter.frame import Frame, RowRange
from autobatch.runtime.interpreter.reference import Reference

Array = NDArray[Any]
SCRATCH = COMMON.index("scratch")
MOST_BOUND = 32  # sets of types whose steps are kept together; making them takes some microseconds


class Bound:
    """A stage of several types, bound to a run: the steps of all, and the calls of these in order."""

    def __init__(self, name: str, stages: list[CompiledStage]) -> None:
        self.name, self.stages = name, stages
        self.steps = [step for stage in stages for step in stage.steps]
        self._addresses = np.empty((1, len(self.steps), 3), np.int64)
        self._calls: Calls
        self._sweeps = Sweeps()

    def bind(self, runs: Iterable[Run], calls: Calls) -> None:
        """Take the arrays of a run, for each stage, and what is called in it."""
        for stage, run in zip(self.stages, runs, strict=True):
            stage.bind(run)
        found = [stage.addresses for stage in self.stages]
        if len(self._addresses) != len(found[0]):
            self._addresses = np.empty((len(found[0]), len(self.steps), 3), np.int64)
        np.concatenate(found, axis=1, out=self._addresses)
        self._calls = calls
        self._is_shared = len(self._addresses) > 1 and bool(self._addresses[0, :, 0].all())

    @property
    def n_batches(self) -> int:
        """Batches of the run."""
        return len(self._calls.ptr) - 3

    def call(self, first: int, last: int) -> int:
        """Make the calls of some parts, and say how many: 0 is what comes before all batches, which follow."""
        calls, piece_ptr, ptr, _ = self._calls
        start, end = int(piece_ptr[ptr[first]]), int(piece_ptr[ptr[last]])
        if self._is_shared and ptr[last] - ptr[first] > last - first:
            self._sweeps.run(self._addresses, self._calls, first, last)
        else:
            make_calls(self._addresses[0], self.steps, calls, start, end)
        return end - start


class Cpu(Reference):
    """Runs plans with compiled cells, one at a time: batched functions take turns, see `autobatch.system.turns`.

    Args:
        poison: fill the buffer with NaN before each run, so that a read of what was never written shows.
        jitted: compile the generated kernels; by default unless `AUTOBATCH_JIT` is 0.
        provider: the name of the library that multiplies matrices; by default the fastest for each size.
    """

    name = "cpu"

    def __init__(self, poison: bool = False, jitted: bool | None = None, provider: str | None = None) -> None:
        super().__init__(poison)
        self.jitted = is_jitted() if jitted is None else jitted
        self.scratch = self.kept = np.empty((1, 0), np.float32)
        self.n_threads = 1  # of the run
        self._addresses = np.zeros((1, len(COMMON)), np.int64)
        self.chooser = Chooser(provider)
        self._compiled: dict[tuple[int, np.dtype[Any], str], CompiledCell] = {}
        self._shapes: WeakKeyDictionary[PlannedTypes, dict[tuple[np.dtype[Any], str], Shapes]] = WeakKeyDictionary()
        self._plans: WeakKeyDictionary[Plan, Prepared] = WeakKeyDictionary()
        self._bound: dict[tuple[Any, ...], Bound] = {}
        self._weight_stages: dict[tuple[int, np.dtype[Any]], WeightStage] = {}
        self._outers = Outers()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles have buffers of their own, and compile anew."""
        return type(self), (self.poison, self.jitted, None if self.chooser.name == BY_SIZE else self.chooser.name)

    def forward(
        self,
        plan: Plan,
        cells: PlannedTypes,
        dtype: np.dtype[Any],
        random: Randomness,
        max_bytes: int | None = None,
    ) -> list[Array]:
        """Compute all values, with the threads that matrix products may have; see `Backend`."""
        self.n_threads = threads_now() if self.jitted else 1
        return super().forward(plan, cells, dtype, random, max_bytes)

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Where there are several threads, each multiplies alone."""
        with limit_threads(1) if self.n_threads > 1 else nullcontext(), super()._computing():
            yield

    # Memory.

    def scratch_size(
        self, plan: Plan, cells: PlannedTypes, dtype: np.dtype[Any], precision: str, n_threads: int
    ) -> int:
        """Elements of scratch memory: what pieces use by turns, for each thread, and rows that are kept for all."""
        self.plan, self.cells, self.dtype, self.precision = plan, cells, dtype, precision
        self.n_threads = n_threads if self.jitted else 1
        prepared = self._prepared()
        return self.n_threads * prepared.scratch_size + prepared.kept_size

    def counts(self) -> Counts:
        """What was run since `forward` was last called."""
        return super().counts()._replace(buffer_bytes=sum(a.nbytes for a in (self._buffer, self.scratch, self.kept)))

    def _reserve(self, size: int, dtype: np.dtype[Any], max_bytes: int | None) -> None:
        """Have room for `size` elements, and scratch memory for the plan, all within the limit."""
        prepared = self._prepared()
        limit = None if max_bytes is None else max_bytes // dtype.itemsize
        turns, kept = self.n_threads * prepared.scratch_size, prepared.kept_size
        if limit is not None and size + max(self.scratch.size, turns) + max(self.kept.size, kept) > limit:
            self.scratch = self.kept = np.empty((1, 0), dtype)  # what is left from a larger mini-batch goes first
        needed = max(self.scratch.size, turns) + max(self.kept.size, kept)
        super()._reserve(size, dtype, None if limit is None else (limit - needed) * dtype.itemsize)
        self.scratch = self._reserved(self.scratch, self.n_threads, prepared.scratch_size)
        self.kept = self._reserved(self.kept, 1, prepared.kept_size)

    # Batches.

    def _forward_batches(self) -> None:
        bound = self._bind("forward")
        if self.poison:
            self.scratch.fill(np.nan)
            self.kept.fill(np.nan)
        self._sweep(bound, None)

    def _backward_batches(self) -> None:
        self._sweep(self._bind("backward"), None if self.activity.is_whole else self.activity)

    def _sweep(self, bound: Bound, activity: Activity | None) -> None:
        """Make all calls of a stage, in one go if nobody takes the time and all nodes are active."""
        n_batches = bound.n_batches
        self._launches += bound.call(0, 1)
        self._lap(bound.name, None)
        if self.timer is None and activity is None:
            self._launches += bound.call(1, n_batches + 1)
        else:
            batches = self.plan.batches if bound.name == "forward" else self.plan.batches[::-1]
            for at, batch in enumerate(batches, start=1):
                rows = None if activity is None else activity.rows(batch.kind, batch.start, batch.end)
                if rows is None or rows.any():
                    self._launches += bound.call(at, at + 1)
                if rows is not None and not rows.all():
                    self._clear(batch, rows)
                self._lap(bound.name, batch)
        self._launches += bound.call(n_batches + 1, n_batches + 2)
        if bound.name == "backward":  # what comes after its batches is not part of the weights
            self._lap(bound.name, None)

    def _bind(self, name: str) -> Bound:
        """Bind the steps of a stage, of all types that the plan has, to the arrays of this run."""
        prepared, plan = self._prepared(), self.plan
        cells = [self._compiled_cell(kind) for kind in prepared.tables]
        bound = self._bound_of(name, cells)
        arrays = self._buffer, self.scratch[0], self.kept[0], plan.dest_ptr, plan.dest, plan.adds
        if len(self._addresses) != self.n_threads:
            self._addresses = np.zeros((self.n_threads, len(COMMON)), np.int64)
        found = [address_of(array) for array in arrays]
        for addresses, scratch in zip(self._addresses, self.scratch, strict=True):
            found[SCRATCH] = address_of(scratch)
            for number, address in enumerate(found):
                addresses[number] = address
        common, place = Arrays(arrays, self._addresses), plan.dest.dtype.name
        first = plan.tables.block_ptr.tolist()
        runs = [
            Run(
                plan, kind, common, place, table, prepared.mean_rows[first[kind] : first[kind + 1]], self.chooser,
                self._randomness,
            )
            for kind, table in prepared.tables.items()
        ]  # fmt: skip
        bound.bind(runs, prepared.forward if name == "forward" else prepared.backward)
        return bound

    def _bound_of(self, name: str, cells: list[CompiledCell]) -> Bound:
        """The steps of a stage of some types; those of the sets of types used last are kept."""
        key = name, *map(id, cells)
        bound = self._bound.pop(key, None)
        if bound is None:
            bound = Bound(name, [cell.stage(name) for cell in cells])
            if len(self._bound) == MOST_BOUND:
                del self._bound[next(iter(self._bound))]
        self._bound[key] = bound
        return bound

    def prepared(self, plan: Plan) -> Prepared:
        """How a plan ran that ran before."""
        return self._plans[plan]

    def _prepared(self) -> Prepared:
        """What running the plan needs beside it."""
        plan, shapes = self.plan, self._shapes_of(self.cells)
        prepared = self._plans.get(plan)
        if prepared is None or prepared.shapes is not shapes or prepared.n_threads != self.n_threads:
            ends = plan.type_ptr.tolist()
            kinds = [kind for kind in range(len(ends) - 1) if ends[kind] < ends[kind + 1]]
            for kind in kinds:
                if kind not in shapes.cells:
                    shapes.add(kind, self._compiled_cell(kind))
            prepared = self._plans[plan] = shapes.prepare(plan, kinds, self.n_threads)
        return prepared

    def _reserved(self, array: Array, n_rows: int, size: int) -> Array:
        """The array, if it is large enough, or another."""
        if array.dtype == self.dtype and len(array) == n_rows and array.shape[1] >= size:
            return array
        self._allocations += 1
        return aligned((n_rows, size), self.dtype)

    def _shapes_of(self, cells: PlannedTypes) -> Shapes:
        found = self._shapes.setdefault(cells, {})
        way = self.dtype, self.precision
        if way not in found:
            found[way] = Shapes(cells, self.dtype)
            self._forget()
        return found[way]

    def _forget(self) -> None:
        """Drop what was compiled for cells that nobody plans with any more."""
        used = {id(cell) for cells in self._shapes for cell in cells.cells}
        self._compiled = {key: cell for key, cell in self._compiled.items() if key[0] in used}
        self._weight_stages = {key: stage for key, stage in self._weight_stages.items() if key[0] in used}
        self._bound.clear()

    def _compiled_cell(self, kind: int) -> CompiledCell:
        cell = self.cells.cells[kind]
        key = id(cell), self.dtype, self.precision
        if key not in self._compiled:
            self._compiled[key] = CompiledCell(cell, self.dtype, self.jitted, self.precision)
        return self._compiled[key]

    def _clear(self, batch: Batch, active: Array) -> None:
        """Make the gradients of rows that the loss does not depend on zero."""
        cell, rows = self.cells.cells[batch.kind], RowRange(self.plan, batch)
        for number, place in zip(cell.program.ports, cell.layout.inputs, strict=True):
            port = self._inputs(rows, place, cell.program.vars[number], self.plan.mirror)
            port[~rows.spread(active, place.domain)] = 0

    # Gradients of parameters.

    def _weight_gradients(self, kind: int, n_rows: int, gradients: Mapping[int, Gradient]) -> None:
        """Run the weight stage of a type, as products by address where it consists of such."""
        cell = self.cells.cells[kind]
        key = id(cell), self.dtype
        if key not in self._weight_stages:
            self._weight_stages[key] = WeightStage(cell, self.dtype)
        stage = self._weight_stages[key]
        outers = self._outers if self.precision == "bf16" else None
        is_direct = stage.is_direct and self.jitted and self.activity.is_whole
        if is_direct and stage.run(self.plan, kind, self._buffer, self.chooser, gradients, outers, self.n_threads):
            self._launches += stage.n_launches
            return
        super()._weight_gradients(kind, n_rows, gradients)

    def _run(self, frame: Frame, indices: Iterable[int]) -> None:
        """Run instructions of the weight stage: outer products of rows by a library, sums of rows in one pass."""
        for index in indices:
            source = frame.vars[index].source
            assert isinstance(source, Instruction)
            target = frame.targets.get(index)
            args = [frame.env[arg] for arg in source.args]
            if target is not None and source.op.name == "row_sum_outer" and len(args[0]) == len(args[1]):
                x, y = map(readable, args)
                provider = self.chooser.choose(x.shape[1], y.shape[1], len(x), x.dtype.name, a_flipped=True)
                if self.precision == "bf16" and rounded_args(frame.vars, index):
                    way = self.chooser.choose_bf16(x.shape[1], y.shape[1], len(x), a_flipped=True)
                    add_outer(x, y, target[0], way, provider)
                else:
                    provider.multiply(x.T, y, target[0], accumulate=True)
            elif target is not None and source.op is ROW_SUM and args[0].ndim == 2 and self.jitted:
                add_rows(args[0], target[0])
            else:
                super()._run(frame, (index,))
                continue
            frame.env[index] = target
            self._launches += 1
