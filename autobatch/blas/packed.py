"""autobatch's own matrix product, for a matrix that is packed once and multiplied by many rows.

In every call, libraries pack a matrix into the order in which they read it. For a few rows that takes longer than the
multiplication. Here, callers pack a matrix once per change of its values, if all rows of a type share it. Other
matrices are packed in every call, or read in place if they are read only a few times. The code is in `native/blas`.
GFLOP/s of products (rows, 512) @ (512, 1280) on one thread of an AMD EPYC of 2024, compared with the fastest library
(from `autobatch doctor --matmul`):

    rows                        4    16    64   256
    float32, library           42   134   192   218
    float32, packed           172   233   236   225
    bf16, packed              405   458   463   456
"""

from __future__ import annotations

from autobatch._native import sgemm_address
from autobatch.blas.provider import ByAddress
from autobatch.release import VERSION
from autobatch.system.processor import has_avx512

NAME = "packed"
WIDTH, ROUNDED_AT_ONCE, OUTER_AT_ONCE, TILE = 64, 96, 128, 16
"""Columns of a panel, rows rounded at once, pairs of rows of a gradient, and rows or pairs of an AMX register; see
`native/blas/packed.h` and `amx.h`."""


def make_provider() -> ByAddress:
    """Make the provider; only on processors with AVX-512."""
    assert has_avx512(), "the kernels need AVX-512"
    return ByAddress(NAME, VERSION, {"float32": sgemm_address()})


def panel_words(inner: int, n: int, is_bf16: bool) -> int:
    """Return the number of 32-bit words of a packed matrix (inner, n)."""
    return (padded_pairs(inner) if is_bf16 else inner) * _round_up(n, WIDTH)


def padded_pairs(inner: int) -> int:
    """Return the number of pairs of bf16 numbers, with padding, for `inner` numbers of a packed matrix or row."""
    return _round_up(-(-inner // 2), TILE)


def outer_words(m: int, n: int) -> int:
    """Return the number of 32-bit words of scratch memory for the gradient of a matrix (m, n) in bf16."""
    return OUTER_AT_ONCE * (_round_up(n, WIDTH) + _round_up(m, TILE))


def _round_up(n: int, unit: int) -> int:
    return -(-n // unit) * unit
