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


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_ints_that_float32_rounds_are_compared_as_ints(backend: str) -> None:
    """Also with constants; float32 holds 2**24, but rounds 2**24 + 1 to it."""
    model: Any = ab.Module()
    model.scale = ab.Parameter(np.ones(1))
    most = 2**24

    @ab.cell
    def compared(n: int, v: Any) -> Any:
        pairs = ((n, most), (most, n), (n, float(most)), (v, np.array([most, most + 1])), (v[1], -most), (n, v))
        found = [compare(x, y) for x, y in pairs for compare in (ab.equal, ab.less, ab.greater_equal, ab.not_equal)]
        return model.scale * ab.concat([ab.reshape(x, (-1,)) if x.shape else ab.stack([x]) for x in found]), ab.argmax(
            v
        )

    instances = [(most + 1, np.array([most, most + 1])), (most, np.array([most + 1, -most - 1])), (3, np.array([5, 5]))]
    found, positions = ab.batched(lambda pair: compared(*pair), module=model, backend=backend)(instances)
    for number, (n, v) in enumerate(instances):
        pairs = [(n, most), (most, n), (n, most), (v, np.array([most, most + 1])), (v[1], -most), (n, v)]
        ways: tuple[Any, ...] = (np.equal, np.less, np.greater_equal, np.not_equal)
        wanted = [compare(x, y) for x, y in pairs for compare in ways]
        np.testing.assert_array_equal(found[number], np.concatenate([np.atleast_1d(x) for x in wanted]))
        assert positions[number] == np.argmax(v)
