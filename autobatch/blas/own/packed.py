"""Products with a matrix that was packed before: nearly as fast for few rows as for many, in float32 and in bf16.

In every call, libraries pack the matrix into the order in which they read it. For a few rows that takes longer than the
multiplication. Here the matrix is packed once per run; the product itself is register tiles
(`autobatch.blas.own.tiles`) in compiled code. GFLOP/s of rows of 512 times (512, 1280), one thread of an AMD EPYC of
2024, against the fastest library (`autobatch doctor --matmul`):

    rows                        4    16    64   256
    float32, library           42   134   192   218
    float32, packed           172   233   236   225
    bf16, packed              405   458   463   456

Blocks of rows and of inner indices keep the data that tiles share in the caches: Goto and van de Geijn 2008
(doi:10.1145/1356052.1356053).
"""

from __future__ import annotations

import numpy as np

from autobatch.blas.own.tiles import LANES, NO_ROWS, WIDTH, WORD, Strided, block_bf16, block_float32, turn
from autobatch.jit.addresses import array_at
from autobatch.jit.loops import compiled, compiled_at_once

ROWS_AT_ONCE, INNER_AT_ONCE, OUTER_AT_ONCE = 48, 512, 128
LOW, HALF, ONE = np.uint32(0x7FFF), np.uint32(16), np.uint32(1)
MAGNITUDE, INFINITY, QUIET = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000), np.uint32(0x40)


