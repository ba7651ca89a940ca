"""Test the sizes of values in cells: eager mode and batches report the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autobatch as ab

X = np.array([0.5, -1.0, 2.0])


def test_a_value_has_a_size() -> None:
    @ab.cell
    def divided(x: Any, xs: Any) -> Any:
        return ab.sum(ab.outer(x, x)) / ab.outer(x, x).size + sum(y.size * ab.sum(y) for y in xs) + ab.sum(x).size

    run, given = ab.batched(lambda one: divided(*one), backend="reference"), [(X, [X, 2.0 * X]), (X[:2], [X[:1]] * 3)]
    np.testing.assert_allclose(run(given), [divided(*one) for one in given], rtol=1e-6)

    @ab.cell(ragged=("x",))
    def of_rows(x: Any) -> Any:
        return ab.sum(x) * x.size

    with pytest.raises(ab.ShapeError, match="size needs values of known sizes"):
        ab.batched(of_rows, backend="reference")([np.ones((2, 3))])
