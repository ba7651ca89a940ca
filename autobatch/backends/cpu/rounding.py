"""Steps for products whose operands are rounded to bf16; see `autobatch.ir.precision`.

`Chooser.choose_bf16` measures which of three ways is fastest. The first uses vectors of bf16 numbers: a matrix is
rounded and packed once per run, and the rows of a batch are rounded some dozens at a time, just before they are
multiplied, into memory that stays in the cache; rounding takes about a fiftieth of the time of multiplying. The second,
for processors on which that is slower than float32, does the same with operands that are rounded to bf16 but stored as
float32. The third, with AMX, passes rows and matrix to MKL as bf16.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.backends.cpu.stage_values import StageValues
from autobatch.backends.cpu.steps import (
    B_FLIPPED,
    B_STEP,
    BETA,
    FIELDS,
    INNER,
    ITEMSIZE,
    OUT,
    ROUTINE,
    ROWS,
    SCRATCH,
    TABLE,
    A,
    B,
    BoundProduct,
    N,
    ProductStep,
    address_in,
)
from autobatch.blas.bf16 import find_bf16, round_to_bf16
from autobatch.blas.calling import call_product
from autobatch.blas.choosing import FLOAT32, Chooser
from autobatch.blas.own.gemm import NAME as PACKED
from autobatch.blas.own.packed import (
    ROWS_AT_ONCE,
    multiply_bf16,
    multiply_float32,
    pack_bf16,
    panel_words,
    round_to_float32,
)
from autobatch.blas.own.tiles import WORD
from autobatch.blas.product import readable
from autobatch.blas.provider import Provider
from autobatch.compiler.statement import Product
from autobatch.compiler.writer import SLOTS
from autobatch.jit.addresses import address_of, array_at
from autobatch.jit.bits import rounded
from autobatch.jit.loops import by_address

Array = NDArray[Any]
MEMORY = list(SLOTS).index("scratch")


class RoundedStep(ProductStep):
    """A term of a product in bf16."""

    def __init__(self, stage: StageValues, product: Product, number: int, once: bool) -> None:
        super().__init__(stage, product, number, once)
        self.own[SCRATCH] = WORD * stage.turn_width
        stage.turn_width += ROWS_AT_ONCE * self.inner

    def _choose(self, n_rows: int, chooser: Chooser) -> tuple[Any, ...]:
        """The library for float32, and the way to multiply by bf16."""
        return *super()._choose(n_rows, chooser), chooser.choose_bf16(n_rows, self.n, self.inner)

    def _make(self, provider: Provider, way: str = FLOAT32) -> BoundProduct:
        return BoundRounded(self, provider, way)


class BoundRounded(BoundProduct):
    """A product in bf16, with the matrix as its way of multiplying reads it."""

    def __init__(self, step: RoundedStep, provider: Provider, way: str) -> None:
        super().__init__(step, provider)
        self.way = way
        if way == PACKED:
            self.calls_library = not self._is_compiled
        elif way == "mkl":
            self.calls_library = True

    def _refresh(self) -> None:
        """Round the matrix as it is now."""
        stage, term = self.step.stage, self.step.term
        matrix = readable(stage.shared.arrays[term.weight][0])
        matrix = matrix.T if term.transposed else matrix
        if self.way == PACKED and self._is_compiled:
            self._pack_rounded(matrix)
            self.function = multiply_rounded.address
        elif self.way == "mkl":
            self._weight = round_to_bf16(stage.matrix(term.weight, term.transposed))
        else:
            self._take_rounded(rounded(matrix))

    def _pack_rounded(self, matrix: Array) -> None:
        """Pack a matrix for our own product of bf16."""
        inner, n = matrix.shape
        self._make_panels(panel_words(inner, n, True))
        self.own[[N, INNER, B]] = n, inner, address_of(self._panels)
        row, column = (step // WORD for step in matrix.strides)
        pack_bf16(address_of(matrix), row, column, inner, n, address_of(self._panels))

    def _take_rounded(self, matrix: Array) -> None:
        """Take a rounded matrix for the fastest float32 product."""
        if self.provider.name == PACKED and self._is_compiled:
            self._pack(matrix)
            self.own[ROUTINE] = 0
        else:
            self._take(matrix)
            if not (self.own[ROUTINE] and self._is_compiled):
                return
        self.function = multiply_in_float32.address

    def __call__(self, k: int) -> None:
        """Run by a library."""
        run = self.step.stage.run
        left, out = run.view(self.step.term.rows, k), run.view(self.step.out, k)
        assert self._weight is not None, "steps are refreshed before they run"
        if left.size and self.way == "mkl":
            find_bf16().multiply(round_to_bf16(left), self._weight, out, self.step.accumulate)
        elif left.size:
            self.provider.multiply(rounded(left), self._weight, out, self.step.accumulate)
        elif not self.step.accumulate:
            out[...] = 0


@by_address
def multiply_rounded(memory: int, own: int, k: int) -> None:
    """Multiply the rows of a batch by a packed matrix, both rounded."""
    numbers, arrays = array_at(own, np.int64), array_at(memory, np.int64)
    row = array_at(arrays[TABLE], np.int64)[k * numbers[FIELDS] :]
    multiply_bf16(
        row[numbers[ROWS]], numbers[N], numbers[INNER], (address_in(arrays, numbers, row, A), numbers[A + 3]),
        numbers[B], (address_in(arrays, numbers, row, OUT), numbers[OUT + 3]), numbers[BETA],
        arrays[MEMORY] + numbers[SCRATCH],
    )  # fmt: skip


@by_address
def multiply_in_float32(memory: int, own: int, k: int) -> None:
    """Multiply the rows of a batch, rounded, by a rounded matrix: by a library, or packed."""
    numbers, arrays = array_at(own, np.int64), array_at(memory, np.int64)
    row = array_at(arrays[TABLE], np.int64)[k * numbers[FIELDS] :]
    source, target = address_in(arrays, numbers, row, A), address_in(arrays, numbers, row, OUT)
    scratch, inner = arrays[MEMORY] + numbers[SCRATCH], numbers[INNER]
    for first in range(0, row[numbers[ROWS]], ROWS_AT_ONCE):
        n_rows = min(ROWS_AT_ONCE, row[numbers[ROWS]] - first)
        out = target + WORD * first * numbers[OUT + 3]
        round_to_float32(source + WORD * first * numbers[A + 3], numbers[A + 3], n_rows, inner, scratch)
        if numbers[ROUTINE]:
            call_product(
                numbers[ITEMSIZE], numbers[ROUTINE],
                (
                    0, numbers[B_FLIPPED], n_rows, numbers[N], inner, scratch, inner, numbers[B], numbers[B_STEP], out,
                    numbers[OUT + 3],
                ),
                numbers[BETA],
            )  # fmt: skip
        else:
            multiply_float32(
                n_rows, numbers[N], inner, (scratch, inner), numbers[B], (out, numbers[OUT + 3]), numbers[BETA]
            )
