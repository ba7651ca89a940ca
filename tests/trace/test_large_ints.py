"""Test large ints in cells: eager and batched agree, or the error says that the int does not fit a float."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autobatch as ab

X = np.array([0.5, -1.0, 2.0])
INTS = [sign * (2**k + d) for k in (31, 53, 62, 63, 64, 65, 100, 1000) for d in (-1, 0, 1) for sign in (1, -1)]


class Scaled(ab.Module):
    """A model with an int attribute."""

    def __init__(self, factor: int) -> None:
        self.w = ab.Parameter(np.ones(3)).astype("float64")
        self.factor = factor

    @ab.cell
    def of_constant(self, x: Any) -> Any:
        return x * self.w * self.factor

    @ab.cell
    def of_op(self, x: Any) -> Any:
        return ab.maximum(x * self.w, self.factor)


@pytest.mark.parametrize("name", ["of_constant", "of_op"])
def test_large_ints_are_floats(name: str) -> None:
    for factor in INTS:
        model = Scaled(factor)
        found = ab.batched(getattr(model, name), module=model, backend="reference")([X])[0]
        product = X * float(factor) if name == "of_constant" else np.maximum(X, float(factor))
        np.testing.assert_allclose(found, product, rtol=1e-15)
        np.testing.assert_allclose(getattr(model, name)(X), product, rtol=1e-15)


def test_ints_that_no_float_holds_are_refused() -> None:
    for factor in (10**400, -(10**400), 2**1024):
        model = Scaled(factor)
        for cell in (model.of_constant, model.of_op):
            with pytest.raises(ab.DataError, match="an int must fit a float64, got one of"):
                ab.batched(cell, module=model, backend="reference")([X])
        with pytest.raises(ab.DataError, match="an int must fit a float64"):
            model.of_op(X)
