"""Test matrices in the formats that products read, against the parameters from which they are built."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from autobatch._native import multiply_packed
from autobatch.arrays import rounded
from autobatch.backends.cpu.operands import SharedMatrix
from autobatch.compiler.statement import Term
from autobatch.compiler.view import View
from autobatch.system.processor import has_avx512
from helpers.runs.ways import each

Array = Any
INNER, N = 7, 70
FORMS: dict[str, Any] = {
    "rows": lambda x: x,
    "columns": lambda x: np.asfortranarray(x),
    "parts of wider rows": lambda x: np.pad(x, ((0, 0), (0, 5)))[:, : x.shape[1]],
    "equal rows": lambda x: np.broadcast_to(x[0], x.shape),
    "reversed": lambda x: x[:, ::-1],
}


def read(place: tuple[bool, int, int], shape: tuple[int, int]) -> Array:
    """Copy the matrix at an address."""
    is_flipped, address, step = place
    n_rows, n_columns = shape[::-1] if is_flipped else shape
    data: Any = (ctypes.c_float * ((n_rows - 1) * step + n_columns)).from_address(address)
    rows = np.lib.stride_tricks.as_strided(np.frombuffer(data, np.float32), (n_rows, n_columns), (4 * step, 4))
    return rows.T.copy() if is_flipped else rows.copy()


@each("form", FORMS)
@each("transposed", [False, True])
@each("precision", ["float32", "bf16"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_matrix_follows_the_shared_value(form: str, transposed: bool, precision: str, is_packed: bool) -> None:
    """When its numbers change, it keeps its address unless it is rounded; when the value moves, it is found again."""
    if is_packed and not has_avx512():
        pytest.skip("needs AVX-512")
    rng = np.random.default_rng(0)
    shape = (N, INNER) if transposed else (INNER, N)
    drawn = rng.standard_normal(shape).astype(np.float32)
    stage: Any = SimpleNamespace(precision=precision, version=1, n_moved=1, shared=SimpleNamespace(arrays={}))
    matrix = SharedMatrix(stage, Term(View(1, 0, (INNER,), (1,)), 0, transposed), is_packed, by_bf16=False)
    places = []
    for n_moved in (1, 1, 2, 2):
        if stage.n_moved != n_moved or not stage.shared.arrays:
            whole = FORMS[form](drawn.copy())
            stage.shared.arrays[0], stage.n_moved = whole[None], n_moved
        base = whole if whole.base is None else whole.base
        base[...] = rng.standard_normal(base.shape)
        stage.version += 1
        expected = np.asarray(whole.T if transposed else whole)
        expected = rounded(expected) if precision == "bf16" else expected
        place = matrix.update()
        if is_packed:
            x, out = rng.standard_normal((1, 5, INNER)).astype(np.float32), np.zeros((5, N), np.float32)
            multiply_packed(x, matrix.array, out, False, False, 1)
            np.testing.assert_allclose(out, x[0] @ expected, rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(read(place, (INNER, N)), expected)
            np.testing.assert_array_equal(matrix.array, expected)
        assert matrix.update() == place, "nothing has changed"
        places.append(place)
    if precision == "float32" or is_packed:
        assert places[0] == places[1]
        assert places[2] == places[3]


@each("transposed", [False, True])
def test_libraries_read_a_transpose_from_contiguous_rows(transposed: bool) -> None:
    whole = np.ones((N, INNER), np.float32)
    stage: Any = SimpleNamespace(precision="float32", version=1, n_moved=1)
    stage.shared = SimpleNamespace(arrays={0: whole[None]})
    matrix = SharedMatrix(stage, Term(View(1, 0, (INNER,), (1,)), 0, transposed), False, False)
    is_flipped, _, step = matrix.update()
    assert (is_flipped, step) == (False, N if transposed else INNER)
    assert np.shares_memory(matrix.array, whole) != transposed
