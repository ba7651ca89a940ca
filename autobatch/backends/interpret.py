"""Run the stages of cells op by op, in plain array code, on the arrays of any device.

Each batch reads contiguous rows of its type's blocks, and runs the instructions of the cell on arrays `(rows, *shape)`.
A result is written to its place if the layout has one for it. Outputs are then scattered to their destinations.
Backward gathers the gradients of the outputs from the same destinations, and computes those of the ports in their rows
of gradients, or copies them there. Gradients of parameters are computed once per type, over all its rows; the gradient
of a table consists of the rows that were looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from autobatch.arrays import rounded
from autobatch.backends.options import Options
from autobatch.backends.segments import Group
from autobatch.backends.values import Array, Env, RowRange, Values, constant_row
from autobatch.ir.layout import Join, Layout
from autobatch.ir.precision import rounded_args
from autobatch.ir.program import NODE, SHARED, Attribute, Constant, Instruction, Port, Var, Weight
from autobatch.ops.define import run_kernel
from autobatch.ops.indexing import to_ids
from autobatch.ops.randomness import Randomness
from autobatch.ops.variadic import Segments, segment_sum
from autobatch.params.sparse_rows import Rows
from autobatch.plan.plan import Batch, PlannedCell


class Frame:
    """The execution of a stage of a cell over some rows.

    Attributes:
        env: the values known so far, `(rows, *shape)`.
        targets: the places of the values that have one.
        wholes: the memory of joins.
        n_segments: the number of sums over rows: 1 for all rows, or one per instance.
        segments: returns groups of the instances, given the domain of the rows; None for one sum over all rows.
    """

    def __init__(self, rows: RowRange, layout: Layout, vars: tuple[Var, ...], env: Env, targets: Env) -> None:
        self.rows, self.layout, self.vars, self.env, self.targets = rows, layout, vars, env, targets
        self.wholes: Env = {}
        self.n_segments = 1
        self.segments: Callable[[int], Iterable[Group]] | None = None

    def n_rows(self, domain: int) -> int:
        """Return the number of rows of a value of this domain."""
        return self.n_segments if domain == SHARED else self.rows.count(domain)

    def in_segments(self, n: int, segments: Callable[[int], Iterable[Group]]) -> Frame:
        """Return a frame with the same values, in which sums are over the rows of each of n instances."""
        frame = Frame(self.rows, self.layout, self.vars, dict(self.env), {})
        frame.n_segments, frame.segments = n, segments
        return frame


class Interpreter:
    """The interpreter of the cells of a run.

    Args:
        values: the values of the run.
        randomness: the randomness of the whole mini-batch.
        parameters: the arrays of parameters that are on the device already, by `id`; the interpreter adds others.
        data: returns the int and float data of a type and domain on the device, as `Plan.data`; None to copy them.

    Attributes:
        launches: the number of ops, scatters and gathers so far.
        copied_bytes: bytes moved by launches that compute nothing.
    """

    def __init__(
        self,
        values: Values,
        options: Options,
        randomness: Randomness,
        parameters: dict[int, Array] | None = None,
        data: Callable[[int, int], tuple[Array, Array]] | None = None,
    ) -> None:
        self.values, self.options, self.randomness = values, options, randomness
        self.plan, self.cells, self.store = values.plan, values.cells, values.store
        self.launches = self.copied_bytes = 0
        self._parameters = {} if parameters is None else parameters
        self._data = data or values.plan.data

    # Stages.

    def forward_batch(self, batch: Batch) -> None:
        """Compute the nodes of a batch."""
        cell = self.cells.cells[batch.type_id]
        frame = self._frame(batch, cell.program.vars)
        self.run(frame, cell.program.instructions)
        for number, index in enumerate(cell.program.outputs):
            self._scatter(frame, number, frame.env[index], cell.program.vars[index])

    def backward_batch(self, batch: Batch) -> None:
        """Compute the gradients of the ports of a batch."""
        cell = self.cells.cells[batch.type_id]
        derivative, layout = cell.derivative, cell.layout
        assert derivative is not None, "backward follows a forward run in training"
        ports = self.values.port_gradients(RowRange(self.plan, batch, self.store))
        if derivative.backward or derivative.parameters or derivative.tables or ports:
            frame = self._frame(batch, derivative.vars, backward=True)
            for number, index in enumerate(derivative.incoming):
                frame.env[index] = self._gather(frame, number, index)
            self.run(frame, derivative.backward)
            for number, gradient in enumerate(derivative.ports):
                # Gradients of aliased ports were computed in their place, or in a value of which they are a slice.
                if number not in layout.aliased:
                    self._write(ports[number], None if gradient is None else frame.env[gradient])

    def weight_gradients(
        self,
        type_id: int,
        gradients: Mapping[int, Any],
        active: Array | None = None,
        only: tuple[int, ...] | None = None,
    ) -> None:
        """Run the weight stage of a type over its active rows.

        Args:
            gradients: by `id` of the parameter, the array of the device or `Rows` to add to.
            active: bool[N_type], the active rows of the type; None if all are active.
            only: the numbers of the parameters to differentiate by; None for all.
        """
        derivative = self.cells.cells[type_id].derivative
        assert derivative is not None, "backward follows a forward run in training"
        parameters = [(p, g) for p, g in derivative.parameters if only is None or p in only]
        tables = [(p, scatters) for p, scatters in derivative.tables if only is None or p in only]
        if not parameters and not tables:
            return
        frame = self.weight_frame(type_id)
        if active is not None:
            domains = {i: derivative.vars[i].domain for i in frame.env}
            for i, x in frame.env.items():
                frame.env[i] = x if domains[i] == SHARED else x[frame.rows.select(active, domains[i])]
        owners = {p: gradients[id(derivative.parameter(p))] for p, _ in parameters}
        # A sum over rows adds to its target, so a gradient that is such a sum needs no array of its own.
        frame.targets = {g: owners[p][None] for p, g in parameters if g in derivative.accumulated}
        roots = [g for _, g in parameters] + [v for _, scatters in tables for scatter in scatters for v in scatter]
        self.run(frame, derivative.weights if only is None else derivative.needed(roots))
        for p, g in parameters:
            if g not in frame.targets:
                owners[p] += frame.env[g][0]
        for p, scatters in tables:
            for scatter in scatters:
                ids = self.looked_up(frame, scatter.ids, active)
                self.add_rows(ids, frame.env[scatter.values], gradients[id(derivative.parameter(p))])

    def weight_frame(self, type_id: int) -> Frame:
        """Return a frame over all rows of a type, with the values that its weight stage reads."""
        derivative, n_rows = self.cells.cells[type_id].derivative, int(np.diff(self.plan.type_ptr)[type_id])
        assert derivative is not None, "backward follows a forward run in training"
        batch = Batch(type_id, 0, n_rows, self.plan.type_bases[type_id])
        frame = self._frame(batch, derivative.vars, backward=True)
        frame.targets = {}
        return frame

    def looked_up(self, frame: Frame, index: int, active: Array | None = None) -> Array:
        """Return the ids that a type looked up in its active rows, on the host; copies computed ids from the device."""
        var = frame.vars[index]
        if isinstance(var.source, Constant):
            return np.asarray(var.source.data)[None]
        if not isinstance(var.source, Attribute):
            return self.store.get(to_ids(frame.env[index]))
        data, _ = self.plan.data(frame.rows.type_id, var.domain)
        ids = data[:, var.source.column : var.source.column + var.size].reshape(len(data), *var.shape)
        return ids if active is None else ids[self.store.get(frame.rows.select(active, var.domain))]

    def add_rows(self, ids: Array, values: Array, gradient: Any) -> None:
        """Add the gradients of rows that a type looked up to the gradient of their table; `ids` are on the host."""
        flat = np.broadcast_to(ids, values.shape[: ids.ndim]).reshape(-1)
        rows = self.store.xp.ascontiguousarray(values).reshape(-1)
        if isinstance(gradient, Rows):
            gradient.add(flat, rows if gradient.store is self.store else self.store.get(rows))
        else:
            Rows.summed(flat, rows.reshape(flat.size, *gradient.shape[1:]), gradient.shape, self.store).add_to(gradient)
        self.launches += 1

    # Frames and instructions.

    def _frame(self, batch: Batch, vars: tuple[Var, ...], backward: bool = False) -> Frame:
        """Build a frame over the rows of a batch: the known values, and the places of the results that have one."""
        cell, rows = self.cells.cells[batch.type_id], RowRange(self.plan, batch, self.store)
        env = self._known(rows, cell, vars)
        inner = {i: self.values.inputs(rows, place, vars[i]) for i, place in cell.layout.inner.items()}
        residuals = self.values.residuals(rows, cell)
        if not backward:
            return Frame(rows, cell.layout, vars, env, residuals | inner)
        places = cell.layout.gradients.items()
        gradients = {i: self.values.inputs(rows, place, vars[i], self.plan.gradient_offset) for i, place in places}
        # Backward reads the residuals of forward, and writes those that it leaves for the weight stage.
        return Frame(rows, cell.layout, vars, env | residuals | inner, gradients | residuals)

    def _known(self, rows: RowRange, cell: PlannedCell, vars: Iterable[Var]) -> Env:
        """Return the values that are known before any instruction runs: ports, attributes, parameters, constants."""
        env: Env = {}
        for index, var in enumerate(vars):
            match var.source:
                case Port(number=number):
                    env[index] = self.values.inputs(rows, cell.layout.inputs[number], var)
                case Attribute(is_float=is_float, column=column):
                    data, (first, end) = self._data(rows.type_id, var.domain)[is_float], rows.of(var.domain)
                    part = data[first:end, column : column + var.size].reshape(end - first, *var.shape)
                    # Float data are float64 in the plan, whatever the dtype of the model.
                    env[index] = self.store.put(part.astype(self.options.dtype) if is_float else part)
                case Weight(parameter=parameter):
                    if id(parameter) not in self._parameters:
                        self._parameters[id(parameter)] = self.store.put(parameter.array)
                    env[index] = self._parameters[id(parameter)][None]
                case Constant(data=data):
                    row = constant_row(data, self.options.dtype)
                    env[index] = row if isinstance(row, (int, float)) else self.store.put(row)
        return env

    def run(self, frame: Frame, indices: Iterable[int]) -> None:
        """Run instructions, and add the results to `frame.env`; a result that has a place is computed there."""
        for index in indices:
            var = frame.vars[index]
            source = var.source
            assert isinstance(source, Instruction)
            op, args = source.op, [frame.env[a] for a in source.args]
            if op.view:
                frame.env[index] = op.kernel(self.store.xp, args[0], **source.static)
                continue
            out = frame.env[index] = self._out(frame, index)
            if index in frame.layout.joins:
                self._join(frame.layout.joins[index], args, out)
                continue
            if op.sums_rows:
                self._sum_rows(frame, index, args, out)
            else:
                self._compute(frame, index, args, out)

    def _compute(self, frame: Frame, index: int, args: list[Array], out: Array) -> None:
        source = frame.vars[index].source
        assert isinstance(source, Instruction)
        owner = self.cells.cells[frame.rows.type_id].type.owner
        static = frame.rows.static(frame.vars, index, self.randomness, owner)
        run_kernel(source.op, self.store.xp, self.rounded(frame.vars, index, args), out, static)
        self.launches += 1

    def rounded(self, vars: Sequence[Var], index: int, args: list[Array]) -> list[Array]:
        """Return the arguments of an instruction, rounded to bf16 if the precision of the run requires it."""
        if self.options.precision != "bf16":
            return args
        at = rounded_args(vars, index)
        return [rounded(arg, self.store.xp) if place in at else arg for place, arg in enumerate(args)]

    def _sum_rows(self, frame: Frame, index: int, args: list[Array], out: Array) -> None:
        """Sum over the rows of each segment; segments with about equally many rows are summed in one call."""
        source = frame.vars[index].source
        assert isinstance(source, Instruction)
        if frame.segments is None:
            self._compute(frame, index, [x[None] for x in args], out)
            return
        domains = [frame.vars[arg].domain for arg in source.args]
        shared = [place for place, domain in enumerate(domains) if domain == SHARED]
        for group in frame.segments(max(NODE, *domains)):
            where, taken = group.where(self.store.put), group.taken[0].of(args, self.store.put, shared)
            sums = out[where]
            self._compute(frame, index, taken, sums)
            if not isinstance(where, slice):
                out[where] = sums  # indexing by an array made a copy

    def _out(self, frame: Frame, index: int) -> Array:
        """Return the memory in which a value is computed: its own place, its part of a join, or new memory."""
        if index in frame.layout.joins:
            return self._whole(frame, index)
        place = self._place(frame, index)
        if place is not None:
            return place
        var, source, xp = frame.vars[index], frame.vars[index].source, self.store.xp
        sums = isinstance(source, Instruction) and source.op.sums_rows
        # Sums over rows add to their result; all other kernels write all of it.
        return (xp.zeros if sums else xp.empty)((frame.n_rows(var.domain), *var.shape), self.options.dtype)

    def _place(self, frame: Frame, index: int) -> Array | None:
        if index in frame.layout.within:
            whole, part = frame.layout.within[index]
            return self._whole(frame, whole)[(slice(None), *part)]
        return frame.targets.get(index)

    def _whole(self, frame: Frame, index: int) -> Array:
        """Return the memory of a join, shared by its parts; elements of no part are zero."""
        if index not in frame.wholes:
            var, place = frame.vars[index], self._place(frame, index)
            shape = frame.n_rows(var.domain), *var.shape
            whole = self.store.xp.empty(shape, self.options.dtype) if place is None else place
            if not frame.layout.joins[index].covered:
                whole[...] = 0
                self.launches += 1
            frame.wholes[index] = whole
        return frame.wholes[index]

    def _join(self, join: Join, parts: Sequence[Array], out: Array) -> None:
        """Copy the parts of a join that were not computed in place."""
        for number in join.copied:
            place = out[(slice(None), *join.indices[number])]
            place[...] = parts[number]
            self.copied_bytes += place.nbytes
        self.launches += bool(join.copied)

    # Moving values between nodes.

    def _scatter(self, frame: Frame, number: int, value: Array, var: Var) -> None:
        """Write an output of a batch to all its destinations."""
        rows, put = frame.rows, self.store.put
        ptr, dest, adds = rows.destinations(number)
        if not dest.size:
            return
        counts = np.diff(ptr)
        flat = self.store.xp.broadcast_to(value, (counts.size, *var.shape)).reshape(counts.size, var.size)
        if not (counts == 1).all():
            flat = flat[put(np.repeat(np.arange(counts.size), counts))]
        window = self.values.window(var.size)
        # The buffer is not cleared: the first value for a place is stored, before others are added to it.
        if adds.any():
            stored, added = np.flatnonzero(~adds), np.flatnonzero(adds)
            window[put(dest[stored])] = flat[put(stored)]
            self._add_at(window, dest[added], flat[put(added)])
        else:
            window[put(dest)] = flat
        self._moved(dest.size * var.size)

    def _add_at(self, window: Array, places: Array, values: Array) -> None:
        """Add values to rows of `window` in order; a row may occur several times."""
        left = np.arange(places.size)
        while left.size:  # each pass adds the first value that is left for each row, so that no row occurs twice in it
            _, first = np.unique(places[left], return_index=True)
            now = left[first]
            window[self.store.put(places[now])] += values[self.store.put(now)]
            left = np.delete(left, first)

    def _gather(self, frame: Frame, number: int, index: int) -> Array:
        """Sum the gradients at all destinations of an output of a batch."""
        var, out = frame.vars[index], self._out(frame, index)
        ptr, dest, _ = frame.rows.destinations(number)
        if not dest.size:
            out[...] = 0
            return out
        found = self.store.put(dest + self.plan.gradient_offset)
        parts = self.values.window(var.size)[found].reshape(dest.size, *var.shape)
        if (np.diff(ptr) == 1).all():
            out[...] = parts
        else:
            segment_sum(self.store.xp, parts, out, Segments(ptr - ptr[0], self.store.put))
        self._moved(parts.size)
        return out

    def _write(self, place: Array, value: Array | None) -> None:
        """Copy a value to its place; None writes zeros."""
        place[...] = 0 if value is None else value
        self._moved(place.size)

    def _moved(self, elements: int) -> None:
        self.launches += 1
        self.copied_bytes += elements * self.options.dtype.itemsize
