"""The reference backend: cells interpreted op by op, in plain array code.

Each batch reads contiguous rows of its type's blocks, runs the cell's instructions on arrays `(rows, *shape)`, and
scatters the outputs to their destinations. Backward runs the batches in reverse: the gradients of the outputs are
gathered from the same destinations, those of the ports written to the mirrored rows. Gradients of parameters are
computed last, once per type over all its rows; those of tables are the rows that were looked up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch._jit import compiled
from autobatch.autodiff import Scatter
from autobatch.executor import Counts
from autobatch.ops.define import run_kernel
from autobatch.ops.variadic import Segments, segment_sum
from autobatch.plan import Place, Plan, PlannedCell, PlannedTypes
from autobatch.program import NODE, SHARED, Attribute, Constant, Instruction, Port, Var, Weight
from autobatch.randomness import Randomness
from autobatch.rows import Gradient, Rows

Array = NDArray[Any]
Env = dict[int, Any]


class Reference:
    """Runs plans with NumPy. Not thread-safe: one instance runs one plan at a time.

    Args:
        poison: fill the buffer with NaN before each run, so that a read of what was never written shows.
    """

    name = "reference"

    def __init__(self, poison: bool = False) -> None:
        self.poison = poison
        self._buffer: Array = np.empty(0, np.float32)
        self._windows: dict[int, Array] = {}
        self._launches = self._copied = self._allocations = 0

    def counts(self) -> Counts:
        """What was run since `forward` was last called."""
        return Counts(self._launches, self._copied, self._allocations)

    def forward(self, plan: Plan, cells: PlannedTypes, dtype: np.dtype[Any], random: Randomness) -> list[Array]:
        """Compute all values; return what the user asked for, per slot, as copies."""
        self.plan, self.cells, self.dtype, self.random = plan, cells, dtype, random
        self._launches = self._copied = self._allocations = 0
        self._reserve(plan.size, dtype)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            for kind, start, end in plan.batches:
                self._forward_batch(kind, start, end)
        return [self._slot(slot).copy() for slot in range(len(cells.slot_shapes))]

    def backward(self, seeds: Mapping[int, Array], gradients: Mapping[int, Gradient]) -> None:
        """Differentiate the last run, starting from the gradients of slots; add to those of the parameters."""
        plan = self.plan
        active = active_nodes(plan, seeds)
        for slot in range(len(self.cells.slot_shapes)):
            self._slot(slot, plan.mirror)[...] = seeds.get(slot, 0)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            for kind, start, end in reversed(plan.batches):
                first = plan.type_ptr[kind]
                self._backward_batch(kind, start, end, active[plan.node_at[first + start : first + end]])
            for kind in range(len(self.cells.cells)):
                rows = active[plan.node_at[plan.type_ptr[kind] : plan.type_ptr[kind + 1]]]
                if rows.any():
                    self._weight_gradients(kind, rows, gradients)

    # The buffer and its views.

    def _reserve(self, size: int, dtype: np.dtype[Any]) -> None:
        if self._buffer.size < size or self._buffer.dtype != dtype:
            self._buffer = np.empty(max(size, self._buffer.size * 5 // 4), dtype)
            self._windows = {}
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

    def _view(
        self, rows: RowRange, place: Place, var: Var, base: Any, widths: tuple[int, ...], shift: int = 0
    ) -> Array:
        """The columns of one value in a batch's rows, `(rows, *shape)`."""
        number = place.domain - NODE
        width, (start, end) = widths[number], rows.of(place.domain)
        first = int(base[rows.block + number]) + shift
        area = self._buffer[first + start * width : first + end * width].reshape(end - start, width)
        return area[:, place.column : place.column + place.width].reshape(end - start, *var.shape)

    def _port(self, rows: RowRange, cell: PlannedCell, number: int, shift: int = 0) -> Array:
        var = cell.type.program.vars[cell.type.program.ports[number]]
        return self._view(rows, cell.layout.inputs[number], var, self.plan.input_base, cell.layout.input_width, shift)

    def _saved(self, rows: RowRange, cell: PlannedCell) -> Env:
        if cell.derivative is None:
            return {}
        vars, layout = cell.derivative.vars, cell.layout
        return {
            i: self._view(rows, place, vars[i], self.plan.saved_base, layout.saved_width)
            for i, place in layout.saved.items()
        }

    # Batches.

    def _forward_batch(self, kind: int, start: int, end: int) -> None:
        cell, rows = self.cells.cells[kind], RowRange(self.plan, kind, start, end)
        program = cell.type.program
        env = self._known(rows, cell, program.vars)
        saved = self._saved(rows, cell)
        self._run(rows, program.vars, program.instructions, env, saved)
        for number, index in enumerate(program.outputs):
            self._scatter(rows, number, env[index], program.vars[index])

    def _backward_batch(self, kind: int, start: int, end: int, active: Array) -> None:
        cell, rows = self.cells.cells[kind], RowRange(self.plan, kind, start, end)
        derivative = cell.derivative
        assert derivative is not None, "backward follows a forward run in training"
        ports = [self._port(rows, cell, number, self.plan.mirror) for number in range(len(cell.layout.inputs))]
        if active.any() and (derivative.backward or derivative.parameters or derivative.tables or ports):
            saved = self._saved(rows, cell)
            env = self._known(rows, cell, derivative.vars) | saved
            for number, index in enumerate(derivative.incoming):
                env[index] = self._gather(rows, number, derivative.vars[index], saved.get(index))
            targets = {g: port for g, port in zip(derivative.ports, ports, strict=True) if g is not None} | saved
            self._run(rows, derivative.vars, derivative.backward, env, targets)
            self._write(ports, [None if g is None else env[g] for g in derivative.ports])
        if not active.all():
            for port, place in zip(ports, cell.layout.inputs, strict=True):
                port[~rows.spread(active, place.domain)] = 0

    def _weight_gradients(self, kind: int, active: Array, gradients: Mapping[int, Gradient]) -> None:
        """Run the weight stage of a type over all its rows that the loss depends on."""
        cell, rows = self.cells.cells[kind], RowRange(self.plan, kind, 0, active.size)
        derivative = cell.derivative
        assert derivative is not None, "backward follows a forward run in training"
        if not derivative.parameters and not derivative.tables:
            return
        env = self._known(rows, cell, derivative.vars) | self._saved(rows, cell)
        if not active.all():
            domains = {i: derivative.vars[i].domain for i in env}
            env = {i: x if domains[i] == SHARED else x[rows.spread(active, domains[i])] for i, x in env.items()}
        owners = {p: dense(gradients[id(derivative.parameter(p))]) for p, _ in derivative.parameters}
        targets = {g: owners[p][None] for p, g in derivative.parameters if g in derivative.accumulated}
        self._run(rows, derivative.vars, derivative.weights, env, targets)
        for p, g in derivative.parameters:
            if g not in targets:
                owners[p] += env[g][0]
        for p, scatters in derivative.tables:
            self._add_rows(env, scatters, gradients[id(derivative.parameter(p))])

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

    def _known(self, rows: RowRange, cell: PlannedCell, vars: Iterable[Var]) -> Env:
        """What is known before any instruction runs: ports, attributes, parameters, constants."""
        env: Env = {}
        for index, var in enumerate(vars):
            match var.source:
                case Port(number=number):
                    env[index] = self._port(rows, cell, number)
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

    def _run(self, rows: RowRange, vars: tuple[Var, ...], indices: Iterable[int], env: Env, targets: Env) -> None:
        """Run instructions, each into its target if it has one, and add the results to `env`."""
        for index in indices:
            var = vars[index]
            source = var.source
            assert isinstance(source, Instruction)
            op, args, static = source.op, [env[a] for a in source.args], source.static
            if op.view:
                env[index] = op.kernel(np, args[0], **static)
                continue
            out = targets.get(index)
            if out is None:
                n_rows = 1 if var.domain == SHARED else rows.count(var.domain)
                out = (np.zeros if op.sums_rows else np.empty)((n_rows, *var.shape), self.dtype)
            if op.segments is not None:
                domain = vars[source.args[1 if op.segments == "spread" else 0]].domain
                static = {**static, "segments": rows.segments(domain)}
            if op.random:
                static = {**static, "random": self._randomness(rows)}
            run_kernel(op, np, args, out, static)
            env[index] = out
            self._launches += 1
            self._copied += out.nbytes if op.copies else 0

    def _randomness(self, rows: RowRange) -> Randomness:
        """Where the nodes in these rows draw from: keyed by their instances."""
        graph, first, owner = self.plan.graph, self.plan.type_ptr[rows.kind], self.cells.cells[rows.kind].type.owner
        nodes = self.plan.node_at[first + rows.start : first + rows.end]
        keys = graph.keys[np.searchsorted(graph.instance_ptr, nodes, side="right") - 1]
        training = self.random.training if owner is None else owner.training
        return Randomness(self.random.seed, self.random.step, keys, training)

    # Moving values between nodes.

    def _scatter(self, rows: RowRange, number: int, value: Array, var: Var) -> None:
        """Write an output of a batch to all its destinations."""
        ptr, dest = rows.destinations(number)
        if not dest.size:
            return
        flat = np.broadcast_to(value, (rows.n, *var.shape)).reshape(rows.n, var.size)
        counts = np.diff(ptr)
        self._window(var.size)[dest] = flat if (counts == 1).all() else np.repeat(flat, counts, axis=0)
        self._moved(dest.size * var.size)

    def _gather(self, rows: RowRange, number: int, var: Var, out: Array | None) -> Array:
        """Sum the gradients at all destinations of an output of a batch."""
        ptr, dest = rows.destinations(number)
        out = np.empty((rows.n, *var.shape), self.dtype) if out is None else out
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

    def _write(self, places: Iterable[Array], values: Iterable[Array | None]) -> None:
        """Copy values to their places, zero for None; a value that was computed in its place stays."""
        for place, value in zip(places, values, strict=True):
            if value is None:
                place[...] = 0
            elif value is not place:
                place[...] = value
                self._moved(place.size)

    def _moved(self, elements: int) -> None:
        self._launches += 1
        self._copied += elements * self._buffer.itemsize


