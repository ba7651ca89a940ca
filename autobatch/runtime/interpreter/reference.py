"""The reference backend: cells interpreted op by op, in plain array code.

Each batch reads contiguous rows of its type's blocks, runs the cell's instructions on arrays `(rows, *shape)`, each
into its place if the layout gives it one, and scatters the outputs to their destinations. Backward runs the batches in
reverse: the gradients of the outputs are gathered from the same destinations, those of the ports are made in, or copied
to, the mirrored rows. Gradients of parameters are computed last, once per type over all its rows; those of tables are
the rows that were looked up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from autobatch.ir.derivative import Scatter
from autobatch.ir.layout import Join, Place
from autobatch.ir.precision import rounded, rounded_args
from autobatch.ir.program import NODE, SHARED, Attribute, Constant, Instruction, Port, Var, Weight
from autobatch.jit.addresses import aligned
from autobatch.ops.define import run_kernel
from autobatch.ops.randomness import Randomness
from autobatch.ops.variadic import Segments, segment_sum
from autobatch.params.rows import Gradient, Rows
from autobatch.params.stacks import Targets, refresh
from autobatch.plan.plan import Batch, Plan, PlannedCell, PlannedTypes
from autobatch.runtime.activity import Activity
from autobatch.runtime.backend import Counts, Timer
from autobatch.runtime.interpreter.frame import Array, Env, Frame, RowRange, add_at, dense


class Reference:
    """Runs plans with NumPy, one at a time: batched functions take turns, see `autobatch.system.turns`.

    Args:
        poison: fill the buffer with NaN before each run, so that a read of what was never written shows.
    """

    name = "reference"

    def __init__(self, poison: bool = False) -> None:
        self.poison = poison
        self.timer: Timer | None = None
        self.precision = "float32"
        self._buffer: Array = np.empty(0, np.float32)
        self._windows: dict[int, Array] = {}
        self._targets: Targets | None = None
        self.activity = Activity()
        self._launches = self._copied = self._allocations = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles have buffers of their own."""
        return type(self), (self.poison,)

    def counts(self) -> Counts:
        """What was run since `forward` was last called."""
        return Counts(self._launches, self._copied, self._allocations, self._buffer.nbytes)

    def scratch_size(
        self, plan: Plan, cells: PlannedTypes, dtype: np.dtype[Any], precision: str, n_threads: int
    ) -> int:
        """Elements of memory that is kept beside the buffer: none, for what is on its way is in arrays made for it."""
        return 0

    def forward(
        self,
        plan: Plan,
        cells: PlannedTypes,
        dtype: np.dtype[Any],
        random: Randomness,
        max_bytes: int | None = None,
    ) -> list[Array]:
        """Compute all values; return what the user asked for, per slot, as copies."""
        self.plan, self.cells, self.dtype, self.random = plan, cells, dtype, random
        self._launches = self._copied = self._allocations = 0
        self._reserve(plan.size, dtype, max_bytes)
        self._copied += refresh(cells.stacks)
        with self._computing():
            self._forward_batches()
        return [self._slot(slot).copy() for slot in range(len(cells.slot_shapes))]

    def backward(self, seeds: Mapping[int, Array], gradients: Mapping[int, Gradient]) -> None:
        """Differentiate the last run, starting from the gradients of slots; add to those of the parameters."""
        plan = self.plan
        self.activity.mark(plan, self.cells, seeds)
        if self._targets is None or not self._targets.restart(gradients, self.cells.stacks):
            self._targets = Targets(gradients, self.cells.stacks)
        targets = self._targets
        for slot in range(len(self.cells.slot_shapes)):
            self._slot(slot, plan.mirror)[...] = seeds.get(slot, 0)
        with self._computing():
            self._backward_batches()
            ends = plan.type_ptr.tolist()
            for kind in range(len(ends) - 1):
                n_rows = ends[kind + 1] - ends[kind]
                if n_rows and (self.activity.is_whole or self.activity.rows(kind, 0, n_rows).any()):
                    self._weight_gradients(kind, n_rows, targets.arrays)
                    if self.timer is not None:
                        self._lap("weights", Batch(kind, 0, n_rows, plan.type_bases[kind]))
        self._copied += targets.finish()

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """While batches run: overflow is no error here, for `value_and_grad` refuses a loss that is not finite."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            yield

    def _lap(self, stage: str, batch: Batch | None) -> None:
        if self.timer is not None:
            self.timer.lap(stage, batch)

    # The buffer and its views.

    def _reserve(self, size: int, dtype: np.dtype[Any], max_bytes: int | None) -> None:
        """Have room for `size` elements: at least a quarter more than before where it grows, within the limit."""
        held = self._buffer.size if self._buffer.dtype == dtype else 0
        limit = max(size, held * 5 // 4 if max_bytes is None else max_bytes // dtype.itemsize)
        if not size <= held <= limit:
            self._buffer, self._windows = np.empty(0, dtype), {}  # the old one is freed before there is a new one
            self._buffer = aligned(max(size, min(held * 5 // 4, limit)), dtype)
            self._allocations += 1
        if self.poison:
            self._buffer.fill(np.nan)

    def _window(self, width: int) -> Array:
        """The buffer as overlapping rows: row k is elements k:k + width."""
        if width not in self._windows:
            step = self._buffer.itemsize
            shape = (max(self._buffer.size - width + 1, 0), width)
            self._windows[width] = np.lib.stride_tricks.as_strided(self._buffer, shape, (step, step))
        return self._windows[width]

    def _slot(self, slot: int, shift: int = 0) -> Array:
        shape, rows = self.cells.slot_shapes[slot], int(self.plan.slot_rows[slot])
        first = int(self.plan.slot_base[slot]) + shift
        return self._buffer[first : first + rows * self.cells.slot_widths[slot]].reshape(rows, *shape)

    # Batches.

    def _forward_batches(self) -> None:
        """Run the batches in order."""
        self._lap("forward", None)
        for batch in self.plan.batches:
            self._forward_batch(batch)
            self._lap("forward", batch)

    def _backward_batches(self) -> None:
        """Run the batches in reverse."""
        self._lap("backward", None)
        for batch in reversed(self.plan.batches):
            self._backward_batch(batch, self.activity.rows(batch.kind, batch.start, batch.end))
            self._lap("backward", batch)

    def _forward_batch(self, batch: Batch) -> None:
        cell = self.cells.cells[batch.kind]
        frame = self._frame(batch, cell.program.vars)
        self._run(frame, cell.program.instructions)
        for number, index in enumerate(cell.program.outputs):
            self._scatter(frame, number, frame.env[index], cell.program.vars[index])

    def _backward_batch(self, batch: Batch, active: Array) -> None:
        cell = self.cells.cells[batch.kind]
        derivative, layout = cell.derivative, cell.layout
        assert derivative is not None, "backward follows a forward run in training"
        rows = RowRange(self.plan, batch)
        values = [cell.program.vars[index] for index in cell.program.ports]
        ports = [self._inputs(rows, p, v, self.plan.mirror) for p, v in zip(layout.inputs, values, strict=True)]
        if active.any() and (derivative.backward or derivative.parameters or derivative.tables or ports):
            frame = self._frame(batch, derivative.vars, backward=True)
            for number, index in enumerate(derivative.incoming):
                frame.env[index] = self._gather(frame, number, index)
            self._run(frame, derivative.backward)
            for number, gradient in enumerate(derivative.ports):
                if number not in layout.settled:
                    self._write(ports[number], None if gradient is None else frame.env[gradient])
        if not active.all():
            for port, place in zip(ports, layout.inputs, strict=True):
                port[~rows.spread(active, place.domain)] = 0

    def _weight_gradients(self, kind: int, n_rows: int, gradients: Mapping[int, Gradient]) -> None:
        """Run the weight stage of a type over all its rows that the loss depends on."""
        derivative = self.cells.cells[kind].derivative
        assert derivative is not None, "backward follows a forward run in training"
        if not derivative.parameters and not derivative.tables:
            return
        batch = Batch(kind, 0, n_rows, self.plan.type_bases[kind])
        frame = self._frame(batch, derivative.vars, backward=True)
        if not self.activity.is_whole:
            active = self.activity.rows(kind, 0, n_rows)
            domains = {i: derivative.vars[i].domain for i in frame.env}
            for i, x in frame.env.items():
                frame.env[i] = x if domains[i] == SHARED else x[frame.rows.spread(active, domains[i])]
        owners = {p: dense(gradients[id(derivative.parameter(p))]) for p, _ in derivative.parameters}
        frame.targets = {g: owners[p][None] for p, g in derivative.parameters if g in derivative.accumulated}
        self._run(frame, derivative.weights)
        for p, g in derivative.parameters:
            if g not in frame.targets:
                owners[p] += frame.env[g][0]
        for p, scatters in derivative.tables:
            self._add_rows(frame.env, scatters, gradients[id(derivative.parameter(p))])

    def _add_rows(self, env: Env, scatters: Iterable[Scatter], gradient: Gradient) -> None:
        """Add the rows that a type looked up to the gradient of their table."""
        for scatter in scatters:
            values, ids = env[scatter.values], env[scatter.ids]
            flat = np.broadcast_to(ids, values.shape[: ids.ndim]).reshape(-1)
            found = Rows.summed(flat, values.reshape(flat.size, *gradient.shape[1:]), gradient.shape)
            if isinstance(gradient, Rows):
                gradient += found
            else:
                found.add_to(gradient)
            self._launches += 1

    # What a cell computes with.

    def _frame(self, batch: Batch, vars: tuple[Var, ...], backward: bool = False) -> Frame:
        """Set up a run of a cell over some rows: what is known, and where results go that have a place."""
        cell, rows = self.cells.cells[batch.kind], RowRange(self.plan, batch)
        env = self._known(rows, cell, vars)
        inner = {i: self._inputs(rows, place, vars[i]) for i, place in cell.layout.inner.items()}
        saved = self._saved(rows, cell)
        if not backward:
            return Frame(rows, cell.layout, vars, env, saved | inner)
        places = cell.layout.gradients.items()
        gradients = {i: self._inputs(rows, place, vars[i], self.plan.mirror) for i, place in places}
        return Frame(rows, cell.layout, vars, env | saved | inner, gradients | saved)

    def _inputs(self, rows: RowRange, place: Place, var: Var, shift: int = 0) -> Array:
        """A value in the inputs, or (shifted) a gradient beside them: `(rows, *shape)`."""
        number = place.domain - NODE
        width = self.cells.cells[rows.kind].layout.input_width[number]
        return self._columns(rows.bases[number] + shift, rows.count(place.domain), width, place, var)

    def _saved(self, rows: RowRange, cell: PlannedCell) -> Env:
        if cell.derivative is None:
            return {}
        found: Env = {}
        for i, place in cell.layout.saved.items():
            number, width = place.domain - NODE, cell.layout.saved_width[place.domain - NODE]
            first = int(self.plan.saved_base[rows.block + number]) + rows.of(place.domain)[0] * width
            found[i] = self._columns(first, rows.count(place.domain), width, place, cell.derivative.vars[i])
        return found

    def _columns(self, first: int, n_rows: int, width: int, place: Place, var: Var) -> Array:
        area = self._buffer[first : first + n_rows * width].reshape(n_rows, width)
        return area[:, place.column : place.column + place.width].reshape(n_rows, *var.shape)

    def _known(self, rows: RowRange, cell: PlannedCell, vars: Iterable[Var]) -> Env:
        """What is known before any instruction runs: ports, attributes, parameters, constants."""
        env: Env = {}
        for index, var in enumerate(vars):
            match var.source:
                case Port(number=number):
                    env[index] = self._inputs(rows, cell.layout.inputs[number], var)
                case Attribute(is_float=is_float, column=column):
                    data = (self.plan.float_data if is_float else self.plan.int_data)[rows.kind]
                    part = data[rows.start : rows.end, column : column + var.size].reshape(rows.n, *var.shape)
                    env[index] = part.astype(self.dtype) if is_float else part
                case Weight(parameter=parameter):
                    env[index] = parameter.data[None]
                case Constant(data=data):
                    env[index] = data if isinstance(data, (int, float)) else self._constant(data)
        return env

    def _constant(self, data: Array) -> Array:
        """A constant array as a single row; ints stay ints, for they may be ids."""
        return (data if data.dtype.kind in "iu" else data.astype(self.dtype, copy=False))[None]

    def _run(self, frame: Frame, indices: Iterable[int]) -> None:
        """Run instructions, each into its place if it has one, and add the results to `frame.env`."""
        for index in indices:
            var = frame.vars[index]
            source = var.source
            assert isinstance(source, Instruction)
            op, args, static = source.op, [frame.env[a] for a in source.args], source.static
            if op.view:
                frame.env[index] = op.kernel(np, args[0], **static)
                continue
            out = frame.env[index] = self._out(frame, index)
            if index in frame.layout.joins:
                self._join(frame.layout.joins[index], args, out)
                continue
            if op.segments is not None:
                domain = frame.vars[source.args[1 if op.segments == "spread" else 0]].domain
                static = {**static, "segments": frame.rows.segments(domain)}
            if op.random:
                static = {**static, "random": self._randomness(frame.rows)}
            if self.precision == "bf16":
                for at in rounded_args(frame.vars, index):
                    args[at] = rounded(args[at])
            run_kernel(op, np, args, out, static)
            self._launches += 1

    def _out(self, frame: Frame, index: int) -> Array:
        """Where a value is made: in a place of its own, as part of a join, or anywhere."""
        if index in frame.layout.joins:
            return self._whole(frame, index)
        place = self._place(frame, index)
        if place is not None:
            return place
        var, source = frame.vars[index], frame.vars[index].source
        sums = isinstance(source, Instruction) and source.op.sums_rows
        return (np.zeros if sums else np.empty)((frame.n_rows(var.domain), *var.shape), self.dtype)

    def _place(self, frame: Frame, index: int) -> Array | None:
        if index in frame.layout.within:
            whole, part = frame.layout.within[index]
            return self._whole(frame, whole)[(slice(None), *part)]
        place: Array | None = frame.targets.get(index)
        return place

    def _whole(self, frame: Frame, index: int) -> Array:
        """The memory of a join, the same for all its parts; zero where it has none."""
        if index not in frame.wholes:
            var, place = frame.vars[index], self._place(frame, index)
            whole = np.empty((frame.n_rows(var.domain), *var.shape), self.dtype) if place is None else place
            if not frame.layout.joins[index].covered:
                whole[...] = 0
                self._launches += 1
            frame.wholes[index] = whole
        held: Array = frame.wholes[index]
        return held

    def _join(self, join: Join, parts: Sequence[Array], out: Array) -> None:
        """Copy the parts of a join that were not made in it."""
        for number in join.copied:
            place = out[(slice(None), *join.indices[number])]
            place[...] = parts[number]
            self._copied += place.nbytes
        self._launches += bool(join.copied)

    def _randomness(self, rows: RowRange) -> Randomness:
        """Where the nodes in these rows draw from: keyed by their instances, as the caller numbers them."""
        graph, first, owner = self.plan.graph, self.plan.type_ptr[rows.kind], self.cells.cells[rows.kind].type.owner
        nodes = self.plan.node_at[first + rows.start : first + rows.end]
        keys = self.random.key[np.searchsorted(graph.instance_ptr, nodes, side="right") - 1]
        training = self.random.training if owner is None else owner.training
        return Randomness(self.random.seed, self.random.step, keys, training)

    # Moving values between nodes.

    def _scatter(self, frame: Frame, number: int, value: Array, var: Var) -> None:
        """Write an output of a batch to all its destinations."""
        rows = frame.rows
        ptr, dest, adds = rows.destinations(number)
        if not dest.size:
            return
        flat = np.broadcast_to(value, (rows.n, *var.shape)).reshape(rows.n, var.size)
        counts = np.diff(ptr)
        flat = flat if (counts == 1).all() else np.repeat(flat, counts, axis=0)
        window = self._window(var.size)
        if adds.any():
            window[dest[~adds]] = flat[~adds]
            add_at(window, dest[adds], flat[adds])
        else:
            window[dest] = flat
        self._moved(dest.size * var.size)

    def _gather(self, frame: Frame, number: int, index: int) -> Array:
        """Sum the gradients at all destinations of an output of a batch."""
        var, out = frame.vars[index], self._out(frame, index)
        ptr, dest, _ = frame.rows.destinations(number)
        if not dest.size:
            out[...] = 0
            return out
        parts = self._window(var.size)[dest + self.plan.mirror].reshape(dest.size, *var.shape)
        if (np.diff(ptr) == 1).all():
            out[...] = parts
        else:
            segment_sum(np, parts, out, Segments(np, ptr - ptr[0]))
        self._moved(parts.size)
        return out

    def _write(self, place: Array, value: Array | None) -> None:
        """Copy a value to its place, zero for None."""
        place[...] = 0 if value is None else value
        self._moved(place.size)

    def _moved(self, elements: int) -> None:
        self._launches += 1
        self._copied += elements * self._buffer.itemsize