@compiled
def panel_words(inner: int, n: int, is_bf16: bool) -> int:
    """The number of words of a packed matrix (inner, n)."""
    return ((inner + 1) // 2 if is_bf16 else inner) * ((n + WIDTH - 1) // WIDTH) * WIDTH


@compiled
def round_to_float32(source: int, row: int, n_rows: int, width: int, out: int) -> None:
    """Round rows to bf16, and write them as contiguous float32 numbers.

    Args:
        source: address of the first row; row: elements from one row to the next.
        out: address of n_rows * width words.
    """
    words, target = array_at(source, np.uint32), array_at(out, np.uint32)
    for r in range(n_rows):
        given, made = words[r * row : r * row + width], target[r * width : (r + 1) * width]
        for i in range(width):
            made[i] = np.uint32(half(given[i]) << HALF)


# Packing.


@compiled
def half(bits: np.uint32) -> np.uint32:
    """Round the bits of a float32 to bf16 (their first half): to nearest, ties to even; NaN stays NaN."""
    rounded = np.uint32(bits + np.uint32(LOW + np.uint32(np.uint32(bits >> HALF) & ONE))) >> HALF
    quiet = np.uint32(bits >> HALF) | QUIET
    return np.uint32(quiet if np.uint32(bits & MAGNITUDE) > INFINITY else rounded)


@compiled_at_once
def pack_float32(source: int, row: int, column: int, inner: int, n: int, packed: int) -> None:
    """Pack a matrix (inner, n) of float32.

    Args:
        source: address of its first element; row, column: elements from one row, and from one column, to the next.
        packed: address of `panel_words(inner, n, False)` words.
    """
    panels, words = array_at(packed, np.uint32), array_at(source, np.uint32)
    for left in range(0, n, WIDTH):
        width = min(WIDTH, n - left)
        panel = panels[left * inner : (left + WIDTH) * inner]
        for first in range(0, inner, LANES):
            last = min(first + LANES, inner)
            if column == 1:
                for k in range(first, last):
                    line, out = words[k * row + left : k * row + left + width], panel[k * WIDTH : (k + 1) * WIDTH]
                    for j in range(width):
                        out[j] = line[j]
            else:
                whole = width - width % LANES if row == 1 and last - first == LANES else 0
                for j in range(0, whole, LANES):
                    place = packed + WORD * (left * inner + first * WIDTH + j)
                    turn(source + WORD * (first + (left + j) * column), column, place, WIDTH)
                for j in range(whole, width):
                    for k in range(first, last):
                        panel[k * WIDTH + j] = words[k * row + (left + j) * column]
            for k in range(first, last):
                for j in range(width, WIDTH):
                    panel[k * WIDTH + j] = 0


@compiled_at_once
def pack_bf16(source: int, row: int, column: int, inner: int, n: int, packed: int) -> None:
    """Round and pack a float32 matrix (inner, n); see `pack_float32`. Rows are paired; an odd last one with zeros.

    Either axis must be contiguous, if it is longer than one.
    """
    pairs, is_turned = (inner + 1) // 2, column != 1 and n > 1
    turned = np.empty(WIDTH * pairs if is_turned else 0, np.uint32)
    for left in range(0, n, WIDTH):
        width, panel = min(WIDTH, n - left), packed + WORD * left * pairs
        if is_turned:
            round_rows(source + WORD * left * column, column, width, inner, turned.ctypes.data)
            pack_float32(turned.ctypes.data, 1, pairs, pairs, width, panel)
        else:
            _pair_rows(source + WORD * left, row, inner, width, panel, WIDTH)


@compiled
def round_rows(source: int, row: int, n_rows: int, inner: int, out: int) -> None:
    """Round rows of float32 to bf16; each takes (inner + 1) // 2 words. If inner is odd, the last half word is zero."""
    pairs = (inner + 1) // 2
    words, rounded = array_at(source, np.uint32), array_at(out, np.uint32)
    for r in range(n_rows):
        line, target = words[r * row : r * row + inner], rounded[r * pairs : (r + 1) * pairs].view(np.uint16)
        for k in range(inner):
            target[k] = np.uint16(half(line[k]))
        if inner % 2:
            target[inner] = np.uint16(0)


@compiled
def _pair_rows(source: int, row: int, n_rows: int, width: int, out: int, out_row: int) -> None:
    """Round rows and pair them: element i of rows 2r and 2r + 1 make word i of row r, which ends in zeros."""
    paired, last = array_at(out, np.uint32), array_at(source + WORD * (n_rows - 1) * row, np.uint32)
    for r in range(n_rows // 2):
        at = source + WORD * 2 * r * row
        low, high = array_at(at, np.uint32), array_at(at + WORD * row, np.uint32)
        for i in range(width):
            paired[r * out_row + i] = half(low[i]) | np.uint32(half(high[i]) << HALF)
    if n_rows % 2:
        for i in range(width):
            paired[n_rows // 2 * out_row + i] = half(last[i])
    if width < out_row:
        for r in range((n_rows + 1) // 2):
            for i in range(width, out_row):
                paired[r * out_row + i] = 0


# Products.


@compiled
def multiply_float32(m: int, n: int, inner: int, a: Strided, packed: int, out: Strided, adds: int) -> None:
    """Multiply rows by a packed matrix.

    Args:
        m, n, inner: rows, columns, and inner indices, at least 1.
        a, out: (m, inner) and (m, n).
        packed: address of the matrix, packed by `pack_float32`.
        adds: 1 adds to `out`, 0 overwrites it.
    """
    (rows, a_row), (target, out_row) = a, out
    for top in range(0, m, ROWS_AT_ONCE):
        bottom = min(top + ROWS_AT_ONCE, m)
        for first in range(0, inner, INNER_AT_ONCE):
            n_inner = min(INNER_AT_ONCE, inner - first)
            next_rows = rows + WORD * (bottom * a_row + first), a_row, min(ROWS_AT_ONCE, m - bottom), n_inner
            block_float32(
                (bottom - top, n, n_inner), (rows + WORD * (top * a_row + first), a_row, 1),
                (packed + WORD * first * WIDTH, WIDTH, WIDTH * inner), (target + WORD * top * out_row, out_row),
                adds + first, next_rows, NO_ROWS,
            )  # fmt: skip


@compiled
def rows_words(inner: int) -> int:
    """The number of words of scratch memory that `multiply_bf16` needs."""
    return ROWS_AT_ONCE * ((inner + 1) // 2)


@compiled_at_once
def multiply_bf16(m: int, n: int, inner: int, a: Strided, packed: int, out: Strided, adds: int, scratch: int) -> None:
    """Round rows and multiply them by a matrix packed by `pack_bf16`; sums are float32.

    Args:
        m, n, inner, a, packed, out, adds: as for `multiply_float32`; the rows are float32.
        scratch: address of `rows_words(inner)` words, for some dozens of rounded rows, which stay in the cache.
    """
    (rows, a_row), (target, out_row) = a, out
    pairs = (inner + 1) // 2
    for top in range(0, m, ROWS_AT_ONCE):
        bottom = min(top + ROWS_AT_ONCE, m)
        round_rows(rows + WORD * top * a_row, a_row, bottom - top, inner, scratch)
        for first in range(0, pairs, INNER_AT_ONCE):
            next_rows = rows + WORD * bottom * a_row, a_row, 0 if first else min(ROWS_AT_ONCE, m - bottom), inner
            block_bf16(
                (bottom - top, n, min(INNER_AT_ONCE, pairs - first)), (scratch + WORD * first, pairs, 1),
                (packed + WORD * first * WIDTH, WIDTH, WIDTH * pairs), (target + WORD * top * out_row, out_row),
                adds + first, next_rows, NO_ROWS,
            )  # fmt: skip


@compiled
def outer_words(m: int, n: int) -> int:
    """The number of words of scratch memory that `add_outer_bf16` needs."""
    return OUTER_AT_ONCE * (((n + WIDTH - 1) // WIDTH) * WIDTH + m)


@compiled_at_once
def add_outer_bf16(rows: int, m: int, n: int, x: Strided, y: Strided, out: Strided, scratch: int) -> None:
    """Add x' @ y, both rounded to bf16, to `out`: the gradient of a matrix. Products are summed in pairs of rows.

    Args:
        rows, m, n: x is (rows, m), y (rows, n), out (m, n).
        scratch: address of `outer_words(m, n)` words.
    """
    (x_first, x_row), (y_first, y_row) = x, y
    left = scratch + WORD * OUTER_AT_ONCE * ((n + WIDTH - 1) // WIDTH) * WIDTH
    for first in range(0, rows, 2 * OUTER_AT_ONCE):
        n_rows = min(2 * OUTER_AT_ONCE, rows - first)
        pack_bf16(y_first + WORD * first * y_row, y_row, 1, n_rows, n, scratch)
        _pair_rows(x_first + WORD * first * x_row, x_row, n_rows, m, left, m)
        pairs, follows, n_next = (n_rows + 1) // 2, first + n_rows, min(2 * OUTER_AT_ONCE, rows - first - n_rows)
        next_x, next_y = x_first + WORD * follows * x_row, y_first + WORD * follows * y_row
        block_bf16(
            (m, n, pairs), (left, 1, m), (scratch, WIDTH, WIDTH * pairs), out, 1,
            (next_x, x_row, n_next, m), (next_y, y_row, n_next, n),
        )  # fmt: skip
