"""Test empty lists: a function has the same result or message wherever it is applied to one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from helpers.runs.ways import each

SHAPE = (3,)
X = np.arange(3.0)


def doubled(values: Any) -> Any:
    return ab.each(lambda h: 2.0 * h, values)


REDUCTIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "sum_n": lambda x, k, how: ab.sum_n(k, **how),
    "mean_n": lambda x, k, how: ab.mean_n(k, **how),
    "max_n": lambda x, k, how: ab.max_n(k, **how),
    "dot_n": lambda x, k, how: ab.dot_n(k, k, **how),
    "attend": lambda x, k, how: ab.attend(x, k, k, **how),
    "softmax_n": lambda x, k, how: ab.sum_n(ab.softmax_n(k), **how),
    "softmax_n and dot_n": lambda x, k, how: ab.dot_n(ab.softmax_n(k), k, **how),
    "softmax_n and each": lambda x, k, how: ab.max_n(ab.each(lambda w, h: w * h, ab.softmax_n(k), k), **how),
    "each": lambda x, k, how: ab.mean_n(doubled(k), **how),
    "each and softmax_n": lambda x, k, how: ab.dot_n(ab.softmax_n(doubled(k)), k, **how),
    "walk": lambda x, k, how: ab.sum_n([ab.tanh(h) for h in k], **how),
}
OTHERS: dict[str, Callable[[Any, Any], Any]] = {
    "logsumexp_n": lambda x, k: ab.logsumexp_n(k),
    "each and logsumexp_n": lambda x, k: ab.logsumexp_n(doubled(k)),
    "stack": lambda x, k: ab.sum(ab.stack(k), axis=0),
    "concat": lambda x, k: ab.sum(ab.concat(k)) + x,
    "sum": lambda x, k: sum(k) + x,
    "tuples": lambda x, k: ab.sum_n([(h, x) for h in k], shape=(SHAPE, SHAPE))[1] + x,
}


def plus_reduced(reduce: Callable[[Any, Any, Any], Any], **how: Any) -> Callable[[Any, Any], Any]:
    """Return a function that adds a value and the reduction of a list."""
    return lambda x, k: x + reduce(x, k, how)


ALL: dict[str, Callable[[Any, Any], Any]] = {
    **{f"{name}, shape": plus_reduced(reduce, shape=SHAPE) for name, reduce in REDUCTIONS.items()},
    **{f"{name}, no shape": plus_reduced(reduce) for name, reduce in REDUCTIONS.items()},
    **OTHERS,
}


@ab.cell
def same(x: Any) -> Any:
    return 1.0 * x


def outcome(compute: Callable[[], Any]) -> str:
    """Return the result as text, or the error message without the cell's name, the call and its line."""
    try:
        return str(np.asarray(compute(), np.float64).tolist())
    except ab.ShapeError as error:
        return re.sub(r"in cell '[^']*': | The call was .*", "", str(error), flags=re.DOTALL)


def ways(function: Callable[[Any, Any], Any], backend: str) -> dict[str, Callable[[], Any]]:
    """Return the ways to apply a function to an empty list, by name."""
    call = ab.cell(function)

    def of_children(item: Any) -> Any:
        x, n = item
        return call(x, [same(x) for _ in range(n)])

    def known() -> Any:
        batched = ab.batched(of_children, backend=backend)
        batched([(X, 2)])
        return batched([(X, 1), (X, 0)])[1]

    return {
        "eager": lambda: ab.eager(lambda x: call(x, []), X),
        "eager, outside of cells": lambda: ab.eager(lambda x: function(same(x), []), X),
        "batched": lambda: ab.batched(of_children, backend=backend)([(X, 0)])[0],
        "batched, before another": lambda: ab.batched(of_children, backend=backend)([(X, 0), (X, 2)])[0],
        "batched, after another": known,
        "batched, outside of cells": lambda: ab.batched(lambda x: function(same(x), []), backend=backend)([X])[0],
    }


@each("name", ["softmax_n, shape", "softmax_n and dot_n, shape", "max_n, no shape", "logsumexp_n"])
@each("after_a_sum", [False, True])
def test_an_empty_list_gives_one_outcome(after_a_sum: bool, name: str) -> None:
    check(after_a_sum, name)


@pytest.mark.slow
@each("name", ALL)
@each("after_a_sum", [False, True])
def test_any_function_of_an_empty_list_gives_one_outcome(after_a_sum: bool, name: str) -> None:
    check(after_a_sum, name)


def check(after_a_sum: bool, name: str) -> None:
    """Check that all ways have the same outcome, and whether it is a result or an error."""
    function = ALL[name]

    def summed(x: Any, k: Any) -> Any:
        return function(x, k) if not after_a_sum else ab.sum_n(k, shape=SHAPE) + function(x, k)

    found = {way: outcome(compute) for way, compute in ways(summed, "reference").items()}
    assert len(set(found.values())) == 1, found
    assert found["eager"] == str(X.tolist()) or "give" in found["eager"]
    assert ("no shape" in name or name in ("stack", "concat") or "logsumexp_n" in name) == ("give" in found["eager"])


def test_gradients_of_a_list_that_may_be_empty() -> None:
    call = ab.cell(lambda x, k: ab.sum(ab.tanh(x + ab.dot_n(ab.softmax_n(doubled(k)), k, shape=SHAPE))))
    run = ab.batched(lambda item: call(item[0], [same(item[0]) for _ in range(item[1])]), backend="reference")
    _, _, found = run.value_and_grad([(X, 0), (X, 2)], inputs=True)
    np.testing.assert_allclose(found[0][0], (1.0 - np.tanh(X) ** 2) / 2, rtol=1e-6)
