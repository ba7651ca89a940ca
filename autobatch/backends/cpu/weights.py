"""The steps of a weight stage on the CPU: products, sums of rows and rows of tables, added to gradients.

A call is for all rows of a type, and for a strip of the gradient: with several threads, each computes some rows of a
product, or some columns of a sum, completely, so that gradients do not depend on the number of threads. The gradient of
a parameter has three slots in the memory of the stage, see `autobatch.backends.stages.Stage`.

With precision "bf16", both factors of a product are rounded some hundred rows at a time, for autobatch's own product of
packed bf16 numbers or for a float32 library, whichever is faster for the size.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.arrays import address_of, rounded
from autobatch.backends.cpu.stage_values import StageValues
from autobatch.backends.cpu.steps import FIELDS, FUNCTIONS, ITEMSIZE, ROUTINE, ROWS, A, N, Sizes
from autobatch.backends.stages import as_matrix, dense
from autobatch.blas.packed import outer_words
from autobatch.compiler.lowered import Area
from autobatch.compiler.statement import Outer, Remainder, RowSum, Scatter
from autobatch.compiler.tiles import letter_of
from autobatch.compiler.view import View
from autobatch.ir.program import NODE
from autobatch.ops.indexing import to_ids
from autobatch.params.sparse_rows import Rows

Array = NDArray[Any]
LongArray = NDArray[np.int64]

M, N_STRIPS, B, SCRATCH, GRADIENT = 1, 5, 11, 15, 16
"""The own numbers of these steps beside those in `steps`, for `native/run/weights.cpp`: the rows of the gradient as a
matrix, the strips that it is cut into, the second operand, bytes from the thread's scratch memory, and the first
slot of the gradient. A sum of rows has the number of parameters in place of the routine, and a slot for each from
GRADIENT on."""
ROUNDED_ROWS = 256  # rows of both factors that are rounded at once for a float32 library


class OuterStep:
    """A product over all rows of a type."""

    def __init__(self, stage: StageValues, outer: Outer) -> None:
        self.stage, self.outer = stage, outer
        self.own = numbers_of(stage, outer.domain, GRADIENT + 1, outer.left, outer.right)
        self.own[[M, N]] = prod(outer.left.shape), prod(outer.right.shape)
        self.own[GRADIENT] = stage.gradient_slot(outer.parameter)
        self._bound: dict[tuple[Any, ...], BoundOuter] = {}
        if stage.precision == "bf16":
            m, n = self.own[[M, N]].tolist()
            needed = max(ROUNDED_ROWS * (m + n), outer_words(m, n), outer_words(n, m))
            stage.turn_width = max(stage.turn_width, needed)

    def bind(self, sizes: Sizes) -> BoundOuter:
        """Choose the library by the number of rows."""
        n_rows = int(sizes.n_rows[self.outer.domain - NODE])
        key = n_rows.bit_length(), sizes.chooser.name, sizes.n_threads
        if key not in self._bound:
            self._bound[key] = BoundOuter(self, max(n_rows, 1), sizes)
        return self._bound[key]


class BoundOuter:
    """A product by a library; see `BoundStep`."""

    calls_library = True

    def __init__(self, step: OuterStep, n_rows: int, sizes: Sizes) -> None:
        self._step, self.own = step, step.own.copy()
        stage, (m, n) = step.stage, step.own[[M, N]].tolist()
        name, chooser = stage.dtype.name, sizes.chooser
        self._provider = chooser.choose(m, n, n_rows, name, a_flipped=True)
        is_rounded, routine = stage.precision == "bf16", self._provider.addresses.get(name)
        self.own[N_STRIPS], self.own[ROUTINE] = stage.n_strips(sizes.n_threads), routine or 0
        self.function = 0
        if m and n:
            if is_rounded and chooser.prefers_bf16(m, n, n_rows, a_flipped=True):
                self.function = FUNCTIONS["add_bf16_outer"]
            elif routine is not None:
                self.function = FUNCTIONS["add_rounded_outer" if is_rounded else "add_outer"]
        self.own_address = address_of(self.own)

    def refresh(self) -> None:
        """Do nothing: no operand is a parameter."""

    def __call__(self, k: int) -> None:
        """Multiply by the library's Python function, for all strips at the first."""
        stage, outer, run = self._step.stage, self._step.outer, self._step.stage.run
        if run.tiles[k]["strip"]:
            return
        left, right = (run.view(view, k) for view in (outer.left, outer.right))
        left, right = left.reshape(len(left), outer.left.size), right.reshape(len(right), outer.right.size)
        if stage.precision == "bf16":
            left, right = rounded(left), rounded(right)
        target = as_matrix(dense(run.gradients[stage.keys[outer.parameter]]))
        self._provider.multiply(left.T, right, target, accumulate=True)


