"""Prepared steps, and the compiled loop that calls them.

A step runs for piece k of the batches of a type. A compiled step has three addresses: of its function, of the memory of
its stage (the addresses of the arrays of a run), and of its own numbers, which stay the same from run to run. Any other
step is a Python function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.blas.calling import call_product
from autobatch.blas.own.gemm import NAME as PACKED
from autobatch.blas.own.packed import multiply_float32 as multiply_rows
from autobatch.blas.own.packed import pack_float32, panel_words
from autobatch.blas.product import describe_product, readable
from autobatch.blas.threads import threads_now
from autobatch.compiler.numba.loading import load, load_plain
from autobatch.compiler.numba.source import Source
from autobatch.compiler.piece_table import letter_of
from autobatch.compiler.statement import Interpreted, Product
from autobatch.compiler.view import View
from autobatch.compiler.writer import SLOTS
from autobatch.ir.precision import rounded_args
from autobatch.ir.program import NODE, SHARED, Attribute, Instruction
from autobatch.jit.addresses import address_of, aligned, array_at, call_at
from autobatch.jit.bits import rounded
from autobatch.jit.compiling import compiling
from autobatch.jit.loops import by_address, compiled
from autobatch.ops.define import run_kernel
from autobatch.runtime.cpu.stage_values import StageRun, StageValues

Array = NDArray[Any]
Call = Callable[[int], object]

TABLE = list(SLOTS).index("table")
ROUTINE, BETA, COLUMNS, ROWS, N, INNER, ITEMSIZE, A, OUT = 0, 1, 2, 3, 4, 5, 6, 7, 11
B_FLIPPED, B, B_STEP, SCRATCH, SIZE = 15, 16, 17, 18, 19
"""The own numbers of a product. A and OUT each have four: the slot of the array, the column of the table that holds
where rows begin, the bytes from there, and the elements from one row to the next. SCRATCH is the place of rounded rows
in scratch memory, see `autobatch.runtime.cpu.rounding`."""


@compiled
def call_steps(addresses: Array, calls: Array, at: int, end: int) -> int:
    """Make the calls from `at` on; return the first call of a step that has no address, or `end`."""
    while at < end:
        step = calls[at, 0]
        if addresses[step, 0] == 0:
            return at
        call_at(addresses[step, 0], addresses[step, 1], addresses[step, 2], calls[at, 1])
        at += 1
    return at


def make_calls(addresses: Array, steps: Sequence[Call], calls: Array, at: int, end: int) -> None:
    """Make the calls at:end, of compiled steps and of others."""
    while at < end:
        at = call_steps(addresses, calls, at, end)
        if at < end:
            step, k = calls[at]
            steps[step](int(k))
            at += 1


class KernelStep:
    """A generated kernel."""

    def __init__(self, stage: StageValues, source: Source) -> None:
        self.stage, self.source = stage, source
        self.own = source.own
        self.function = None if stage.jitted else load_plain(source.text, stage.dtype)
        self.addresses: dict[str, int] = {}

    def bind(self, run: StageRun) -> int:
        """Find the address of the kernel for the type of a run's destinations."""
        if not self.stage.jitted:
            return 0
        if run.place not in self.addresses:
            lowered = self.stage.lowered
            with compiling(f"cell {lowered.name!r} ({lowered.stage})", is_kernel=True):
                self.addresses[run.place] = load(self.source.text, self.stage.dtype.name, run.place).address
        return self.addresses[run.place]

    def __call__(self, k: int) -> None:
        """Run as plain Python."""
        assert self.function is not None, "compiled kernels are called by address"
        self.function(self.stage.arrays, self.own, k)


