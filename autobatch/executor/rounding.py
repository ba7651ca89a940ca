"""Products of which the operands are rounded to bf16, as steps; see `autobatch.precision`.

Where the processor multiplies vectors of bf16 numbers, a matrix is rounded and packed once per run, and the rows of a
batch are rounded some dozens at a time, just before they are multiplied, into memory that stays in the cache: that
takes about a fiftieth of the time that multiplying takes. Elsewhere rows and matrix go to MKL as bf16 if there is AMX,
or else to the library of float32 products as the float32 numbers that they are rounded to.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from autobatch._jit import by_address, compiled
from autobatch.addresses import address_of, aligned, array_at
from autobatch.blas.bf16 import find_amx, round_to_bf16
from autobatch.blas.packed import (
    add_outer_bf16,
    multiply_bf16,
    outer_words,
    pack_bf16,
    panel_words,
    rows_words,
)
from autobatch.blas.product import readable
from autobatch.blas.provider import Provider
from autobatch.blas.tiles import WORD, can_tile_bf16
from autobatch.executor.steps import (
    BETA,
    COLUMNS,
    INNER,
    OUT,
    ROUTINE,
    ROWS,
    TABLE,
    A,
    B,
    N,
    ProductStep,
    address_in,
)
from autobatch.kernels.loop import Product
from autobatch.kernels.source import SLOTS
from autobatch.precision import rounded

if TYPE_CHECKING:
    from autobatch.executor.stages import CompiledStage, Run

Array = NDArray[Any]
SCRATCH = ROUTINE  # the own number that would be a library's routine says where in scratch memory rounded rows go
MEMORY = list(SLOTS).index("scratch")


class RoundedStep(ProductStep):
    """A term of a product in bf16."""

    def __init__(self, stage: CompiledStage, product: Product, number: int, once: bool) -> None:
        super().__init__(stage, product, number, once)
        shape = stage.lowered.vars[self.term.weight].shape
        self.own[SCRATCH] = WORD * stage.turn_width
        stage.turn_width += rows_words(shape[-1] if self.term.transposed else shape[-2])
        self.is_tiled = stage.jitted and can_tile_bf16()
        self.rounded: Array | None = None

    def bind(self, run: Run) -> int:
        """Round the matrix as it is in this run."""
        matrix = readable(self.stage.shared[self.term.weight][0])
        matrix = matrix.T if self.term.transposed else matrix
        if not (self.is_tiled and matrix.size):
            super().bind(run)  # chooses the library
            self.rounded = round_matrix(self.stage.matrix(self.term.weight, self.term.transposed))
            return 0
        inner, n = matrix.shape
        if not self.panels.size:
            self.panels = aligned(panel_words(inner, n, True), np.dtype(np.uint32))
            self.own[[N, INNER, B]] = n, inner, address_of(self.panels)
        row, column = (step // WORD for step in matrix.strides)
        pack_bf16(address_of(matrix), row, column, inner, n, address_of(self.panels))
        address: int = multiply_rounded.address
        return address

    def __call__(self, k: int) -> None:
        """Run by a library."""
        left, out = self.stage.view(self.term.rows, k), self.stage.view(self.out, k)
        assert self.rounded is not None, "steps are bound before they run"
        if left.size:
            multiply_as_rounded(round_matrix(left), self.rounded, out, self.accumulate, self.provider)
        elif not self.accumulate:
            out[...] = 0


@by_address
def multiply_rounded(memory: int, own: int, k: int) -> None:
    """Multiply the rows of a batch by a packed matrix, both rounded."""
    numbers, arrays = array_at(own, np.int64), array_at(memory, np.int64)
    row = array_at(arrays[TABLE], np.int64)[k * numbers[COLUMNS] :]
    multiply_bf16(
        row[numbers[ROWS]], numbers[N], numbers[INNER], address_in(arrays, numbers, row, A), numbers[A + 3], numbers[B],
        address_in(arrays, numbers, row, OUT), numbers[OUT + 3], numbers[BETA],
        arrays[MEMORY] + numbers[SCRATCH],
    )  # fmt: skip


class Outers:
    """Gradients of matrices in bf16; keeps its memory.

    Args:
        jitted: compiled code may run.

    Attributes:
        is_tiled: it does.
    """

    def __init__(self, jitted: bool) -> None:
        self.is_tiled = jitted and can_tile_bf16()
        self._scratch = np.zeros(0, np.uint32)

    def add(self, x: Array, y: Array, out: Array, provider: Provider) -> None:
        """Add x' @ y, both rounded, to `out`.

        Args:
            x, y, out: float32 (rows, m), (rows, n) and (m, n); rows are contiguous and may lie apart, except that
                `out` may be the transpose of such.
            provider: multiplies where compiled code does not.
        """
        if out.strides[1] != WORD and out.size > 1:
            x, y, out = y, x, out.T
        (rows, m), n = x.shape, y.shape[1]
        if not (self.is_tiled and x.size and y.size):
            multiply_as_rounded(round_matrix(x.T), round_matrix(y), out, True, provider)
            return
        places = ((address_of(array), array.strides[0] // WORD) for array in (x, y, out))
        self.add_all(np.array([(0, m, n, rows, *chain.from_iterable(places))], np.int64))

    def add_all(self, numbers: Array) -> None:
        """Add several, by compiled code.

        Args:
            numbers: for each 0, m, n, rows, and for x, y and out the address, and elements from row to row; as
                `autobatch.executor.weights` has them, where the first is a routine.
        """
        needed = max((outer_words(int(m), int(n)) for m, n in numbers[:, 1:3]), default=0)
        if self._scratch.size < needed:
            self._scratch = np.zeros(needed, np.uint32)
        add_outers(numbers, address_of(self._scratch))


@compiled
def add_outers(numbers: Array, scratch: int) -> None:
    """Add products x' @ y to what is there, in order; a row of numbers for each."""
    for at in range(len(numbers)):
        m, n, rows = numbers[at, 1], numbers[at, 2], numbers[at, 3]
        if m and n and rows:
            add_outer_bf16(
                rows, m, n, numbers[at, 4], numbers[at, 5], numbers[at, 6], numbers[at, 7],
                numbers[at, 8], numbers[at, 9], scratch,
            )  # fmt: skip


def round_matrix(matrix: Array) -> Array:
    """Round for `multiply_as_rounded`: to bf16 where a library multiplies that fast, else to float32 numbers."""
    return rounded(matrix) if find_amx() is None else round_to_bf16(matrix)


def multiply_as_rounded(a: Array, b: Array, out: Array, accumulate: bool, provider: Provider) -> None:
    """Multiply what `round_matrix` gave."""
    (find_amx() or provider).multiply(a, b, out, accumulate)
