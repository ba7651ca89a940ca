"""Test sums over the rows of segments against sums of each row's einsum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autobatch.ir.autodiff import ROW_SUM
from autobatch.ops.define import Op, run_kernel
from autobatch.ops.indexing import scatter
from autobatch.ops.linear import factors, matmul, outer

N_SEGMENTS, N_ROWS = 3, 4
PRODUCTS: dict[str, tuple[Op, tuple[int, ...], tuple[int, ...], str]] = {
    "outer": (outer, (2,), (5,), "sri,srj->sij"),
    "matrices": (matmul, (2, 6), (6, 5), "srik,srkj->sij"),
    "matrix and vector": (matmul, (2, 6), (6,), "srik,srk->si"),
    "vector and matrix": (matmul, (6,), (6, 5), "srk,srkj->sj"),
    "vectors": (matmul, (6,), (6,), "srk,srk->s"),
}


def draw(rng: np.random.Generator, shape: tuple[int, ...], is_shared: bool) -> Any:
    return rng.standard_normal((*((1, 1) if is_shared else (N_SEGMENTS, N_ROWS)), *shape))


def of_rows(x: Any) -> Any:
    return np.broadcast_to(x, (N_SEGMENTS, N_ROWS, *x.shape[2:]))


@pytest.mark.parametrize("shared", [None, 0, 1])
@pytest.mark.parametrize("name", PRODUCTS)
def test_sums_of_products_are_added(name: str, shared: int | None) -> None:
    op, *shapes, formula = PRODUCTS[name]
    rng = np.random.default_rng(0)
    x, y = (draw(rng, shape, place == shared) for place, shape in enumerate(shapes))
    assert op.row_sum is not None
    wanted = np.einsum(formula, of_rows(x), of_rows(y))
    before = rng.standard_normal(wanted.shape)
    out = before.copy()
    op.row_sum(np, x, y, out=out)
    np.testing.assert_allclose(out - before, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["outer", "matrices"])
def test_factors_are_those_of_the_sums(name: str) -> None:
    _, *shapes, formula = PRODUCTS[name]
    rng = np.random.default_rng(0)
    x, y = (draw(rng, shape, is_shared=False) for shape in shapes)
    left, right = factors(x, y)
    np.testing.assert_allclose(np.einsum("sni,snj->sij", left, right), np.einsum(formula, x, y), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shared", [None, 0, 1])
@pytest.mark.parametrize("ids_shape", [(), (2,)])
def test_scattered_rows_are_added(ids_shape: tuple[int, ...], shared: int | None) -> None:
    rng, size = np.random.default_rng(0), 3
    g = draw(rng, (*ids_shape, 2), shared == 0)
    ids = rng.integers(0, size, ((1, 1) if shared == 1 else (N_SEGMENTS, N_ROWS)) + ids_shape)
    out = np.ones((N_SEGMENTS, size, 2))
    assert scatter.row_sum is not None
    scatter.row_sum(np, g, ids, out=out, size=size)
    wanted = np.ones_like(out)
    for place in np.ndindex(N_SEGMENTS, N_ROWS, *ids_shape):
        wanted[place[0], of_rows(ids)[place]] += of_rows(g)[place]
    np.testing.assert_allclose(out, wanted, rtol=1e-12)


@pytest.mark.parametrize("n_rows", [0, N_ROWS])
def test_rows_are_added(n_rows: int) -> None:
    x, out = np.random.default_rng(0).standard_normal((N_SEGMENTS, n_rows, 2)), np.ones((N_SEGMENTS, 2))
    run_kernel(ROW_SUM, np, [x], out, {})
    np.testing.assert_allclose(out, 1.0 + np.einsum("sri->si", x), rtol=1e-12)
