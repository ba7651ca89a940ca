"""Our own product of float32 matrices (`autobatch.blas.own.packed`) behind the Fortran interface of all libraries.

It is a provider like any other, so `Chooser` can choose it. Callers pack a matrix that all rows of a type share once
per run. Other matrices are packed here, in every call, or read in place if they are read only a few times. The factors
of a weight gradient are as long as there are rows: one block of rows is multiplied while the next is prefetched.
"""

from __future__ import annotations

import numpy as np

from autobatch.blas.calling import TRANSPOSED, Copies, Numbers
from autobatch.blas.own.packed import OUTER_AT_ONCE, multiply_float32, pack_float32, panel_words
from autobatch.blas.own.tiles import LANES, LINE, ROWS, WIDTH, WORD, block_float32, can_tile
from autobatch.blas.product import Gemm
from autobatch.blas.provider import ByAddress
from autobatch.jit.addresses import address_of, array_at
from autobatch.jit.loops import by_address, compiled_at_once

NAME = "packed"
LYING_ROWS = 256  # up to this many rows of a result, the other factor is read unpacked, once for every 6 rows
BLOCK_WORDS = 1 << 17  # the largest block of a matrix that is packed at once


def make_provider() -> ByAddress:
    """Make the provider; only on processors for which `can_tile` holds."""
    assert can_tile(), "others have no code for this processor"
    return ByAddress(NAME, find_version(), {"float32": sgemm.address})


def find_version() -> str:
    """Compute a digest of the code, so that measurements of other versions are not used."""
    return sgemm.digest()


@by_address
def sgemm(
    a_flag: int, b_flag: int, m_at: int, n_at: int, inner_at: int, alpha: int, a: int, a_step: int, b: int, b_step: int,
    beta: int, out: int, out_step: int,
) -> None:  # fmt: skip
    """Multiply float32 matrices as BLAS's routine of this name does, with alpha = 1 and beta = 0 or 1.

    Every argument is an address. In row-major terms (BLAS is column-major), out (n, m) is b (n, inner) @ a (inner, m).
    """
    n, m, inner = array_at(n_at, np.int64)[0], array_at(m_at, np.int64)[0], array_at(inner_at, np.int64)[0]
    a_steps, b_steps = array_at(a_step, np.int64)[0], array_at(b_step, np.int64)[0]
    adds = array_at(beta, np.float32)[0] != 0
    row, column = (1, a_steps) if array_at(a_flag, np.uint8)[0] == TRANSPOSED else (a_steps, 1)
    b_row, b_inner = (1, b_steps) if array_at(b_flag, np.uint8)[0] == TRANSPOSED else (b_steps, 1)
    out_row = array_at(out_step, np.int64)[0]
    if inner == 0 and not adds:
        for line in range(n):
            array_at(out + WORD * line * out_row, np.float32)[:m] = 0
    lies = column == 1 and n <= LYING_ROWS
    at_once = max(1, inner if lies and n <= ROWS else min(OUTER_AT_ONCE, inner))  # a single row of tiles reads it once
    wide = max(1, m if lies else min(m, BLOCK_WORDS // at_once // WIDTH * WIDTH))
    scratch = np.empty(0 if lies else panel_words(at_once, wide, False) + LANES, np.uint32)
    packed = -(-scratch.ctypes.data // LINE) * LINE
    for left in range(0, m, wide):
        n_columns = min(wide, m - left)
        for first in range(0, inner, at_once):
            n_inner = min(at_once, inner - first)
            n_next, place = min(at_once, inner - first - n_inner), a + WORD * (first * row + left * column)
            panels = place, row, WIDTH
            if not lies:
                panels = packed, WIDTH, WIDTH * n_inner
                pack_float32(place, row, column, n_inner, n_columns, packed)
            next_rows = b + WORD * (first + n_inner) * b_inner, b_inner, n_next if b_row == 1 else 0, n
            next_columns = place + WORD * n_inner * row, row, n_next if column == 1 else 0, n_columns
            block_float32(
                (n, n_columns, n_inner), (b + WORD * first * b_inner, b_row, b_inner), panels,
                (out + WORD * left, out_row), 1 if adds or first else 0, next_rows, next_columns,
            )  # fmt: skip


class Repeated:
    """Repeats products with a matrix that is packed once, on several sets of rows in turn, to be timed."""

    def __init__(self, product: Gemm, copies: Copies) -> None:
        row, column = (1, product.b_step) if product.b_flipped else (product.b_step, 1)
        self._panels = np.empty(panel_words(product.k, product.n, False), np.uint32)
        pack_float32(product.b, row, column, product.k, product.n, address_of(self._panels))
        self._product, self._copies = tuple(product), copies

    def __call__(self, times: int) -> None:
        """Multiply `times` times."""
        repeat_packed(times, self._product, address_of(self._panels), self._copies)


@compiled_at_once
def repeat_packed(times: int, product: Numbers, panels: int, copies: Copies) -> None:
    """Multiply rows by a packed matrix; see `autobatch.blas.calling.repeat_product`."""
    _, _, m, n, inner, a, a_step, _, _, out, out_step = product
    for time in range(times):
        multiply_float32(m, n, inner, (a + time % copies[0] * copies[1], a_step), panels, (out, out_step), 0)