class RowSumStep:
    """A sum of all rows of a type."""

    def __init__(self, stage: StageValues, total: RowSum) -> None:
        self.stage, self.total = stage, total
        self._bound: dict[int, BoundRowSum] = {}
        self.own = numbers_of(stage, total.domain, GRADIENT + len(total.parameters), total.rows, total.rows)
        shape = stage.lowered.vars[total.parameters[0]].shape
        self.own[M] = shape[0] if len(shape) > 1 else 1
        self.own[N] = prod(total.rows.shape) // max(self.own[M], 1)
        self.own[ROUTINE] = len(total.parameters)
        self.own[GRADIENT:] = [stage.gradient_slot(parameter) for parameter in total.parameters]
        stage.turn_width = max(stage.turn_width, prod(total.rows.shape))

    def bind(self, sizes: Sizes) -> BoundRowSum:
        """Take the number of strips."""
        if sizes.n_threads not in self._bound:
            self._bound[sizes.n_threads] = BoundRowSum(self, self.stage.n_strips(sizes.n_threads))
        return self._bound[sizes.n_threads]


class BoundRowSum:
    """A sum of rows in a number of strips; see `BoundStep`."""

    calls_library = False

    def __init__(self, step: RowSumStep, n_strips: int) -> None:
        self._step, self.own = step, step.own.copy()
        self.own[N_STRIPS], self.own_address = n_strips, address_of(self.own)
        self.function = FUNCTIONS["add_row_sum"] if step.total.rows.size else 0

    def refresh(self) -> None:
        """Do nothing: no operand is a parameter."""

    def __call__(self, k: int) -> None:
        """Add the sum by NumPy, for all strips at the first."""
        stage, total, run = self._step.stage, self._step.total, self._step.stage.run
        if run.tiles[k]["strip"] == 0:
            found = run.view(total.rows, k).sum(axis=0)
            for parameter in total.parameters:
                target = dense(run.gradients[stage.keys[parameter]])
                target += found.reshape(target.shape)


class ScatterStep:
    """Rows of a type for the gradient of a table, which Python adds; see `BoundStep`."""

    calls_library, function, own_address = False, 0, 0

    def __init__(self, stage: StageValues, scatter: Scatter) -> None:
        self.stage, self.scatter, self._key = stage, scatter, stage.keys[scatter.parameter]
        self._rows, self._ids = stage.locate(scatter.rows), stage.locate(scatter.ids)

    def bind(self, sizes: Sizes) -> ScatterStep:
        """Return itself: it runs alike in all plans."""
        return self

    def refresh(self) -> None:
        """Do nothing: no operand is a parameter."""

    def __call__(self, k: int) -> None:
        """Add the rows."""
        run = self.stage.run
        if self._ids.area is Area.INTS:
            ids = run.plan.int_data[run.block + self._ids.domain - NODE][:, self._ids.offset]
        else:
            ids = to_ids(run.view(self.scatter.ids, k))
        gradient = run.gradients[self._key]
        if isinstance(gradient, Rows):
            first = int(run.tiles[k][self._rows.first]) + self._rows.offset
            gradient.add(ids, run.buffer, first, self._rows.width)
        else:
            values = run.view(self.scatter.rows, k).reshape(len(ids), *gradient.shape[1:])
            Rows.summed(ids, values, gradient.shape).add_to(gradient)


class RemainderStep:
    """The gradients that the interpreter computes; see `BoundStep`."""

    calls_library, function, own_address = True, 0, 0

    def __init__(self, stage: StageValues, remainder: Remainder) -> None:
        self.stage, self.remainder = stage, remainder

    def bind(self, sizes: Sizes) -> RemainderStep:
        """Return itself: it runs alike in all plans."""
        return self

    def refresh(self) -> None:
        """Do nothing: the interpreter reads parameters itself."""

    def __call__(self, k: int) -> None:
        """Run the interpreter."""
        run = self.stage.run
        run.interpret(run.type_id, self.remainder.parameters)


def numbers_of(stage: StageValues, domain: int, size: int, a: View, b: View) -> LongArray:
    """The own numbers of a step that reads two groups of columns."""
    own = np.zeros(size, np.int64)
    own[[FIELDS, ITEMSIZE, SCRATCH]] = len(stage.fields), stage.dtype.itemsize, 0
    own[ROWS] = stage.fields.index(f"rows_{letter_of(domain)}")
    own[A : A + 4], own[B : B + 4] = stage.place(a), stage.place(b)
    return own
