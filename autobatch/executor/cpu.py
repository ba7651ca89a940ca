"""The cpu backend: cells compiled into a few steps, on the same buffer and plan as the reference backend.

Where the rows of each batch are is worked out for all batches of a type at once. A step is then a call with the number
of the batch: a generated kernel, a matrix product, or an op as the reference backend runs it. What cells compute from
parameters alone runs once per run. The gradient of a weight is one product over all rows of a type, and that of a bias
one pass over them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.autodiff import ROW_SUM, Scatter
from autobatch.blas.choosing import Chooser
from autobatch.blas.threads import limit_threads
from autobatch.executor.bound import BoundStage, Call, Calls, CompiledCell
from autobatch.executor.reference import Env, Frame, Reference, RowRange
from autobatch.executor.table import make_table
from autobatch.kernels.loading import is_jitted
from autobatch.kernels.source import STAGES, columns_of
from autobatch.kernels.support import add_rows
from autobatch.plan import Batch, Plan
from autobatch.program import Instruction
from autobatch.randomness import Randomness
from autobatch.rows import Gradient, Rows

Array = NDArray[Any]


class Cpu(Reference):
    """Runs plans with compiled cells. Not thread-safe: one instance runs one plan at a time.

    Args:
        poison: fill the buffer with NaN before each run, so that a read of what was never written shows.
        jitted: compile the generated kernels; by default unless `AUTOBATCH_JIT` is 0.
        provider: the name of the library that multiplies matrices; by default the fastest for each size.
    """

    name = "cpu"

    def __init__(self, poison: bool = False, jitted: bool | None = None, provider: str | None = None) -> None:
        super().__init__(poison)
        self.jitted = is_jitted() if jitted is None else jitted
        self.scratch: Array = np.empty(0, np.float32)
        self.chooser = Chooser(provider)
        self._compiled: dict[tuple[int, str], CompiledCell] = {}

    @property
    def buffer(self) -> Array:
        """All values of the mini-batch."""
        return self._buffer

    @contextmanager
    def _computing(self) -> Iterator[None]:
        with limit_threads(1), super()._computing():
            yield

    def randomness(self, rows: RowRange) -> Randomness:
        """Where the nodes in these rows draw from."""
        return self._randomness(rows)

    # Batches.

    def _forward_batches(self) -> None:
        self._order = number_batches(self.plan)
        self._tables = self._make_tables()
        calls = self._bind("forward")
        for kind, (before, _, _) in calls.items():
            self._run_calls(before, len(self._tables[kind]) - 1)
        self._lap("forward", None)
        for at, (kind, k) in enumerate(self._order):
            self._run_calls(calls[kind].per_batch, k)
            if self.timer is not None:
                self._lap("forward", self.plan.batches[at])

    def _backward_batches(self, active: Array) -> None:
        calls, plan = self._bind("backward"), self.plan
        all_active = active.all()
        batches = [] if all_active and self.timer is None else plan.batches
        self._lap("backward", None)
        for at in reversed(range(len(self._order))):
            kind, k = self._order[at]
            rows = None
            if not all_active:
                first = plan.type_ptr[kind]
                rows = active[plan.node_at[first + batches[at].start : first + batches[at].end]]
            if rows is None or rows.any():
                self._run_calls(calls[kind].per_batch, k)
            if rows is not None and not rows.all():
                self._clear(batches[at], rows)
            if self.timer is not None:
                self._lap("backward", batches[at])
        for kind, (_, _, after) in calls.items():
            self._run_calls(after, len(self._tables[kind]) - 1)

    def _run_calls(self, calls: list[Call], k: int) -> None:
        for call in calls:
            call(k)
        self._launches += len(calls)

    def _clear(self, batch: Batch, active: Array) -> None:
        """Make the gradients of rows that the loss does not depend on zero."""
        cell, rows = self.cells.cells[batch.kind], RowRange(self.plan, batch)
        for number, place in zip(cell.program.ports, cell.layout.inputs, strict=True):
            port = self._inputs(rows, place, cell.program.vars[number], self.plan.mirror)
            port[~rows.spread(active, place.domain)] = 0

    def _make_tables(self) -> dict[int, Array]:
        """Where the rows of the batches of each type are; there is scratch memory for the largest."""
        tables, needed = {}, 0
        names = STAGES if self.cells.training else STAGES[:1]
        for kind in sorted({kind for kind, _ in self._order}):
            compiled_cell = self._compiled_cell(kind)
            stages = {name: compiled_cell.stage(name).stage for name in names}
            tables[kind], size = make_table(self.plan, kind, self.cells.cells[kind], stages)
            needed = max(needed, size)
        for kind, table in tables.items():  # rows that are kept for all batches lie behind what these use by turns
            width = self._compiled_cell(kind).stage("forward").stage.storage.kept_width
            columns = columns_of(self.cells.cells[kind].layout, len(self.cells.cells[kind].program.outputs))
            table[:, columns.index("kept_n")] = needed + table[:, 0] * width
            needed += int(table[-1, columns.index("rows_n")]) * width
        if self.scratch.size < needed or self.scratch.dtype != self.dtype:
            self.scratch = np.empty(max(needed, 1), self.dtype)
            self._allocations += 1
        if self.poison:
            self.scratch.fill(np.nan)
        return tables

    def _bind(self, name: str) -> dict[int, Calls]:
        """For each type what a stage runs per batch."""
        calls = {}
        for kind, table in self._tables.items():
            cell = self.cells.cells[kind]
            columns = columns_of(cell.layout, len(cell.program.outputs))
            stage = self._compiled_cell(kind).stage(name)
            calls[kind] = BoundStage(self, kind, cell, stage, table, columns).calls()
        return calls

    def _compiled_cell(self, kind: int) -> CompiledCell:
        cell = self.cells.cells[kind]
        key = id(cell), self.dtype.name
        if key not in self._compiled:
            self._compiled[key] = CompiledCell(cell, self.dtype, self.jitted)
        return self._compiled[key]

    # Gradients of parameters.

    def _add_rows(self, env: Env, scatters: Iterable[Scatter], gradient: Gradient) -> None:
        """Add the rows that a type looked up to the gradient of their table; the first ones are taken over."""
        first, *others = scatters
        if isinstance(gradient, Rows) and not gradient.ids.size:
            values, ids = env[first.values], env[first.ids]
            flat = np.broadcast_to(ids, values.shape[: ids.ndim]).reshape(-1)
            found = Rows.summed(flat, values.reshape(flat.size, *gradient.shape[1:]), gradient.shape)
            gradient.ids, gradient.values = found.ids, found.values
            self._launches += 1
        else:
            others.insert(0, first)
        super()._add_rows(env, others, gradient)

    def _run(self, frame: Frame, indices: Iterable[int]) -> None:
        """Run instructions of the weight stage: outer products of rows by a library, sums of rows in one pass."""
        for index in indices:
            source = frame.vars[index].source
            assert isinstance(source, Instruction)
            target = frame.targets.get(index)
            args = [frame.env[arg] for arg in source.args]
            if target is not None and source.op.name == "row_sum_outer" and len(args[0]) == len(args[1]):
                x, y = args
                self.chooser.choose(x.shape[1], y.shape[1], len(x), x.dtype.name, a_flipped=True).multiply(
                    x.T, y, target[0], accumulate=True
                )
            elif target is not None and source.op is ROW_SUM and args[0].ndim == 2 and self.jitted:
                add_rows(args[0], target[0])
            else:
                super()._run(frame, (index,))
                continue
            frame.env[index] = target
            self._launches += 1


def number_batches(plan: Plan) -> list[tuple[int, int]]:
    """For each batch its type, and its number among those of the type."""
    seen: dict[int, int] = {}
    found = []
    for kind in plan.schedule.batch_type.tolist():
        seen[kind] = seen.get(kind, -1) + 1
        found.append((kind, seen[kind]))
    return found
