"""Test that values under differentiation compare, convert and format like NumPy arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab

KINDS: dict[str, Callable[[Any], Any]] = {
    "an input": lambda x: x,
    "a part of an input": lambda x: x[1:],
    "a computed value": lambda x: 2.0 * x,
}
COMPARISONS = operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne
NUMBERS = np.array([1.5, -0.25, 2.0])


def inside(depth: int, kind: str, check: Callable[[Any, Any], Any]) -> None:
    """Check a value inside nested derivatives against the array that it stands for."""
    found = list[Any]()

    def function(x: Any) -> Any:
        found.append(check(KINDS[kind](x), KINDS[kind](NUMBERS)))
        return ab.sum(x * x)

    derived = function
    for _ in range(depth):
        derived = (lambda inner: lambda x: ab.sum(inner(x) * x))(ab.grad(derived))
    assert np.allclose(derived(NUMBERS), 2.0**depth * np.sum(NUMBERS * NUMBERS))
    assert found == [None]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_comparisons_are_those_of_the_numbers(kind: str, depth: int) -> None:
    weight = ab.Parameter(np.array([2.0]))

    def check(x: Any, expected: Any) -> None:
        for compare in COMPARISONS:
            for other in (0.5, 2.0, np.array(-0.25), expected, weight):
                numbers = other.data if other is weight else other
                assert np.array_equal(compare(x, other), compare(expected, numbers))
            assert np.array_equal(compare(x, x), compare(expected, expected))
            assert compare(x[0], x[1] * 1.0) == compare(expected[0], expected[1])

    inside(depth, kind, check)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_conversions_are_those_of_the_numbers(kind: str, depth: int) -> None:
    def check(x: Any, expected: Any) -> None:
        assert (x.shape, x.ndim, x.size, x.dtype) == (expected.shape, 1, expected.size, expected.dtype)
        for own, number in zip(x, expected, strict=True):
            assert (bool(own), int(own), f"{own:.2f}") == (bool(number), int(number), f"{number:.2f}")
            assert f"{own}" == f"{number}"
        for convert in (float, np.asarray):
            with pytest.raises(ab.GraphError, match="would lose its gradient"):
                convert(x[0])

    inside(depth, kind, check)


def test_awaited_values_are_the_numbers() -> None:
    async def function(x: Any) -> Any:
        whole, scalar = await ab.value((x * 1.0, ab.sum(x)))
        assert np.array_equal(whole, NUMBERS)
        assert isinstance(scalar, np.float64)
        assert scalar == np.sum(NUMBERS)
        return ab.sum(x * x)

    assert np.allclose(ab.eager(ab.grad(function), NUMBERS), 2.0 * NUMBERS)
