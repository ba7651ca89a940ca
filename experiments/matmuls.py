"""The matrix products of a planned mini-batch, run alone: the least that a step can take.

They are read from the plan and the compiled cells: the sizes and the order of a step, operands placed in memory as in
the plan (rows a block apart, outputs where they are written), the model's own weights, and the library that the cpu
backend chooses for each size. The memory is separate and full of random numbers, because kernels do not run.
Interpreted ops (a matrix per node) and products of parameters alone are left out.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch._native import call_steps, pack
from autobatch.arrays import address_of
from autobatch.backends.compiled import COMPILE
from autobatch.backends.cpu.compiled_cell import PRODUCT, gradient_type
from autobatch.backends.cpu.run import CompiledPlan
from autobatch.backends.cpu.step import BOUND_STEP, FUNCTIONS
from autobatch.backends.values import Activity, RowRange
from autobatch.blas.packed import NAME as PACKED
from autobatch.blas.packed import panel_words
from autobatch.blas.provider import Provider, describe_product
from autobatch.compiler.lowered import Area, Location
from autobatch.compiler.stage import StageProgram
from autobatch.compiler.statement import Outer, Product, Term
from autobatch.compiler.view import View
from autobatch.compiler.writer import SLOTS
from autobatch.devices.store import HOST
from autobatch.ir.program import NODE, Weight
from autobatch.params.sparse_rows import Gradient
from autobatch.params.stacks import Targets
from autobatch.plan.plan import Batch, PlannedCell

Array = NDArray[Any]
ONCE = -1  # the type of what a stage does once for all rows, before or after its batches
TABLE, GRADIENT = list(SLOTS).index("table"), len(SLOTS)  # slots of a product's memory


class Part(NamedTuple):
    """A part of a step: a stage ("forward", "backward" or "weights") of a type, or ONCE of all types."""

    stage: str
    kind: int


class Matmul(NamedTuple):
    """A product: out = a @ b, or out += a @ b."""

    part: Part
    a: Array
    b: Array
    out: Array
    adds: bool
    provider: Provider

    @property
    def flops(self) -> int:
        """Return the number of multiplications and additions."""
        (m, k), n = self.a.shape, self.b.shape[1]
        flops: int = 2 * m * n * k
        return flops

    @property
    def is_packed(self) -> bool:
        """Return whether it is our own product of rows with a matrix that is packed once per run."""
        return self.provider.name == PACKED and self.part.stage != "weights"


class Stages:
    """The stages of planned cells, each compiled once, except for their kernels, whose source stays text."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], tuple[PlannedCell, StageProgram]] = {}

    def of(self, cell: PlannedCell, name: str) -> StageProgram:
        """Return the stage "forward", "backward" or "weights" of a cell."""
        if (id(cell), name) not in self._known:
            self._known[id(cell), name] = cell, COMPILE[name](cell)
        return self._known[id(cell), name][1]


