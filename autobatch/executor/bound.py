"""The steps of a stage bound to the arrays of one run: calls that take nothing but the number of a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autobatch._jit import compiled
from autobatch.blas.calling import call_float32, call_float64
from autobatch.blas.product import describe_product
from autobatch.executor.reference import RowRange
from autobatch.kernels.fusing import Kernel
from autobatch.kernels.loop import Alone, Product, Term
from autobatch.kernels.lowering import Home
from autobatch.kernels.source import ARRAYS, letter_of
from autobatch.kernels.stage import Stage, compile_backward, compile_forward
from autobatch.kernels.support import transpose
from autobatch.kernels.view import View
from autobatch.ops.define import run_kernel
from autobatch.plan import Batch, PlannedCell
from autobatch.program import NODE, SHARED, Attribute, Constant, Instruction, Weight

if TYPE_CHECKING:
    from autobatch.executor.cpu import Cpu

Array = NDArray[Any]
Call: TypeAlias = Callable[[int], object]
Addresses: TypeAlias = tuple[int, tuple[int, int]]  # of a matrix, and of the buffer and the scratch memory


class Calls(NamedTuple):
    """The steps of a stage: once for all rows, per batch, once for all rows again."""

    before: list[Call]
    per_batch: list[Call]
    after: list[Call]


class CompiledCell:
    """The stages of a planned cell in one float type, each compiled when first needed."""

    def __init__(self, cell: PlannedCell, dtype: np.dtype[Any], jitted: bool) -> None:
        self.cell, self.dtype, self.jitted = cell, dtype, jitted
        self._stages: dict[str, CompiledStage] = {}

    def stage(self, name: str) -> CompiledStage:
        """The stage "forward" or "backward"."""
        if name not in self._stages:
            stage = compile_forward(self.cell) if name == "forward" else compile_backward(self.cell)
            self._stages[name] = CompiledStage(stage, self.dtype, self.jitted)
        return self._stages[name]


class CompiledStage:
    """A stage with its functions, and what of its values all rows share."""

    def __init__(self, stage: Stage, dtype: np.dtype[Any], jitted: bool) -> None:
        self.stage = stage
        self._numbers: dict[tuple[int, int], tuple[Addresses, Array]] = {}
        self._turned: dict[int, Array] = {}
        self._stale: set[int] = set()
        self.functions = stage.load(dtype, jitted)
        self.sizes = [None if s is None else np.array(s.sizes, np.int64) for s in stage.sources]
        self.packed = np.zeros(stage.storage.shared_width, dtype)
        vars, lowered = stage.lowered.vars, stage.lowered
        self.tables = self._looked_up()
        read = {*stage.storage.shared, *self.tables, *self._read_by_steps()}
        for index in reversed(lowered.shared):
            if index in read:
                source = vars[index].source
                assert isinstance(source, Instruction)
                read.update(source.args)
        self.shared = [index for index in lowered.shared if index in read]
        self.weights = [i for i in sorted(read) if isinstance(vars[i].source, Weight)]
        self.constants = {
            i: _constant(source.data, dtype) for i in sorted(read) if isinstance(source := vars[i].source, Constant)
        }

    def transposed(self, value: int, matrix: Array) -> Array:
        """The transpose of a matrix, with rows that lie side by side: libraries multiply by it up to 3 times faster.

        It is copied once per run.
        """
        turned = matrix.T
        if turned.flags.c_contiguous:
            return turned
        kept = self._turned.get(value)
        if kept is None:
            kept = self._turned[value] = np.empty(turned.shape, turned.dtype)
            self._stale.add(value)
        if value in self._stale:
            self._stale.remove(value)
            transpose(np.ascontiguousarray(matrix), kept)
        return kept

    def numbers_of(self, step: Product, term: Term, addresses: Addresses) -> Array | None:
        """What was packed for a product that multiplied the same memory, if it did last time."""
        before, numbers = self._numbers.get((id(step), id(term)), (None, None))
        return numbers if before == addresses else None

    def keep_numbers(self, step: Product, term: Term, addresses: Addresses, numbers: Array) -> None:
        """Keep what was packed for a product."""
        self._numbers[id(step), id(term)] = addresses, numbers

    def _read_by_steps(self) -> set[int]:
        """The shared values that steps read otherwise than packed."""
        found: set[int] = set()
        for step in self.stage.steps:
            match step:
                case Product(terms=terms):
                    found.update(term.weight for term in terms)
                case Alone(args=args):
                    found.update(arg for arg in args if self.stage.lowered.domains[arg] == SHARED)
        return found

    def _looked_up(self) -> set[int]:
        """The parameters of which kernels read rows."""
        kernels = [step for step in self.stage.steps if isinstance(step, Kernel)]
        loops = [loop for kernel in kernels for block in kernel.blocks for loop in block.loops]
        read = {operand.view.value for loop in loops for operand in loop.operands if operand.moved is not None}
        return {value for value in read if self.stage.lowered.domains[value] == SHARED}

    def compute_shared(self) -> dict[int, Any]:
        """What all rows share: parameters, constants, and what is computed from them; `(1, *shape)`."""
        vars = self.stage.lowered.vars
        self._stale.update(self._turned)
        env: dict[int, Any] = dict(self.constants)
        for index in self.weights:
            source = vars[index].source
            assert isinstance(source, Weight)
            env[index] = source.parameter.data[None]
        for index in self.shared:
            source = vars[index].source
            assert isinstance(source, Instruction)
            args = [env[arg] for arg in source.args]
            if source.op.view:
                env[index] = source.op.kernel(np, args[0], **source.static)
            else:
                env[index] = np.empty((1, *vars[index].shape), self.packed.dtype)
                run_kernel(source.op, np, args, env[index], source.static)
        for value, first in self.stage.storage.shared.items():
            size = self.stage.lowered.sizes[value]
            self.packed[first : first + size] = np.reshape(env[value], -1)
        return env


class BoundStage:
    """A stage of a type in one run."""

    def __init__(
        self,
        cpu: Cpu,
        kind: int,
        cell: PlannedCell,
        compiled_stage: CompiledStage,
        table: Array,
        columns: tuple[str, ...],
    ) -> None:
        self.cpu, self.kind, self.cell, self.compiled = cpu, kind, cell, compiled_stage
        self.stage, self.table, self.columns = compiled_stage.stage, table, columns
        self.shared = compiled_stage.compute_shared()
        self.addresses = _address(cpu.buffer), _address(cpu.scratch)

    def calls(self) -> Calls:
        """Its steps."""
        arrays = self._arrays()
        made: list[list[Call]] = []
        parts = zip(
            self.stage.steps, self.stage.sources, self.compiled.functions, self.compiled.sizes, strict=True
        )  # fmt: skip
        first, last = self.stage.n_before, len(self.stage.steps) - self.stage.n_after
        n_batches = max(len(self.table) - 1, 1)
        for step, source, function, sizes in parts:
            if isinstance(step, Product):
                n_runs = n_batches if first <= len(made) < last else 1
                made.append([self._product(step, at, n_runs) for at in range(len(step.terms))])
            elif isinstance(step, Alone):
                made.append([partial(self._run_alone, step)])
            elif source is not None and function is not None:
                arrays["sizes"] = sizes
                made.append([partial(function, *[arrays[name] for name in source.arguments[:-1]])])
        return Calls(*(list(chain.from_iterable(part)) for part in (made[:first], made[first:last], made[last:])))

    def _arrays(self) -> dict[str, Any]:
        """What kernels take, by name."""
        cpu, plan = self.cpu, self.cpu.plan
        found: dict[str, Any] = {
            "buffer": cpu.buffer, "scratch": cpu.scratch, "shared": self.compiled.packed, "table": self.table,
            "ptr": plan.dest_ptr, "dest": plan.dest, "adds": plan.adds,
            "ints": plan.int_data[self.kind].reshape(-1), "floats": plan.float_data[self.kind].reshape(-1),
        }  # fmt: skip
        for value in self.compiled.tables:
            found[f"table_{value}"] = self.shared[value].reshape(-1)
        for group in range(self.cell.program.n_groups):
            found[f"segments_{group}"] = plan.segment_ptr[plan.first_block(self.kind) + 1 + group]
        return found

    # Products.

    def _product(self, step: Product, at: int, n_runs: int) -> Call:
        """A term of a product as one compiled call, if the library has an address."""
        table, term, accumulate = self.table, step.terms[at], step.adds or at > 0
        weight = self.shared[term.weight][0]
        weight = self.compiled.transposed(term.weight, weight) if term.transposed else weight
        out = View(step.target, 0, (self.stage.lowered.sizes[step.target],), (1,))
        rows_column = self.columns.index(f"rows_{letter_of(step.domain)}")
        dtype = weight.dtype.name
        n_rows = int(table[-1, rows_column]) // n_runs
        provider = self.cpu.chooser.choose(max(n_rows, 1), weight.shape[1], weight.shape[0], dtype)
        address = provider.addresses.get(dtype) if self.cpu.jitted else None
        if address is None or not weight.size:
            return partial(self._multiply, term.rows, weight, out, accumulate, provider)
        numbers = self.compiled.numbers_of(step, term, (_address(weight), self.addresses))
        if numbers is None:
            product = describe_product(
                np.empty((1, weight.shape[0]), dtype), weight, np.empty((1, weight.shape[1]), dtype)
            )  # fmt: skip
            numbers = np.array(
                (
                    rows_column, product.n, product.k, weight.itemsize, *self._place(term.rows), product.b_flipped,
                    product.b, product.b_step, *self._place(out),
                ),
                np.int64,
            )  # fmt: skip
            self.compiled.keep_numbers(step, term, (_address(weight), self.addresses), numbers)
        multiply = multiply_float32 if dtype == "float32" else multiply_float64
        return partial(multiply, address, numbers, float(accumulate), table)

    def _place(self, view: View) -> tuple[int, int, int]:
        """The column that says where rows begin, the address that this is counted from, elements between rows."""
        home, view = self.stage.storage.home(view)
        array = self._array(home)
        first = _address(array) + (home.column + view.offset) * array.itemsize
        return self.columns.index(self._column(home)), first, max(self._width(home), 1)

    def _multiply(self, rows: View, weight: Array, out: View, accumulate: bool, provider: Any, k: int) -> None:
        left = self.view(rows, k)
        if left.size:
            provider.multiply(left, weight, self.view(out, k), accumulate=accumulate)
        elif not accumulate:
            self.view(out, k)[...] = 0

    # Ops that run alone.

    def _run_alone(self, step: Alone, k: int) -> None:
        """Run an instruction as the reference backend does."""
        lowered = self.stage.lowered
        var = lowered.vars[step.target]
        assert isinstance(var.source, Instruction)
        op, static = var.source.op, var.source.static
        start, rows_n = int(self.table[k, 0]), int(self.table[k, self.columns.index("rows_n")])
        rows = RowRange(self.cpu.plan, Batch(self.kind, start, start + rows_n, ()))
        if op.segments is not None:
            domain = lowered.vars[step.args[1 if op.segments == "spread" else 0]].domain
            static = {**static, "segments": rows.segments(domain)}
        if op.random:
            static = {**static, "random": self.cpu.randomness(rows)}
        run_kernel(
            op, np, [self._argument(arg, k) for arg in step.args], self.view(lowered.views[step.target], k), static
        )

    def _argument(self, arg: int, k: int) -> Any:
        lowered = self.stage.lowered
        if lowered.domains[arg] == SHARED:
            return self.shared[arg]
        array = self.view(lowered.views[arg], k)
        source = lowered.vars[lowered.views[arg].value].source
        return array.astype(self.cpu.dtype) if isinstance(source, Attribute) and source.is_float else array

    # Memory.

    def view(self, view: View, k: int) -> Array:
        """The elements of a view in all rows of a batch: `(rows, *shape)`."""
        home, view = self.stage.storage.home(view)
        array, width, columns = self._array(home), self._width(home), self.columns
        column = self._column(home)
        first = int(self.table[k, columns.index(column)])
        first = first * width if column == "start" else first
        n_rows = int(self.table[k, columns.index(f"rows_{letter_of(home.domain)}")])
        size = array.itemsize
        offset = (first + home.column + view.offset) * size if n_rows and all(view.shape) else 0
        strides = (width * size, *(stride * size for stride in view.strides))
        found: Array = np.ndarray((n_rows, *view.shape), array.dtype, array, offset, strides)
        return found

    def _array(self, home: Home) -> Array:
        cpu = self.cpu
        if home.area in ("ints", "floats"):
            data = cpu.plan.int_data if home.area == "ints" else cpu.plan.float_data
            return data[self.kind].reshape(-1)
        return cpu.scratch if ARRAYS[home.area] == "scratch" else cpu.buffer

    def _column(self, home: Home) -> str:
        """The column of the table that says where the rows of an area begin."""
        if home.area in ("ints", "floats"):
            return "start"
        return f"{self.stage.lowered.stage if home.area == 'scratch' else home.area}_{letter_of(home.domain)}"

    def _width(self, home: Home) -> int:
        """Elements from one row of an area to the next."""
        if home.area in ("ints", "floats"):
            return self.cell.program.words(home.area == "floats")
        if home.area in ("scratch", "kept"):
            storage = self.stage.storage
            return storage.kept_width if home.area == "kept" else storage.scratch_width[home.domain]
        layout = self.cell.layout
        return (layout.saved_width if home.area == "saved" else layout.input_width)[home.domain - NODE]


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _constant(data: Any, dtype: np.dtype[Any]) -> Any:
    """A constant as a single row; ints stay ints, for they may be ids."""
    if isinstance(data, (int, float)):
        return data
    return (data if data.dtype.kind in "iu" else data.astype(dtype, copy=False))[None]


@compiled
def multiply_float32(address: int, numbers: Array, beta: float, table: Array, k: int) -> None:
    """Multiply the rows of a batch by a matrix; `numbers` as `BoundStage` packs them."""
    rows, n, inner, size = table[k, numbers[0]], numbers[1], numbers[2], numbers[3]
    a = numbers[5] + table[k, numbers[4]] * size
    out = numbers[11] + table[k, numbers[10]] * size
    if rows > 0:
        call_float32(
            address, 0, numbers[7], rows, n, inner, a, numbers[6], numbers[8], numbers[9], out, numbers[12], beta
        )


@compiled
def multiply_float64(address: int, numbers: Array, beta: float, table: Array, k: int) -> None:
    """Multiply the rows of a batch by a matrix; `numbers` as `BoundStage` packs them."""
    rows, n, inner, size = table[k, numbers[0]], numbers[1], numbers[2], numbers[3]
    a = numbers[5] + table[k, numbers[4]] * size
    out = numbers[11] + table[k, numbers[10]] * size
    if rows > 0:
        call_float64(
            address, 0, numbers[7], rows, n, inner, a, numbers[6], numbers[8], numbers[9], out, numbers[12], beta
        )
