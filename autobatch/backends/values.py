"""Manage the memory of runs and the values in it: rows of batches, views of ports, outputs and residuals.

A run takes memory from a pool, which keeps it from run to run: a buffer for the values of its plan, and the state of
backward.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from autobatch.backends.options import Options
from autobatch.devices.store import Store
from autobatch.graph.marks import Marks
from autobatch.ir.layout import Place
from autobatch.ir.program import NODE, Instruction, Var
from autobatch.ops.randomness import Randomness
from autobatch.ops.variadic import Segments
from autobatch.params.sparse_rows import Gradient, Rows
from autobatch.params.stacks import Stack, Targets
from autobatch.plan.plan import Batch, Plan, PlannedCell, PlannedTypes

Array: TypeAlias = Any  # an array of the device, or of NumPy
Env: TypeAlias = dict[int, Any]
RUNS = 8  # memory that was too large for this many consecutive runs is freed
SPARE, SMALL = 4, 2**20  # memory is too large above SPARE times the bytes that a run needs, plus SMALL bytes


class Activity:
    """The active nodes of a plan: those that a loss in some slots depends on.

    Other nodes get no gradient, even if theirs would not be finite.

    Attributes:
        is_whole: whether all nodes are active.

    Cost: that of `Marks.mark`.
    """

    def __init__(self, plan: Plan, cells: PlannedTypes, slots: Collection[int]) -> None:
        self.is_whole = [*slots] == [plan.whole_slot]
        if self.is_whole:
            return
        marks = Marks()
        marks.mark(plan.graph, cells.flows, len(plan.slot_rows), slots)
        self.is_whole, self._type_ptr = marks.is_whole, plan.type_ptr
        self._active = np.zeros(0, bool) if marks.is_whole else marks.nodes[plan.node_at]

    def rows(self, type_id: int, start: int, end: int) -> NDArray[Any]:
        """Return which of the rows start:end of a type are active: bool[end - start]."""
        if self.is_whole:
            return np.ones(end - start, bool)
        first = int(self._type_ptr[type_id])
        return self._active[first + start : first + end]


class RowRange:
    """The rows of a batch, or all rows of a type."""

    def __init__(self, plan: Plan, batch: Batch, store: Store) -> None:
        self.plan, (self.type_id, self.start, self.end, self.bases), self.store = plan, batch, store
        self.n = self.end - self.start
        self.block = plan.first_block(self.type_id)

    def of(self, domain: int) -> tuple[int, int]:
        """Return the start and end (exclusive) of these rows in the block of a domain."""
        if domain == NODE:
            return self.start, self.end
        ptr = self.plan.segments_of(self.type_id, domain)
        return int(ptr[self.start]), int(ptr[self.end])

    def count(self, domain: int) -> int:
        """Return the number of rows in the block of a domain."""
        start, end = self.of(domain)
        return end - start

    def segments(self, domain: int) -> Segments:
        """Return the edges of each node."""
        ptr = self.plan.segments_of(self.type_id, domain)[self.start : self.end + 1]
        return Segments(ptr - ptr[0], self.store.put)

    def _rows_of_argument(self, var: Var) -> Segments:
        """Return the edges of each node; without edges, a value has one row per element of its first axis."""
        if var.domain >= 0:
            return self.segments(var.domain)
        return Segments(np.arange(self.n + 1) * var.shape[0], self.store.put)

    def select(self, per_node: Array, domain: int) -> Array:
        """Return the numbers of the rows of a domain whose nodes have `per_node` set."""
        if domain != NODE:
            ptr = self.plan.segments_of(self.type_id, domain)[self.start : self.end + 1]
            per_node = np.repeat(per_node, np.diff(ptr))
        return self.store.put(np.flatnonzero(per_node))

    def randomness(self, source: Randomness, owner: Any) -> Randomness:
        """Return the randomness for the nodes in these rows, with the key of each node's instance.

        Args:
            source: the randomness of the mini-batch, with the keys that the caller gave to its instances.
            owner: the module whose mode turns dropout on or off; None for the mode of `source`.
        """
        first = self.plan.type_ptr[self.type_id]
        nodes = self.plan.node_at[first + self.start : first + self.end]
        keys = np.broadcast_to(source.key, self.plan.graph.n_instances)[
            np.searchsorted(self.plan.graph.instance_ptr, nodes, side="right") - 1
        ]
        training = source.training if owner is None else owner.training
        return Randomness(source.seed, source.step, self.store.put(keys), training)

    def static(self, vars: Sequence[Var], index: int, source: Randomness, owner: Any) -> dict[str, Any]:
        """Return the static arguments of an instruction, with the edges and randomness of these rows that its op needs.

        Args:
            vars: the values of the cell.
            index: the number of the value that the instruction computes.
            source, owner: as for `randomness`.
        """
        instruction = vars[index].source
        assert isinstance(instruction, Instruction)
        op, static = instruction.op, dict(instruction.static)
        if op.segments == "move":
            static["segments"] = tuple(self._rows_of_argument(vars[arg]) for arg in instruction.args)
        elif op.segments == "choose":
            domains = [vars[arg].domain for arg in instruction.args]
            static["segments"] = [self.segments(domain) if domain >= 0 else None for domain in domains]
        elif op.segments == "pairs":
            static["segments"] = tuple(self.segments(group) for group in static["of"])
        elif op.segments is not None:
            static["segments"] = self.segments(vars[instruction.args[1 if op.segments == "spread" else 0]].domain)
        if op.random:
            static["random"] = self.randomness(source, owner)
            if vars[index].domain >= 0:
                static["random"].edges = self.segments(vars[index].domain)
        return static

    def destinations(self, number: int) -> tuple[Array, Array, Array]:
        """Return pointers to the destinations of each row of an output; the destinations; whether each is added to."""
        first, end = self.plan.output_rows(self.type_id, number, self.start, self.end)
        ptr = self.plan.dest_ptr[first : end + 1]
        return ptr, self.plan.dest[ptr[0] : ptr[-1]], self.plan.adds[ptr[0] : ptr[-1]]


def constant_row(data: Any, dtype: np.dtype[Any]) -> Any:
    """Return a constant as a single row on the host; Python numbers are returned unchanged.

    Ints stay ints, because they may be ids; floats are converted to `dtype`.
    """
    if isinstance(data, (int, float)) and not isinstance(data, np.generic):
        return data
    return (data if data.dtype.kind in "iu" else data.astype(dtype, copy=False))[None]


class Values:
    """The values of a plan in a buffer.

    Args:
        buffer: an array of the store, with at least as many elements as the plan needs.
    """

    def __init__(self, plan: Plan, cells: PlannedTypes, buffer: Array, store: Store) -> None:
        self.plan, self.cells, self.buffer, self.store = plan, cells, buffer, store
        self._windows: dict[int, Array] = {}

    def window(self, width: int) -> Array:
        """View the buffer as overlapping rows: row k is elements k:k + width."""
        if width not in self._windows:
            # A destination is an offset in elements, so it is also the number of its row, whatever block it lies in.
            step = self.buffer.itemsize
            shape = (max(self.buffer.size - width + 1, 0), width)
            self._windows[width] = self.store.xp.lib.stride_tricks.as_strided(self.buffer, shape, (step, step))
        return self._windows[width]

    def slot(self, slot: int, shift: int = 0) -> Array:
        """View the values of a slot, `(rows, *shape)`; or their gradients, if shifted by `Plan.gradient_offset`."""
        shape, rows = self.cells.slot_shapes[slot], int(self.plan.slot_rows[slot])
        first = int(self.plan.slot_base[slot]) + shift
        return self.buffer[first : first + rows * self.cells.slot_widths[slot]].reshape(rows, *shape)

    def outputs(self) -> list[Any]:
        """Copy the values of each slot to new arrays on the device of the buffer."""
        plan, cells, buffer = self.plan, self.cells, self.buffer
        sizes = zip(plan.slot_base.tolist(), plan.slot_rows.tolist(), cells.slot_widths, cells.slot_shapes, strict=True)
        return [
            buffer[first : first + rows * width].reshape(rows, *shape).copy() for first, rows, width, shape in sizes
        ]

    def begin_read(self, slots: Sequence[int], most: int | None = None) -> Callable[[], list[Any]] | None:
        """Begin to copy the values of some slots to the host, with those between them, in one piece.

        Returns:
            A function that waits for the NumPy arrays; None if the piece has more than `most` elements.
        """
        bases, n_rows, cells = self.plan.slot_base.tolist(), self.plan.slot_rows.tolist(), self.cells
        places, start, end = list[tuple[int, int, int, int]](), self.buffer.size, 0
        for slot in slots:
            first, rows, width = bases[slot], n_rows[slot], cells.slot_widths[slot]
            places.append((slot, first, rows, width))
            start, end = min(start, first), max(end, first + rows * width)
        if most is not None and end - start > most:
            return None
        wait = self.store.copy_out(self.buffer[start:end]) if start < end else lambda: np.zeros(0, self.buffer.dtype)

        def read() -> list[Any]:
            piece = wait()
            return [
                piece[first - start : first - start + rows * width].reshape(rows, *cells.slot_shapes[slot])
                for slot, first, rows, width in places
            ]

        return read

    def inputs(self, rows: RowRange, place: Place, var: Var, shift: int = 0) -> Array:
        """View a value in the inputs, `(rows, *shape)`; or its gradient, if shifted by `Plan.gradient_offset`."""
        number = place.domain - NODE
        width = self.cells.cells[rows.type_id].layout.input_width[number]
        return self._columns(rows.bases[number] + shift, rows.count(place.domain), width, place, var)

    def port_gradients(self, rows: RowRange) -> list[Array]:
        """View the gradients of all ports."""
        cell = self.cells.cells[rows.type_id]
        values = [cell.program.vars[index] for index in cell.program.ports]
        return [
            self.inputs(rows, p, v, self.plan.gradient_offset) for p, v in zip(cell.layout.inputs, values, strict=True)
        ]

    def output_gradients(self, type_id: int, activity: Activity) -> Any:
        """Return the gradients of the first output of all nodes of a type, `[rows, size]`, summed on the host."""
        program, n_rows = self.cells.cells[type_id].program, int(np.diff(self.plan.type_ptr[type_id : type_id + 2])[0])
        var = program.vars[program.outputs[0]]
        rows = RowRange(self.plan, Batch(type_id, 0, n_rows, ()), self.store)
        ptr, dest, _ = rows.destinations(0)
        found = np.zeros((ptr.size - 1, var.size), self.buffer.dtype)
        if dest.size:
            parts = self.store.get(self.window(var.size)[self.store.put(dest + self.plan.gradient_offset)])
            # Not `found[...] += parts`, which adds only one of several destinations of a row.
            np.add.at(found, np.repeat(np.arange(ptr.size - 1), np.diff(ptr)), parts)
        found[self.store.get(rows.select(~activity.rows(type_id, 0, n_rows), max(var.domain, NODE)))] = 0
        return found

    def clear_inactive(self, rows: RowRange, active: Array) -> None:
        """Set the gradients of the ports to zero in rows that are not active."""
        layout = self.cells.cells[rows.type_id].layout
        for port, place in zip(self.port_gradients(rows), layout.inputs, strict=True):
            port[rows.select(~active, place.domain)] = 0

    def residuals(self, rows: RowRange, cell: PlannedCell) -> Env:
        """View the values that forward leaves for backward."""
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


class Memory:
    """The memory of one run.

    Attributes:
        buffer: the values of the plan, possibly with spare elements.
        gradients: the gradients of parameters on the host, while the values are on a device.
        scratch_bytes: bytes of all other memory.
        allocations: the number of arrays that were allocated so far.
    """

    def __init__(self, store: Store) -> None:
        self.store, self.allocations, self.scratch_bytes = store, 0, 0
        self.buffer: Any = store.empty(0, np.dtype(np.float32))
        self.gradients = self.buffer
        self._targets: Targets | None = None

    @property
    def n_bytes(self) -> int:
        return int(self.buffer.nbytes) + int(self.gradients.nbytes) + self.scratch_bytes

    def reserve(self, size: int, dtype: np.dtype[Any], max_bytes: int | None) -> None:
        """Make room for `size` elements; a buffer that grows does so by at least a quarter, within the limit."""
        # Without `max_bytes`, the limit is at least the current size, so the buffer only grows. With it, a buffer that
        # an earlier plan left is replaced if it exceeds the limit.
        is_right = self.buffer.dtype == dtype
        held = self.buffer.size if is_right else 0
        limit = max(size, held * 5 // 4 if max_bytes is None else max_bytes // dtype.itemsize)
        if not is_right or not size <= held <= limit:
            self.buffer = self.store.empty(0, dtype)  # free the old buffer before the new one is allocated
            self.buffer = self.store.empty(max(size, min(held * 5 // 4, limit)), dtype)
            self.allocations += 1

    def targets(self, gradients: Mapping[int, Gradient], stacks: Sequence[Stack]) -> Targets:
        """Return the targets that a run adds gradients to; those of the last run are reused for the same gradients."""
        if self._targets is None or not self._targets.restart(gradients, stacks):
            self._targets = Targets(gradients, stacks)
        return self._targets

    @contextmanager
    def on_device(self, targets: Mapping[int, Gradient], options: Options) -> Iterator[Mapping[int, Gradient]]:
        """Yield arrays on the device in place of targets on the host; add them to the targets when the context ends.

        They are contiguous in `gradients`, and zero at first; a single copy moves them to the host. `Rows` are yielded
        unchanged.
        """
        arrays = {key: target for key, target in targets.items() if not isinstance(target, Rows)}
        size = sum(array.size for array in arrays.values())
        self.gradients = self._reserved(self.gradients, size, options.dtype)
        zeros, found, first = self.gradients[:size], dict(targets), 0
        zeros[...] = 0
        for key, array in arrays.items():
            found[key] = zeros[first : first + array.size].reshape(array.shape)
            first += array.size
        yield found
        added, first = self.store.get(zeros), 0
        for array in arrays.values():
            array += added[first : first + array.size].reshape(array.shape)
            first += array.size

    def _reserved(self, array: Any, size: int, dtype: np.dtype[Any]) -> Any:
        """Return the array if it is large enough, else a new one."""
        if array.dtype == dtype and array.size >= size:
            return array
        self.allocations += 1
        return self.store.empty(size * 5 // 4, dtype)


M = TypeVar("M", bound=Memory)


class MemoryPool(Generic[M]):
    """A pool of memory that no run uses.

    Frees memory that is far larger than several consecutive runs have needed.

    Args:
        make: makes memory if the pool is empty.
    """

    def __init__(self, make: Callable[[], M]) -> None:
        self._make = make
        self._free: list[M] = []
        self._n_small = 0

    @property
    def n_bytes(self) -> int:
        """Return the bytes of unused memory."""
        return sum(memory.n_bytes for memory in self._free)

    def take(self) -> M:
        """Take the memory that was returned last, or make some if the pool is empty."""
        return self._free.pop() if self._free else self._make()

    def give_back(self, memory: M, needed: int) -> None:
        """Return memory to the pool; the run needed `needed` bytes of it."""
        self._free.append(memory)
        limit = SPARE * needed + SMALL
        self._n_small = self._n_small + 1 if memory.buffer.nbytes > limit else 0
        if self._n_small == RUNS:
            from autobatch.system.freeing import give_back_freed

            self._n_small = 0
            self._free = [memory for memory in self._free if memory.buffer.nbytes <= limit]
            give_back_freed()
