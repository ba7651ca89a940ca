"""Steps for products whose operands are rounded to bf16; see `autobatch.ir.precision`.

Where the processor multiplies vectors of bf16 numbers, a matrix is rounded and packed once per run, and the rows of a
batch are rounded some dozens at a time, just before they are multiplied, into memory that stays in the cache; rounding
takes about a fiftieth of the time of multiplying. Where that is slower than float32 (`Chooser.prefers_bf16`), the same
is done with operands that are rounded to bf16 but stored as float32.
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
from autobatch.blas.calling import call_product
from autobatch.blas.choosing import Chooser
from autobatch.blas.own.gemm import NAME as PACKED
from autobatch.blas.own.packed import ROWS_AT_ONCE, multiply_bf16, multiply_float32, round_to_float32
from autobatch.blas.own.tiles import WORD
from autobatch.blas.product import readable
from autobatch.blas.provider import Provider
from autobatch.compiler.statement import Product
from autobatch.compiler.writer import SLOTS
from autobatch.jit.addresses import array_at
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
        """The library for float32, and whether bf16 is multiplied without it."""
        return *super()._choose(n_rows, chooser), chooser.prefers_bf16(n_rows, self.n, self.inner)

    def _make(self, provider: Provider, is_bf16: bool = False) -> BoundProduct:
        return BoundRounded(self, provider, is_bf16)


class BoundRounded(BoundProduct):
    """A product in bf16, with the matrix as its way of multiplying reads it."""

    def __init__(self, step: RoundedStep, provider: Provider, is_bf16: bool) -> None:
        super().__init__(step, provider)
        self.is_bf16 = is_bf16 and self._is_compiled
        self.calls_library = self.calls_library and not self.is_bf16

    def _refresh(self) -> None:
        """Round the matrix as it is now."""
        matrix = readable(self.step.stage.shared.arrays[self.step.term.weight][0])
        matrix = matrix.T if self.step.term.transposed else matrix
        if self.is_bf16:
            self._pack(matrix, is_bf16=True)
            self.function = multiply_rounded.address
        elif self.provider.name == PACKED and self._is_compiled:
            self._pack(rounded(matrix))
            self.own[ROUTINE], self.function = 0, multiply_in_float32.address
        else:
            self._take(rounded(matrix))
            self.function = multiply_in_float32.address if self.own[ROUTINE] and self._is_compiled else 0

    def _rows(self, k: int) -> Array:
        rows: Array = rounded(super()._rows(k))
        return rows


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
