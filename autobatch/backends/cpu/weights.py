"""Build the steps of a weight stage: products, sums of rows and rows of tables, added to gradients.

A call is for all rows of a type and for one strip of the gradient. With several threads, each computes some rows of a
product, or some columns of a sum, completely, so gradients do not depend on the number of threads. The gradient of a
parameter has three slots in the memory of the stage; see `autobatch.backends.compiled.Stage`.

With precision "bf16", both factors of a product are rounded a few hundred rows at a time, for the native product of
packed bf16 numbers or for a float32 library, whichever is faster for the size.
"""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from autobatch.arrays import Array, rounded
from autobatch.backends.compiled import as_matrix, dense
from autobatch.backends.cpu.operands import StageValues
from autobatch.backends.cpu.step import FUNCTIONS, OPERAND, Sizes, Step, StepTemplate
from autobatch.blas.packed import NAME as PACKED
from autobatch.blas.packed import outer_words
from autobatch.blas.provider import Provider
from autobatch.compiler.lowered import Area
from autobatch.compiler.statement import Outer, Remainder, RowSum, Scatter
from autobatch.ir.program import NODE
from autobatch.ops.indexing import to_ids
from autobatch.params.sparse_rows import Rows

FIELDS = "routine", "m", "n_fields", "rows", "n", "n_strips", "itemsize"
ROUNDED_ROWS = 256  # the rows of both factors that are rounded at a time for a float32 library


def gradient_type(n_gradients: int) -> np.dtype[np.void]:
    """Return the type of a descriptor, `WeightStep` of `native/run/weights.cpp`, with the first slot of each gradient.

    A sum of rows stores the number of gradients in the field of the routine.
    """
    operands = [("a", *OPERAND), ("b", *OPERAND), ("scratch", np.int64), ("gradients", np.int64, n_gradients)]
    return np.dtype([*((name, np.int64) for name in FIELDS), *operands])


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
