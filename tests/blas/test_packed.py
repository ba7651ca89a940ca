"""Test products with packed matrices against float64, for all remainders of rows, columns and pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autobatch import _native
from autobatch.arrays import rounded
from autobatch.blas import packed
from autobatch.system.processor import has_avx512, has_bf16
from helpers.runs.ways import each

Array = Any
SIZES = (
    (1, 1, 1), (2, 3, 5), (6, 64, 2), (7, 65, 9), (13, 130, 64), (53, 17, 1100), (101, 70, 33), (5, 1, 513),
    (16, 16, 3), (39, 5, 64), (64, 48, 7), (50, 49, 6), (300, 96, 130),
)  # fmt: skip
UNTOUCHED = np.float32(-77.0)
KINDS = [
    pytest.param(False, marks=pytest.mark.skipif(not has_avx512(), reason="needs AVX-512"), id="float32"),
    pytest.param(True, marks=pytest.mark.skipif(not has_bf16(), reason="needs AVX-512 bf16"), id="bf16"),
]


def spread(matrix: Array, gap: int) -> Array:
    """Copy a matrix to rows with `gap` other numbers between them."""
    wide = np.full((len(matrix), matrix.shape[1] + gap), UNTOUCHED, np.float32)
    wide[:, : matrix.shape[1]] = matrix
    return wide


def multiply(x: Array, w: Array, out: Array, is_bf16: bool, adds: bool, is_flipped: bool) -> None:
    """Compute out = x @ w by packing; rows of `x` and `out` are strided, and `w` may be stored transposed."""
    words = np.empty(packed.panel_words(len(w), w.shape[1], is_bf16), np.uint32)
    _native.pack(np.ascontiguousarray(w.T).T if is_flipped else w, words, is_bf16)
    _native.multiply_packed(spread(x, 3)[None, :, : x.shape[1]], words, out, is_bf16, adds, 1)


def assert_close(found: Array, x: Array, w: Array, before: Array, is_bf16: bool) -> None:
    """Check errors against the bound for float32: one rounding per product and sum."""
    if is_bf16:
        x, w = rounded(x), rounded(w)
    x, w = x.astype(np.float64), w.astype(np.float64)
    bound = (x.shape[1] + 2) * 2.0**-23 * (np.abs(x) @ np.abs(w) + np.abs(before))
    assert (np.abs(found - (before + x @ w)) <= bound).all()


@pytest.mark.parametrize("is_bf16", KINDS)
@each("size", SIZES)
def test_products(size: tuple[int, int, int], is_bf16: bool) -> None:
    rng = np.random.default_rng(0)
    m, n, inner = size
    for is_flipped in (False, True):
        x, w = rng.standard_normal((m, inner)).astype(np.float32), rng.standard_normal((inner, n)).astype(np.float32)
        whole = np.full((m + 1, n + 5), UNTOUCHED, np.float32)
        out = whole[:m, :n]
        multiply(x, w, out, is_bf16, False, is_flipped)
        assert_close(out, x, w, np.zeros((m, n)), is_bf16)
        before = out.copy()
        multiply(x, w, out, is_bf16, True, is_flipped)
        assert_close(out, x, w, before, is_bf16)
        assert (whole[m] == UNTOUCHED).all()
        assert (whole[:, n:] == UNTOUCHED).all()


@pytest.mark.parametrize("is_bf16", KINDS)
def test_a_row_does_not_depend_on_its_neighbours(is_bf16: bool) -> None:
    """A row is bit-identical however many rows are multiplied at once."""
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((60, 300)).astype(np.float32), rng.standard_normal((300, 100)).astype(np.float32)
    whole, alone = np.empty((60, 100), np.float32), np.empty((60, 100), np.float32)
    multiply(x, w, whole, is_bf16, False, False)
    for row in range(60):
        multiply(x[row : row + 1], w, alone[row : row + 1], is_bf16, False, False)
    np.testing.assert_array_equal(alone, whole)


@pytest.mark.parametrize("is_bf16", KINDS)
def test_nan_and_infinity_pass(is_bf16: bool) -> None:
    x, w, out = np.zeros((3, 5), np.float32), np.ones((5, 7), np.float32), np.empty((3, 7), np.float32)
    x[0, 4], x[1, 0] = np.nan, np.inf
    multiply(x, w, out, is_bf16, False, False)
    assert np.isnan(out[0]).all()
    assert (out[1] == np.inf).all()
    assert (out[2] == 0).all()


@pytest.mark.parametrize("is_bf16", KINDS)
@each("size", SIZES)
def test_gradients_of_matrices(size: tuple[int, int, int], is_bf16: bool) -> None:
    rng = np.random.default_rng(2)
    m, n, rows = size
    x, y = spread(rng.standard_normal((rows, m)), 2), spread(rng.standard_normal((rows, n)), 1)
    whole = np.full((m + 1, n + 4), UNTOUCHED, np.float32)
    out = whole[:m, :n]
    if is_bf16:
        _native.add_outer_bf16(x[:, :m], y[:, :n], out, 1)
    else:
        packed.make_provider().multiply(x[:, :m].T, y[:, :n], out, accumulate=True)
    assert_close(out, x[:, :m].T, y[:, :n], np.full((m, n), UNTOUCHED), is_bf16)
    assert (whole[m] == UNTOUCHED).all()
    assert (whole[:, n:] == UNTOUCHED).all()


@pytest.mark.parametrize("is_bf16", KINDS)
def test_sets_of_rows_are_multiplied_in_turn(is_bf16: bool) -> None:
    rng = np.random.default_rng(4)
    rows, w = rng.standard_normal((3, 5, 9)).astype(np.float32), rng.standard_normal((9, 70)).astype(np.float32)
    words, out = np.empty(packed.panel_words(9, 70, is_bf16), np.uint32), np.zeros((5, 70), np.float32)
    _native.pack(w, words, is_bf16)
    _native.multiply_packed(rows, words, out, is_bf16, True, 7)
    expected = np.zeros((5, 70), np.float32)
    for x in rows[[0, 1, 2, 0, 1, 2, 0]]:
        multiply(x, w, expected, is_bf16, True, False)
    np.testing.assert_array_equal(out, expected)


def nearest_bf16(x: Any) -> Any:
    """Round to the nearer of both neighbours; infinity counts as 2**128."""
    low = x.view(np.uint32) >> 16
    distances = []
    for bits in (low, low + 1):
        number = (bits.astype(np.uint32) << 16).view(np.float32).astype(float)
        distances.append(
            np.abs(np.where(np.isinf(number), np.copysign(np.float64(2.0**128), x), number) - x.astype(float))
        )
    up = (distances[1] < distances[0]) | ((distances[1] == distances[0]) & (low % 2 == 1))
    return (low + up).astype(np.uint16)


def round_by_packing(x: Array, is_flipped: bool) -> Array:
    """Return the bits of rows that are rounded while packing, in pairs of rows or of columns."""
    matrix = x.T if is_flipped else x
    words = np.empty(packed.panel_words(len(matrix), matrix.shape[1], True), np.uint32)
    _native.pack(matrix, words, True)
    pairs = words.view(np.uint16).reshape(-1, packed.padded_pairs(len(matrix)), packed.WIDTH, 2)
    found = pairs.transpose(1, 3, 0, 2).reshape(pairs.shape[1] * 2, -1)[: len(matrix), : matrix.shape[1]]
    return found.T if is_flipped else found


@pytest.mark.skipif(not has_bf16(), reason="needs AVX-512 bf16")
@each("is_flipped", (False, True))
def test_rounding_to_bf16_takes_the_nearest_and_the_even_of_two(is_flipped: bool) -> None:
    rng = np.random.default_rng(2)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32)
    bits[::4] = (bits[::4] & np.uint32(0xFFFF0000)) | np.uint32(0x8000)  # ties
    x = bits.view(np.float32)[np.isfinite(bits.view(np.float32))]
    x = x[: x.size // 9 * 9].reshape(-1, 9)
    np.testing.assert_array_equal(round_by_packing(x, is_flipped), nearest_bf16(x))
    n_ties = int(((x.view(np.uint32) & 0xFFFF) == 0x8000).sum())
    assert n_ties > 40_000


@pytest.mark.skipif(not has_bf16(), reason="needs AVX-512 bf16")
@each("is_flipped", (False, True))
def test_rounding_to_bf16_keeps_nan_and_infinity(is_flipped: bool) -> None:
    bits = np.array([[0x7F800000, 0xFF800000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F7FFFFF, 0x80000000]], np.uint32)
    (found,) = round_by_packing(bits.view(np.float32), is_flipped)
    assert [hex(word) for word in found[[0, 1, 5, 6]]] == ["0x7f80", "0xff80", "0x7f80", "0x8000"]
    assert np.isnan((found[2:5].astype(np.uint32) << 16).view(np.float32)).all()


@pytest.mark.skipif(not has_bf16(), reason="needs AVX-512 bf16")
@pytest.mark.slow
@each("is_flipped", (False, True))
@each("size", SIZES)
def test_matrices_are_packed_in_pairs_of_rounded_rows(size: tuple[int, int, int], is_flipped: bool) -> None:
    """Word (k, j) of a panel holds rows 2k and 2k + 1 of its column j; padding is zero."""
    _, n, inner = size
    w = np.random.default_rng(3).standard_normal((inner, n)).astype(np.float32)
    apart = spread(w.T if is_flipped else w, 2)[:, : inner if is_flipped else n]
    found = np.full(packed.panel_words(inner, n, True), 0x7FC07FC0, np.uint32)
    _native.pack(apart.T if is_flipped else apart, found, True)
    whole = np.zeros((2 * packed.padded_pairs(inner), -(-n // packed.WIDTH) * packed.WIDTH), np.uint32)
    whole[:inner, :n] = nearest_bf16(w)
    panels = (whole[::2] | whole[1::2] << 16).reshape(len(whole) // 2, -1, packed.WIDTH).swapaxes(0, 1)
    np.testing.assert_array_equal(found.reshape(panels.shape), panels)