class ProductStep:
    """A term of a product: rows times a matrix that all rows share, written to the target or added to it."""

    def __init__(self, stage: StageValues, product: Product, number: int, once: bool) -> None:
        self.stage, self.term, self.once = stage, product.terms[number], once
        self.accumulate = product.adds or number > 0
        self.out = View(product.target, 0, (stage.lowered.sizes[product.target],), (1,))
        self.own = np.zeros(SIZE, np.int64)
        self.own[BETA], self.own[ITEMSIZE] = self.accumulate, stage.dtype.itemsize
        self.domain, self.own[COLUMNS] = product.domain, len(stage.columns)
        self.own[ROWS] = stage.columns.index(f"rows_{letter_of(product.domain)}")
        self.own[A : A + 4] = stage.place(self.term.rows)
        self.own[OUT : OUT + 4] = stage.place(self.out)
        self.weight: Array | None = None
        self.provider: Any = None
        self.panels: Array = np.empty(0, np.uint32)
        self.chosen_for, self.n_rows, self.dtype = (-1, 0, ""), 0, stage.dtype.name

    def bind(self, run: StageRun) -> int:
        """Choose the library by the mean number of rows, and take the weight of this run."""
        shared = self.stage.shared.arrays[self.term.weight]
        self._choose(run)
        if self.provider.name == PACKED and self.stage.jitted and shared.size:
            matrix = readable(shared[0])
            return self._pack(matrix.T if self.term.transposed else matrix)
        weight = self.stage.matrix(self.term.weight, self.term.transposed)
        if weight is not self.weight:
            self._take(weight)
        return multiply.address if self.own[ROUTINE] and self.stage.jitted and weight.size else 0

    def _choose(self, run: StageRun) -> bool:
        """Choose the library; return whether it was chosen anew."""
        shared = self.stage.shared.arrays[self.term.weight]
        inner, n = shared.shape[:0:-1] if self.term.transposed else shared.shape[1:]
        of_piece, of_whole = run.mean_rows[self.domain - NODE].tolist()
        self.n_rows = (self.once and of_whole) or of_piece
        chosen_for = self.n_rows.bit_length(), threads_now(), run.chooser.name
        if chosen_for == self.chosen_for:
            return False
        self.provider = run.chooser.choose(max(self.n_rows, 1), n, inner, self.dtype)
        self.weight = None
        self.chosen_for = chosen_for  # last, as choosing may be interrupted
        return True

    def _take(self, weight: Array) -> None:
        """Take a weight, and store its address for a library."""
        self.weight = weight
        if weight.size:
            inner, n = weight.shape
            rows = np.empty((2, inner + n), weight.dtype)
            product = describe_product(rows[:1, :inner], weight, rows[:1, inner:])
            self.own[N], self.own[INNER] = n, inner
            self.own[B_FLIPPED], self.own[B], self.own[B_STEP] = product.b_flipped, product.b, product.b_step
        self.own[ROUTINE] = self.provider.addresses.get(self.dtype, 0)

    def _pack(self, weight: Array) -> int:
        """Pack the weight for our own product, anew in every run."""
        inner, n = weight.shape
        self._make_panels(panel_words(inner, n, False))
        self.own[N], self.own[INNER], self.own[B] = n, inner, address_of(self.panels)
        row, column = (step // weight.itemsize for step in weight.strides)
        pack_float32(address_of(weight), row, column, inner, n, address_of(self.panels))
        return multiply_packed.address

    def _make_panels(self, n_words: int) -> None:
        """Make memory for a packed matrix."""
        if self.panels.size < n_words:
            self.panels = aligned(n_words, np.dtype(np.uint32))

    def __call__(self, k: int) -> None:
        """Multiply by the library's Python function."""
        left, out = self.stage.view(self.term.rows, k), self.stage.view(self.out, k)
        assert self.weight is not None, "steps are bound before they run"
        if left.size:
            self.provider.multiply(left, self.weight, out, accumulate=self.accumulate)
        elif not self.accumulate:
            out[...] = 0


class InterpretedStep:
    """An instruction that runs as in the reference backend."""

    def __init__(self, stage: StageValues, alone: Interpreted) -> None:
        self.stage, self.alone, self.own = stage, alone, np.zeros(0, np.int64)

    def bind(self, run: StageRun) -> int:
        """Return 0: the step has no address."""
        return 0

    def __call__(self, k: int) -> None:
        """Run."""
        lowered, run = self.stage.lowered, self.stage.run
        var = lowered.vars[self.alone.target]
        assert isinstance(var.source, Instruction)
        rows = run.rows(k, self.stage.columns.index("rows_n"))
        static = rows.static(lowered.vars, self.alone.target, run.randomness, self.stage.cell.type.owner)
        args = [self._argument(arg, k) for arg in self.alone.args]
        if self.stage.precision == "bf16":
            for at in rounded_args(lowered.vars, self.alone.target):
                args[at] = rounded(args[at])
        run_kernel(var.source.op, np, args, self.stage.view(lowered.views[self.alone.target], k), static)

    def _argument(self, arg: int, k: int) -> Any:
        lowered = self.stage.lowered
        if lowered.domains[arg] == SHARED:
            return self.stage.shared.arrays[arg]
        array = self.stage.view(lowered.views[arg], k)
        source = lowered.vars[lowered.views[arg].value].source
        return array.astype(self.stage.dtype) if isinstance(source, Attribute) and source.is_float else array


Step = KernelStep | ProductStep | InterpretedStep


@by_address
def multiply(memory: int, own: int, k: int) -> None:
    """Multiply the rows of a piece by a matrix, with a library."""
    numbers, arrays = array_at(own, np.int64), array_at(memory, np.int64)
    row = array_at(arrays[TABLE], np.int64)[k * numbers[COLUMNS] :]
    if row[numbers[ROWS]] > 0:
        call_product(
            numbers[ITEMSIZE], numbers[ROUTINE],
            (
                0, numbers[B_FLIPPED], row[numbers[ROWS]], numbers[N], numbers[INNER],
                address_in(arrays, numbers, row, A), numbers[A + 3], numbers[B], numbers[B_STEP],
                address_in(arrays, numbers, row, OUT), numbers[OUT + 3],
            ),
            numbers[BETA],
        )  # fmt: skip


@by_address
def multiply_packed(memory: int, own: int, k: int) -> None:
    """Multiply the rows of a piece by a packed matrix."""
    numbers, arrays = array_at(own, np.int64), array_at(memory, np.int64)
    row = array_at(arrays[TABLE], np.int64)[k * numbers[COLUMNS] :]
    if row[numbers[ROWS]] > 0:
        multiply_rows(
            row[numbers[ROWS]], numbers[N], numbers[INNER], (address_in(arrays, numbers, row, A), numbers[A + 3]),
            numbers[B], (address_in(arrays, numbers, row, OUT), numbers[OUT + 3]), numbers[BETA],
        )  # fmt: skip


@compiled
def address_in(arrays: Array, numbers: Array, row: Array, place: int) -> int:
    """The address where the rows of an operand begin."""
    first: int = arrays[numbers[place]] + numbers[place + 2] + row[numbers[place + 1]] * numbers[ITEMSIZE]
    return first