class Matmuls:
    """The products of one mini-batch, for repeated runs.

    Args:
        listed: the products in the order of a step; see `list_matmuls`.
    """

    def __init__(self, listed: Sequence[Matmul]) -> None:
        self.listed = [one for one in listed if one.flops]
        dtype = self.listed[0].a.dtype.name if self.listed else "float32"
        self._all_native = all(dtype in one.provider.addresses for one in self.listed)
        self._panels: dict[tuple[object, ...], Array] = {}
        self._packed: defaultdict[str, list[tuple[Array, Array]]] = defaultdict(list)  # by stage
        bound = [self._bind(one, dtype) for one in self.listed] if self._all_native else []
        self._alive = [arrays for _, *arrays in bound]
        self._addresses = np.array([(f, *map(address_of, arrays[:2])) for f, *arrays in bound], BOUND_STEP)
        self._calls = np.array([(k, 0) for k in range(len(bound))], np.int64).reshape(-1, 2)
        parts = [one.part for one in self.listed]
        starts = [k for k, part in enumerate(parts) if k == 0 or part != parts[k - 1]]
        self._runs = [(parts[start], start, end) for start, end in itertools.pairwise([*starts, len(parts)])]

    def _bind(self, one: Matmul, dtype: str) -> tuple[Any, ...]:
        """Return the address of the function that multiplies, its memory, its descriptor and the fields of a tile.

        The array in the first slot begins at address zero, so that operands are found by their addresses.
        """
        product, size = describe_product(one.a, one.b, one.out), one.a.itemsize
        memory, fields = np.zeros(GRADIENT + 3, np.int64), np.array([0, product.m, 0])
        memory[TABLE] = address_of(fields)
        if product.a_flipped:
            descriptor = np.zeros((), gradient_type(1))
            descriptor[["m", "n_strips"]], descriptor["gradients"] = (product.m, 1), GRADIENT
            descriptor["b"] = 0, 0, product.b, product.b_step
            memory[GRADIENT:], fields[1] = (product.out, product.out_step, 1), product.k
            function = "add_outer"
        else:
            descriptor = np.zeros((), PRODUCT)
            descriptor[["beta", "inner"]] = one.adds, product.k
            descriptor["out"] = 0, 0, product.out, product.out_step
            descriptor["matrix"] = product.b_flipped, product.b, product.b_step
            function = "multiply_by_library"
        if one.is_packed:
            descriptor["matrix"], function = (0, address_of(self._pack(one)), 0), "multiply_by_panels"
        descriptor["a"] = 0, 0, product.a, product.a_step
        descriptor[["n_fields", "rows", "n", "itemsize"]] = len(fields), 1, product.n, size
        descriptor["routine"] = one.provider.addresses[dtype]
        return FUNCTIONS[function], memory, descriptor, fields

    def _pack(self, one: Matmul) -> Array:
        """Return the packed matrix; each stage packs it once."""
        key = one.part.stage, address_of(one.b), one.b.shape, one.b.strides
        if key not in self._panels:
            self._panels[key] = np.empty(panel_words(len(one.b), one.b.shape[1], False), np.uint32)
            self._packed[one.part.stage].append((one.b, self._panels[key]))
        return self._panels[key]

    def flops(self) -> dict[Part, int]:
        """Return the number of multiplications and additions of each part."""
        total: defaultdict[Part, int] = defaultdict(int)
        for one in self.listed:
            total[one.part] += one.flops
        return dict(total)

    def run(self) -> None:
        """Run all of them, in order."""
        for stage in self._packed:
            self._pack_all(stage)
        self._run(0, len(self.listed))

    def time_parts(self) -> dict[Part, float]:
        """Run all of them, in order. Return the seconds of each part; packing counts for the part ONCE of a stage."""
        total: defaultdict[Part, float] = defaultdict(float)
        for stage in self._packed:
            began = perf_counter()
            self._pack_all(stage)
            total[Part(stage, ONCE)] += perf_counter() - began
        for part, first, end in self._runs:
            began = perf_counter()
            self._run(first, end)
            total[part] += perf_counter() - began
        return dict(total)

    def _pack_all(self, stage: str) -> None:
        for matrix, panels in self._packed[stage]:
            pack(matrix, panels, False)

    def _run(self, first: int, end: int) -> None:
        if self._all_native:
            call_steps(self._addresses, self._calls, first, end)
            return
        for one in self.listed[first:end]:
            one.provider.multiply(one.a, one.b, one.out, accumulate=one.adds)


