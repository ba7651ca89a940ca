"""Steps for products whose operands are rounded to bf16; see `autobatch.ir.precision`.

Where the processor multiplies vectors of bf16 numbers, a matrix is rounded and packed once per run, and the rows of a
batch are rounded some dozens at a time, just before they are multiplied, into memory that stays in the cache; rounding
takes about a fiftieth of the time of multiplying. Where that is slower than float32 (`Chooser.prefers_bf16`), the same
is done with operands that are rounded to bf16 but stored as float32.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from autobatch.arrays import rounded
from autobatch.backends.cpu.stage_values import StageValues
from autobatch.backends.cpu.steps import FUNCTIONS, ROUTINE, SCRATCH, BoundProduct, ProductStep
from autobatch.blas.choosing import Chooser
from autobatch.blas.packed import NAME as PACKED
from autobatch.blas.packed import ROUNDED_AT_ONCE, padded_pairs
from autobatch.blas.product import readable
from autobatch.blas.provider import Provider
from autobatch.compiler.statement import Product

Array = NDArray[Any]


class RoundedStep(ProductStep):
    """A term of a product in bf16."""

    def __init__(self, stage: StageValues, product: Product, number: int, once: bool) -> None:
        super().__init__(stage, product, number, once)
        self.own[SCRATCH] = stage.dtype.itemsize * stage.turn_width
        stage.turn_width += ROUNDED_AT_ONCE * max(self.inner, padded_pairs(self.inner))

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
            self.function = FUNCTIONS["multiply_by_bf16_panels"]
        elif self.provider.name == PACKED and self._is_compiled:
            self._pack(rounded(matrix))
            self.own[ROUTINE], self.function = 0, FUNCTIONS["multiply_rounded"]
        else:
            self._take(rounded(matrix))
            self.function = FUNCTIONS["multiply_rounded"] if self.own[ROUTINE] and self._is_compiled else 0

    def _rows(self, k: int) -> Array:
        rows: Array = rounded(super()._rows(k))
        return rows
