"""Test clipping, which scales all gradients or limits each number in place, and refuses non-finite ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from autobatch.errors import DataError, NumericError
from autobatch.optim import clip_by_norm, clip_by_value
from autobatch.params.sparse_rows import Rows

SHAPES = {"matrix": (3, 4), "vector": (5,), "number": ()}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_clipping_scales_to_the_norm_in_place(dtype: str) -> None:
    rng = np.random.default_rng(1)
    grads = {name: np.asarray(rng.standard_normal(shape), dtype) for name, shape in SHAPES.items()}
    arrays = dict(grads)
    before = np.concatenate([grad.ravel() for grad in grads.values()])
    norm = float(np.linalg.norm(before.astype(np.float64)))
    assert clip_by_norm(grads, norm / 2) == pytest.approx(norm, rel=1e-6)
    after = np.concatenate([grad.ravel() for grad in grads.values()])
    np.testing.assert_allclose(after, before / 2, rtol=1e-6)
    assert list(map(id, grads.values())) == list(map(id, arrays.values()))


@pytest.mark.parametrize("max_norm", [100.0, math.inf])
def test_short_gradients_stay(max_norm: float) -> None:
    grads = {"a": np.array([[3.0]]), "b": np.array(4.0), "c": np.zeros(0)}
    assert clip_by_norm(grads, max_norm) == 5.0
    assert (grads["a"].tolist(), grads["b"].tolist()) == ([[3.0]], 4.0)


def test_a_single_number_is_clipped_in_place() -> None:
    grads = {"number": np.array(4.0)}
    number = grads["number"]
    assert clip_by_norm(grads, 1.0) == 4.0
    assert number.tolist() == 1.0


def test_rows_are_clipped_as_the_array_that_they_are() -> None:
    rows = Rows([0, 3], np.array([[3.0, 0.0], [0.0, 4.0]]), (5, 2))
    bias = np.array([12.0])
    assert clip_by_norm({"table": rows, "bias": bias}, 6.5) == 13.0
    assert rows.values.tolist() == [[1.5, 0.0], [0.0, 2.0]]
    assert bias.tolist() == [6.0]


def test_rows_that_are_not_finite_are_named() -> None:
    grads = {"table": Rows([2], np.array([[math.nan]]), (5, 1))}
    with pytest.raises(NumericError, match=r"norm of 'table' must be finite, got nan"):
        clip_by_norm(grads, 1.0)


@pytest.mark.parametrize(("dtype", "big"), [("float32", 1e30), ("float64", 1e200), ("float64", 1.7e308)])
def test_numbers_whose_squares_overflow_are_clipped(dtype: str, big: float) -> None:
    grads = {"weight": np.array([big, 1.0, -big], dtype)}
    clip_by_value(grads, 2.0)
    assert grads["weight"].tolist() == [2.0, 1.0, -2.0]
    grads = {"weight": np.array([[big], [0.0]], dtype), "bias": np.array(1.0, dtype)}
    assert clip_by_norm(grads, 1.0) == pytest.approx(big)
    np.testing.assert_allclose(grads["weight"], [[1.0], [0.0]], rtol=1e-6)


def test_nothing_has_norm_zero() -> None:
    assert clip_by_norm({}, 1.0) == 0.0


def test_squares_beyond_float32_are_no_trouble() -> None:
    grads = {"a": np.array([3e30, 4e30], np.float32)}
    assert clip_by_norm(grads, 5.0) == pytest.approx(5e30)
    np.testing.assert_allclose(grads["a"], [3.0, 4.0], rtol=1e-6)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_gradient_that_is_not_finite_is_named(wrong: float, dtype: str) -> None:
    grads = {"good": np.full(3, 100.0, dtype), "bad": np.array([1.0, wrong], dtype)}
    with pytest.raises(NumericError, match=r"norm of 'bad' must be finite, got (nan|inf)"):
        clip_by_norm(grads, 1.0)
    assert grads["good"].tolist() == [100.0] * 3


@pytest.mark.parametrize("max_norm", [0.0, -1.0, math.nan])
def test_a_norm_that_is_not_positive_is_refused(max_norm: float) -> None:
    with pytest.raises(DataError, match=r"max_norm of clip_by_norm must be a number above 0, got "):
        clip_by_norm({"a": np.ones(2)}, max_norm)


@pytest.mark.parametrize("wrong", [np.arange(3), [1.0, 2.0], "read-only"], ids=["ints", "list", "read-only"])
def test_a_gradient_that_cannot_be_changed_changes_nothing(wrong: Any) -> None:
    if isinstance(wrong, str):
        wrong = np.ones(3)
        wrong.setflags(write=False)
    grads: Any = {"first": np.array([30.0, 40.0]), "second": wrong}
    with pytest.raises(DataError, match="'second' must be a writable array of floats"):
        clip_by_norm(grads, 1.0)
    assert grads["first"].tolist() == [30.0, 40.0]


# --- By value


@pytest.mark.parametrize("limit", [0.5, 2.0, math.inf])
def test_each_number_is_limited(limit: float) -> None:
    rng = np.random.default_rng(0)
    whole = rng.standard_normal((6, 8))
    grads: dict[str, Any] = {"matrix": whole[:, 1:4], "vector": 3 * rng.standard_normal(5).astype(np.float32)}
    rows = Rows([0, 2], np.array([[1.0, -9.0], [4.0, 0.25]]), (4, 2))
    expected = {name: torch.from_numpy(np.array(grad)).requires_grad_() for name, grad in grads.items()}
    for name, tensor in expected.items():
        tensor.grad = torch.from_numpy(np.array(grads[name]))
    torch.nn.utils.clip_grad_value_(expected.values(), limit)
    dense, around = np.clip(np.asarray(rows), -limit, limit), whole.copy()
    clip_by_value(grads | {"table": rows}, limit)
    for name, tensor in expected.items():
        assert tensor.grad is not None
        np.testing.assert_array_equal(grads[name], tensor.grad.numpy())
    np.testing.assert_array_equal(np.asarray(rows), dense)
    np.testing.assert_array_equal(np.delete(whole, [1, 2, 3], axis=1), np.delete(around, [1, 2, 3], axis=1))


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan])
def test_limits_are_above_0(limit: float) -> None:
    with pytest.raises(DataError, match="limit of clip_by_value must be a number above 0, got "):
        clip_by_value({"a": np.ones(2)}, limit)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_not_clipped(number: float) -> None:
    grads: dict[str, Any] = {"a": np.full(2, 9.0), "b": np.array([1.0, number])}
    with pytest.raises(NumericError, match="norm of 'b'"):
        clip_by_value(grads, 1.0)
    assert grads["a"].tolist() == [9.0, 9.0]
