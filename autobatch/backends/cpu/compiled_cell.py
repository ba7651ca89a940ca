"""Build the compiled stages of a cell, in one float type and precision: products, and the steps of the weight stage.

A product multiplies the rows of a tile by a shared matrix, by the fastest library or a native product.

With precision "bf16" (`autobatch.ir.precision`), operands are rounded. If the processor has bf16 vector products, a
matrix is rounded and packed once per change, and the rows of a batch are rounded just before they are multiplied, some
dozens at a time, into memory that stays in the cache. Rounding takes about 2% of the time of multiplying. If bf16
products are slower than float32 (`Chooser.prefers_bf16`), operands are rounded to bf16 but stored as float32.

The weight stage has products, sums of rows and rows of tables, added to gradients.

A call is for all rows of a type and for one strip of the gradient. With several threads, each computes some rows of a
product, or some columns of a sum, completely, so gradients do not depend on the number of threads. The gradient of a
parameter has three slots in the memory of the stage; see `autobatch.backends.compiled.Stage`.

With precision "bf16", both factors of a product are rounded a few hundred rows at a time, for the native product of
packed bf16 numbers or for a float32 library, whichever is faster for the size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from autobatch.arrays import Array, rounded
from autobatch.backends.compiled import CellStages, as_matrix, dense
from autobatch.backends.cpu.operands import StageValues
from autobatch.backends.cpu.step import FUNCTIONS, OPERAND, Sizes, Step, StepTemplate
from autobatch.blas.packed import NAME as PACKED
from autobatch.blas.packed import ROUNDED_AT_ONCE, outer_words, padded_pairs
from autobatch.blas.provider import Provider
from autobatch.compiler.llvm.machine import Code, find_module
from autobatch.compiler.llvm.source import Source, StageSources
from autobatch.compiler.lowered import Area
from autobatch.compiler.stage import StageProgram
from autobatch.compiler.statement import Interpreted, Outer, Product, Remainder, RowSum, Scatter, Term
from autobatch.compiler.view import View
from autobatch.ir.program import NODE
from autobatch.ops.indexing import to_ids
from autobatch.params.sparse_rows import Rows
from autobatch.plan.plan import PlannedCell

PRODUCT_FIELDS = "routine", "beta", "n_fields", "rows", "n", "inner", "itemsize"
OPERANDS = ("a", *OPERAND), ("out", *OPERAND), ("matrix", np.int64, 3), ("scratch", np.int64)
PRODUCT = np.dtype([*((name, np.int64) for name in PRODUCT_FIELDS), *OPERANDS])
"""The descriptor, `Product` of `native/run/products.cpp`; `SharedMatrix.update` describes the matrix."""


def make_product(stage: StageValues, product: Product, number: int, is_hoisted: bool) -> StepTemplate:
    """Build the step of a term of a product, which is written to the target or added to it.

    Args:
        number: the number of the term.
        is_hoisted: whether the product runs for all rows of a type at once.
    """
    term, dtype, is_bf16 = product.terms[number], stage.dtype.name, stage.precision == "bf16"
    out = View(product.target, 0, (stage.lowered.sizes[product.target],), (1,))
    shape = stage.lowered.vars[term.weight].shape
    inner, n = shape[::-1] if term.transposed else shape
    descriptor = stage.describe(PRODUCT, product.domain)
    descriptor["beta"], descriptor["n"], descriptor["inner"] = product.adds or number > 0, n, inner
    descriptor["a"], descriptor["out"] = stage.operand(term.rows), stage.operand(out)
    if is_bf16:
        descriptor["scratch"] = stage.dtype.itemsize * stage.scratch_width
        stage.scratch_width += ROUNDED_AT_ONCE * max(inner, padded_pairs(inner))

    def choose(sizes: Sizes) -> tuple[Provider, bool]:
        of_tile, of_whole = sizes.mean_rows[product.domain - NODE].tolist()
        # `of_whole` is 0 if hoisted steps run with the tiles of batches.
        n_rows = max((is_hoisted and of_whole) or of_tile, 1)
        provider = sizes.chooser.choose(n_rows, n, inner, dtype)
        return provider, is_bf16 and sizes.chooser.prefers_bf16(n_rows, n, inner)

    return StepTemplate(product, partial(_multiply, stage, term, out, descriptor), choose)


def _multiply(stage: StageValues, term: Term, out: View, described: Array, provider: Provider, by_bf16: bool) -> Step:
    """Build the step for a choice of the provider, and of bf16 products."""
    descriptor, is_rounded = described.copy(), stage.precision == "bf16"
    is_empty = not (descriptor["n"] and descriptor["inner"])
    is_packed = (by_bf16 or provider.name == PACKED) and not is_empty
    by_bf16 = by_bf16 and not is_empty
    matrix = stage.matrix(term, is_packed, by_bf16)
    if not (is_packed or is_empty):
        descriptor["routine"] = provider.addresses.get(stage.dtype.name, 0)
    if by_bf16:
        name = "multiply_by_bf16_panels"
    elif is_rounded:
        name = "multiply_rounded"
    else:
        name = "multiply_by_panels" if is_packed else "multiply_by_library"
    known: tuple[bool, int, int] | None = None

    def load() -> None:
        nonlocal known
        place = matrix.update()
        if place is not known:
            descriptor["matrix"] = known = place

    def run(k: int) -> None:
        left, target = stage.run.view(term.rows, k), stage.run.view(out, k)
        left = rounded(left) if is_rounded else left
        if left.size:
            provider.multiply(left, matrix.array, target, accumulate=bool(descriptor["beta"]))
        # A product without inner elements is zero.
        elif not descriptor["beta"]:
            target[...] = 0

    function = FUNCTIONS[name] if is_packed or descriptor["routine"] else 0
    return Step(function, descriptor, run, load, calls_library=not is_packed)


WEIGHT_FIELDS = "routine", "m", "n_fields", "rows", "n", "n_strips", "itemsize"
ROUNDED_ROWS = 256  # the rows of both factors that are rounded at a time for a float32 library


def gradient_type(n_gradients: int) -> np.dtype[np.void]:
    """Return the type of a descriptor, `WeightStep` of `native/run/weights.cpp`, with the first slot of each gradient.

    A sum of rows stores the number of gradients in the field of the routine.
    """
    operands = [("a", *OPERAND), ("b", *OPERAND), ("scratch", np.int64), ("gradients", np.int64, n_gradients)]
    return np.dtype([*((name, np.int64) for name in WEIGHT_FIELDS), *operands])


def make_outer(stage: StageValues, outer: Outer) -> StepTemplate:
    """Build the step of a product over all rows of a type."""
    m, n, dtype, is_rounded = outer.left.size, outer.right.size, stage.dtype.name, stage.precision == "bf16"
    descriptor = stage.describe(gradient_type(1), outer.domain)
    descriptor["m"], descriptor["n"], descriptor["gradients"] = m, n, stage.gradient_slot(outer.parameter)
    descriptor["a"], descriptor["b"] = stage.operand(outer.left), stage.operand(outer.right)
    if is_rounded:
        needed = max(ROUNDED_ROWS * (m + n), outer_words(m, n), outer_words(n, m))
        stage.scratch_width = max(stage.scratch_width, needed)

    def choose(sizes: Sizes) -> tuple[Provider, bool, int]:
        n_rows = max(int(sizes.n_rows[outer.domain - NODE]), 1)
        # The rows of the type are the inner axis: an (m, rows) matrix by a (rows, n) one.
        provider = sizes.chooser.choose(m, n, n_rows, dtype, a_flipped=True)
        by_bf16 = is_rounded and m * n > 0 and sizes.chooser.prefers_bf16(m, n, n_rows, a_flipped=True)
        return provider, by_bf16, stage.n_strips(sizes.n_threads)

    return StepTemplate(outer, partial(_add_outer, stage, outer, descriptor), choose)


def _add_outer(
    stage: StageValues, outer: Outer, described: Array, provider: Provider, by_bf16: bool, n_strips: int
) -> Step:
    """Build the step for a choice of the provider, of bf16 products, and of the number of strips."""
    descriptor, is_rounded = described.copy(), stage.precision == "bf16"
    descriptor["routine"], descriptor["n_strips"] = provider.addresses.get(stage.dtype.name, 0), n_strips
    function = 0
    if by_bf16:
        function = FUNCTIONS["add_bf16_outer"]
    elif descriptor["routine"] and descriptor["m"] and descriptor["n"]:
        function = FUNCTIONS["add_rounded_outer" if is_rounded else "add_outer"]

    def run(k: int) -> None:
        """Multiply by the library's Python function; the call for the first strip computes all strips."""
        if stage.run.tiles[k]["strip"]:
            return
        left, right = (stage.run.view(view, k) for view in (outer.left, outer.right))
        left, right = left.reshape(len(left), outer.left.size), right.reshape(len(right), outer.right.size)
        if is_rounded:
            left, right = rounded(left), rounded(right)
        target = as_matrix(dense(stage.run.gradients[stage.keys[outer.parameter]]))
        provider.multiply(left.T, right, target, accumulate=True)

    return Step(function, descriptor, run, calls_library=not by_bf16 and provider.name != PACKED)