class Memory:
    """Memory for the products of plans, one plan at a time: full of random numbers, and grown on demand."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._rng = np.random.default_rng(0)
        self._areas: dict[object, Array] = {}
        self.dtype = dtype

    def take(self, area: object, size: int) -> Array:
        """Return the first `size` elements of an area."""
        if area not in self._areas or self._areas[area].size < size:
            self._areas[area] = self.draw((size,))
        return self._areas[area][:size]

    def draw(self, shape: tuple[int, ...]) -> Array:
        """Return an array of random numbers that nothing else uses."""
        return self._rng.uniform(-0.5, 0.5, shape).astype(self.dtype)


def list_matmuls(
    executable: CompiledPlan, stages: Stages, memory: Memory, gradients: dict[int, Gradient]
) -> Iterator[Matmul]:
    """List the products of a mini-batch: those of its forward pass and, in training, of its backward pass and weights.

    Args:
        executable: what ran.
        stages: the stages of its cells.
        memory: memory for the operands.
        gradients: by `id` of each trainable parameter, arrays that the products of the weights are added to.

    Cost: some microseconds per product.
    """
    plan, cells = executable.plan, executable.cells
    lister = _Lister(executable, stages, memory)
    yield from lister.stage("forward", plan.batches)
    if not cells.training:
        return
    activity = Activity(plan, cells, range(len(cells.slot_shapes)))
    in_use = [batch for batch in plan.batches if activity.rows(batch.type_id, batch.start, batch.end).any()]
    yield from lister.stage("backward", in_use[::-1])
    targets = Targets(gradients, cells.stacks).arrays
    for kind in range(len(cells.cells)):
        active = activity.rows(kind, 0, int(plan.type_ptr[kind + 1] - plan.type_ptr[kind]))
        if active.size and active.all():  # otherwise the interpreter computes them
            yield from lister.weights(kind, targets)


class _Lister:
    """Lists products, with operands in one memory."""

    def __init__(self, executable: CompiledPlan, stages: Stages, memory: Memory) -> None:
        self.plan, self.cells, self.chooser = executable.plan, executable.cells, executable.shared.chooser
        self.stages, self.memory = stages, memory
        plan, first = self.plan, self.cells.tables.block_ptr[:-1]
        self._mean_rows = executable.tables.mean_rows[first]
        self.buffer = memory.take("buffer", plan.size)
        kinds = plan.schedule.batch_type
        self._kinds = np.unique(kinds).tolist()
        self._matrices: dict[tuple[int, int], Array] = {}
        self._copies: dict[tuple[int, tuple[int, ...]], Array] = {}

    def stage(self, name: str, batches: Iterable[Batch]) -> Iterator[Matmul]:
        """List the products of a stage: before, in and after its batches."""
        apart = [kind for kind in self._kinds if self._mean_rows[kind, 1]]  # types with steps outside batches
        for kind in apart:
            stage = self.stages.of(self.cells.cells[kind], name)
            yield from self._steps(Part(name, ONCE), stage, self._all_rows(kind), 0, stage.n_before)
        for batch in batches:
            stage = self.stages.of(self.cells.cells[batch.type_id], name)
            first, last = 0, len(stage.steps)
            if batch.type_id in apart:
                first, last = stage.n_before, last - stage.n_after
            yield from self._steps(Part(name, batch.type_id), stage, RowRange(self.plan, batch, HOST), first, last)
        for kind in apart:
            stage = self.stages.of(self.cells.cells[kind], name)
            last = len(stage.steps)
            yield from self._steps(Part(name, ONCE), stage, self._all_rows(kind), last - stage.n_after, last)

    def weights(self, kind: int, targets: dict[int, Gradient]) -> Iterator[Matmul]:
        """List the products that are gradients of weights, over all rows of a type."""
        cell, rows = self.cells.cells[kind], self._all_rows(kind)
        stage, derivative = self.stages.of(cell, "weights"), cell.derivative
        assert derivative is not None, "there are gradients in training only"
        for step in stage.steps:
            if not isinstance(step, Outer):
                continue
            x, y = (
                self._place(rows, cell, None, stage.lowered.locations[view.value], view.offset, view.size, step.domain)
                for view in (step.left, step.right)
            )
            target = targets[derivative.keys[step.parameter]]
            assert isinstance(target, np.ndarray), "what is no sum of rows of a table has a whole gradient"
            provider = self.chooser.choose(x.shape[1], y.shape[1], len(x), x.dtype.name, a_flipped=True)
            yield Matmul(Part("weights", kind), x.T, y, target, True, provider)

    def _steps(self, part: Part, stage: StageProgram, rows: RowRange, first: int, last: int) -> Iterator[Matmul]:
        cell, all_rows = self.cells.cells[rows.type_id], self._all_rows(rows.type_id)
        of_nodes = self._mean_rows[rows.type_id, 1 if part.kind == ONCE else 0] / all_rows.count(NODE)
        for step in stage.steps[first:last]:
            if not isinstance(step, Product):
                continue
            sizes = stage.lowered.sizes
            out = self._values(rows, cell, stage, step.target, 0, sizes[step.target], step.domain)
            for at, term in enumerate(step.terms):
                matrix = self._matrix(stage, term)
                a = self._values(rows, cell, stage, term.rows.value, term.rows.offset, len(matrix), step.domain)
                typical = max(int(all_rows.count(step.domain) * of_nodes), 1)
                provider = self.chooser.choose(typical, matrix.shape[1], len(matrix), matrix.dtype.name)
                if provider.name != PACKED and term.transposed:
                    matrix = self._side_by_side(matrix)
                yield Matmul(part, a, matrix, out, step.adds or at > 0, provider)

    def _all_rows(self, kind: int) -> RowRange:
        n_rows = int(self.plan.type_ptr[kind + 1] - self.plan.type_ptr[kind])
        return RowRange(self.plan, Batch(kind, 0, n_rows, self.plan.type_bases[kind]), HOST)

    def _matrix(self, stage: StageProgram, term: Term) -> Array:
        """Return a matrix that rows are multiplied by: a parameter in place, or random numbers."""
        key = id(stage), term.weight
        if key not in self._matrices:
            var = stage.lowered.vars[term.weight]
            found = var.source.parameter.data if isinstance(var.source, Weight) else self.memory.draw(var.shape)
            self._matrices[key] = found
        matrix = self._matrices[key]
        return matrix.T if term.transposed else matrix

    def _side_by_side(self, matrix: Array) -> Array:
        """Return a contiguous copy of a transpose, as libraries need it."""
        key = address_of(matrix), matrix.shape
        if key not in self._copies:
            self._copies[key] = np.ascontiguousarray(matrix)
        return self._copies[key]

    def _values(
        self, rows: RowRange, cell: PlannedCell, stage: StageProgram, value: int, offset: int, width: int, domain: int
    ) -> Array:
        """Return elements of a stage's value in some rows: `(rows, width)`."""
        location, view = stage.storage.locate(View(value, offset, (width,), (1,)))
        return self._place(rows, cell, stage, location, view.offset, width, domain)

    def _place(
        self, rows: RowRange, cell: PlannedCell, stage: StageProgram | None, location: Location | None, offset: int,
        width: int, domain: int,
    ) -> Array:  # fmt: skip
        """Return columns of an area in some rows, placed as in the plan; without a location, contiguous rows."""
        n_rows, (first_row, _), number = rows.count(domain), rows.of(domain), domain - NODE
        step, start, column, memory = width, 0, 0, self.buffer
        match location:
            case Location(Area.INPUTS | Area.GRADIENTS as area, _, column):
                step = cell.layout.input_width[number]
                start = rows.bases[number] + (self.plan.gradient_offset if area is Area.GRADIENTS else 0)
            case Location(Area.SAVED, _, column):
                step = cell.layout.saved_width[number]
                start = int(self.plan.saved_base[rows.block + number]) + first_row * step
            case Location(Area.PERSISTENT, _, column) if stage is not None:
                step = stage.storage.persistent_width
                memory = self.memory.take((rows.type_id, Area.PERSISTENT), (first_row + n_rows) * step)
                start = first_row * step
            case Location(Area.BATCH, _, column) if stage is not None:
                step = stage.storage.batch_width[domain]
                memory = self.memory.take((Area.BATCH, number), n_rows * step)
            case _:
                memory, offset = self.memory.take("own", n_rows * step), 0
        first, itemsize = start + column + offset, memory.itemsize
        if not n_rows or not width:
            return np.empty((n_rows, width), memory.dtype)
        assert 0 <= first <= memory.size - (n_rows - 1) * step - width, "the rows lie in the memory"
        return np.ndarray((n_rows, width), memory.dtype, memory, first * itemsize, (step * itemsize, itemsize))
