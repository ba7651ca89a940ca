"""Views of a run's memory for the ports, outputs and residuals of cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.backends.activity import Activity
from autobatch.backends.interpreter.frame import Array, Env, RowRange
from autobatch.devices.store import Store
from autobatch.ir.layout import Place
from autobatch.ir.program import NODE, Var
from autobatch.plan.plan import Batch, Plan, PlannedCell, PlannedTypes


class Values:
    """The values of a plan in a buffer.

    Args:
        buffer: an array of the store, with at least as many elements as the plan needs.
    """

    def __init__(self, plan: Plan, cells: PlannedTypes, buffer: Array, store: Store) -> None:
        self.plan, self.cells, self.buffer, self.store = plan, cells, buffer, store
        self._windows: dict[int, Array] = {}

    def window(self, width: int) -> Array:
        """The buffer as overlapping rows: row k is elements k:k + width."""
        if width not in self._windows:
            step = self.buffer.itemsize
            shape = (max(self.buffer.size - width + 1, 0), width)
            self._windows[width] = self.store.xp.lib.stride_tricks.as_strided(self.buffer, shape, (step, step))
        return self._windows[width]

    def slot(self, slot: int, shift: int = 0) -> Array:
        """The values of a slot, `(rows, *shape)`; or (shifted) their gradients."""
        shape, rows = self.cells.slot_shapes[slot], int(self.plan.slot_rows[slot])
        first = int(self.plan.slot_base[slot]) + shift
        return self.buffer[first : first + rows * self.cells.slot_widths[slot]].reshape(rows, *shape)

    def outputs(self) -> Callable[[], list[Any]]:
        """Begin to copy the values of each slot to the host; what is returned waits for them, as NumPy arrays."""
        copies = [self.store.copy_out(self.slot(slot)) for slot in range(len(self.cells.slot_shapes))]
        return lambda: [wait() for wait in copies]

    def inputs(self, rows: RowRange, place: Place, var: Var, shift: int = 0) -> Array:
        """A value in the inputs, or (shifted) a gradient beside them: `(rows, *shape)`."""
        number = place.domain - NODE
        width = self.cells.cells[rows.kind].layout.input_width[number]
        return self._columns(rows.bases[number] + shift, rows.count(place.domain), width, place, var)

    def port_gradients(self, rows: RowRange) -> list[Array]:
        """The gradients of all ports, where they lie."""
        cell = self.cells.cells[rows.kind]
        values = [cell.program.vars[index] for index in cell.program.ports]
        return [self.inputs(rows, p, v, self.plan.mirror) for p, v in zip(cell.layout.inputs, values, strict=True)]

    def output_gradients(self, kind: int, activity: Activity) -> Any:
        """The gradients of the first output of all nodes of a type, `[rows, size]`, added up on the host."""
        program, n_rows = self.cells.cells[kind].program, int(np.diff(self.plan.type_ptr[kind : kind + 2])[0])
        var = program.vars[program.outputs[0]]
        rows = RowRange(self.plan, Batch(kind, 0, n_rows, ()), self.store)
        ptr, dest, _ = rows.destinations(0)
        found = np.zeros((ptr.size - 1, var.size), self.buffer.dtype)
        if dest.size:
            parts = self.store.get(self.window(var.size)[self.store.put(dest + self.plan.mirror)])
            np.add.at(found, np.repeat(np.arange(ptr.size - 1), np.diff(ptr)), parts)
        found[self.store.get(rows.select(~activity.rows(kind, 0, n_rows), max(var.domain, NODE)))] = 0
        return found

    def clear_inactive(self, rows: RowRange, active: Array) -> None:
        """Set the gradients of the ports to zero in rows that the loss does not depend on."""
        layout = self.cells.cells[rows.kind].layout
        for port, place in zip(self.port_gradients(rows), layout.inputs, strict=True):
            port[rows.select(~active, place.domain)] = 0

    def residuals(self, rows: RowRange, cell: PlannedCell) -> Env:
        """The values that forward leaves for backward."""
        if cell.derivative is None:
            return {}
        found: Env = {}
        for i, place in cell.layout.saved.items():
            number, width = place.domain - NODE, cell.layout.saved_width[place.domain - NODE]
            first = int(self.plan.saved_base[rows.block + number]) + rows.of(place.domain)[0] * width
            found[i] = self._columns(first, rows.count(place.domain), width, place, cell.derivative.vars[i])
        return found

    def _columns(self, first: int, n_rows: int, width: int, place: Place, var: Var) -> Array:
        area = self.buffer[first : first + n_rows * width].reshape(n_rows, width)
        return area[:, place.column : place.column + place.width].reshape(n_rows, *var.shape)