def make_row_sum(stage: StageValues, total: RowSum) -> StepTemplate:
    """Build the step of a sum of all rows of a type."""
    shape, width = stage.lowered.vars[total.parameters[0]].shape, prod(total.rows.shape)
    described = stage.describe(gradient_type(len(total.parameters)), total.domain)
    # The gradient is added to as a matrix, in the form that `as_matrix` gives it.
    described["m"] = m = shape[0] if len(shape) > 1 else 1
    described["n"], described["routine"] = width // max(m, 1), len(total.parameters)
    described["a"] = described["b"] = stage.operand(total.rows)
    described["gradients"] = [stage.gradient_slot(parameter) for parameter in total.parameters]
    stage.scratch_width = max(stage.scratch_width, width)

    def run(k: int) -> None:
        """Add the sum by NumPy; the call for the first strip computes all strips."""
        if stage.run.tiles[k]["strip"] == 0:
            found = stage.run.view(total.rows, k).sum(axis=0)
            for parameter in total.parameters:
                target = dense(stage.run.gradients[stage.keys[parameter]])
                target += found.reshape(target.shape)

    def make(n_strips: int) -> Step:
        descriptor = described.copy()
        descriptor["n_strips"] = n_strips
        return Step(FUNCTIONS["add_row_sum"] if width else 0, descriptor, run)

    return StepTemplate(total, make, lambda sizes: (stage.n_strips(sizes.n_threads),))