class RowRange:
    """A range of rows of one type: those of a batch, or all."""

    def __init__(self, plan: Plan, kind: int, start: int, end: int) -> None:
        self.plan, self.kind, self.start, self.end = plan, kind, start, end
        self.n = end - start
        self.block = plan.first_block(kind)

    def of(self, domain: int) -> tuple[int, int]:
        """First and end row in the block of a domain."""
        if domain == NODE:
            return self.start, self.end
        ptr = self.plan.segment_ptr[self.block + 1 + domain]
        return int(ptr[self.start]), int(ptr[self.end])

    def count(self, domain: int) -> int:
        """Rows in the block of a domain."""
        start, end = self.of(domain)
        return end - start

    def segments(self, domain: int) -> Segments:
        """The edges of each node."""
        ptr = self.plan.segment_ptr[self.block + 1 + domain][self.start : self.end + 1]
        return Segments(np, ptr - ptr[0])

    def spread(self, per_node: Array, domain: int) -> Array:
        """A flag per node as one per row of a domain."""
        return per_node if domain == NODE else per_node[self.segments(domain).rows]

    def destinations(self, number: int) -> tuple[Array, Array]:
        """The destinations of an output, and pointers to those of each row."""
        base = self.plan.dest_base[self.plan.tables.out_ptr[self.kind] + number]
        ptr = self.plan.dest_ptr[base + self.start : base + self.end + 1]
        return ptr, self.plan.dest[ptr[0] : ptr[-1]]


def dense(gradient: Gradient) -> Array:
    """A gradient that is an array, as one whose parameter is not read by lookup alone must be."""
    assert not isinstance(gradient, Rows), "only the parameters in row_parameters have Rows"
    return gradient


def active_nodes(plan: Plan, slots: Iterable[int]) -> Array:
    """Whether anything in `slots` depends on each node: bool[N]."""
    graph = plan.graph
    active = np.zeros(graph.n_nodes, bool)
    active[graph.out_node[np.isin(graph.out_slot, list(slots))]] = True
    spread_to_inputs(active, graph.edge_ptr, graph.edge_src)
    return active


@compiled
def spread_to_inputs(active: Array, edge_ptr: Array, edge_src: Array) -> None:
    """Mark everything that an active node reads, last node first."""
    for node in range(active.size - 1, -1, -1):
        if active[node]:
            for e in range(edge_ptr[node], edge_ptr[node + 1]):
                active[edge_src[e]] = True