def make_scatter(stage: StageValues, scatter: Scatter) -> StepTemplate:
    """Build the step that adds rows of a type to the gradient of a table, in Python."""
    rows_at, ids_at, key = stage.locate(scatter.rows), stage.locate(scatter.ids), stage.keys[scatter.parameter]

    def run(k: int) -> None:
        run = stage.run
        if ids_at.area is Area.INTS:
            ids = run.plan.int_data[run.block + ids_at.domain - NODE][:, ids_at.offset]
        else:
            ids = to_ids(run.view(scatter.ids, k))
        gradient = run.gradients[key]
        if isinstance(gradient, Rows):
            first = int(run.tiles[k][rows_at.first]) + rows_at.offset
            gradient.add(ids, run.buffer, first, rows_at.width)
        else:
            values = run.view(scatter.rows, k).reshape(len(ids), *gradient.shape[1:])
            Rows.summed(ids, values, gradient.shape).add_to(gradient)

    return StepTemplate(scatter, partial(Step, run=run))


def make_remainder(stage: StageValues, remainder: Remainder) -> StepTemplate:
    """Build the step of the gradients that the interpreter computes."""

    def run(k: int) -> None:
        stage.run.interpret(stage.run.type_id, remainder.parameters)

    return StepTemplate(remainder, partial(Step, run=run, calls_library=True))


class CompiledCell(CellStages["CompiledStage"]):
    """The stages of a planned cell in one float type and precision."""

    def __init__(self, cell: PlannedCell, dtype: np.dtype[Any], precision: str) -> None:
        super().__init__(cell)
        self.dtype, self.precision = dtype, precision

    def _make(self, program: StageProgram) -> CompiledStage:
        return CompiledStage(StageSources(program, self.dtype.name), self.dtype, self.precision)


class CompiledStage(StageValues):
    """A stage with its steps."""

    def __init__(self, sources: StageSources, dtype: np.dtype[Any], precision: str) -> None:
        super().__init__(sources, dtype, precision)
        self._codes: dict[str, Code] = {}
        self.has_kernels = any(sources.kernels)
        self._add_steps()

    def _make_steps(self, number: int) -> Sequence[StepTemplate]:
        program, statement, source = self.program, self.program.steps[number], self.source.kernels[number]
        match statement:
            case Product():
                is_hoisted = not program.n_before <= number < len(program.steps) - program.n_after
                return [make_product(self, statement, at, is_hoisted) for at in range(len(statement.terms))]
            case Interpreted():
                return [StepTemplate(statement, partial(self._interpret, statement))]
            case Outer():
                return [make_outer(self, statement)]
            case RowSum():
                return [make_row_sum(self, statement)]
            case Scatter():
                return [make_scatter(self, statement)]
            case Remainder():
                return [make_remainder(self, statement)]
        assert source is not None, "every kernel has a source"
        return [StepTemplate(statement, partial(self._call_kernel, source), lambda sizes: (sizes.index_type,))]

    def _interpret(self, statement: Interpreted) -> Step:
        """Build the step that runs an instruction as the reference backend does, by NumPy and its library."""
        return Step(run=lambda k: self.run.run_interpreted(statement, k), calls_library=True)

    def _call_kernel(self, source: Source, index_type: str) -> Step:
        """Build the step that calls a kernel; waits for its machine code."""
        return Step(self.code(index_type).address(source.name), source.descriptor)

    def code(self, index_type: str) -> Code:
        """Return the machine code of all kernels for a type of destinations; start to compile it if it is missing."""
        if index_type not in self._codes:
            about = f"cell {self.lowered.name!r} ({self.lowered.stage})"
            self._codes[index_type] = find_module(self.source.text(index_type), about)
        return self._codes[index_type]
