"""Test rows, arrays that are zero except for some rows: they read, add and scale like the dense array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autobatch.devices.device import Device
from autobatch.devices.store import HOST
from autobatch.errors import DataError, ShapeError
from autobatch.params.sparse_rows import Rows
from helpers.runs.ways import each

SHAPES = [(6,), (6, 3), (6, 2, 3)]

ids_of_six = st.lists(st.integers(0, 5), max_size=12)


def draw_values(ids: list[int], shape: tuple[int, ...], seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(-9, 9, (len(ids), *shape[1:])).astype(np.float64)


def dense_sum(ids: list[int], values: Any, shape: tuple[int, ...]) -> Any:
    """Compute by definition: zeros, and one addition per id."""
    dense = np.zeros(shape)
    for i, value in zip(ids, values, strict=True):
        dense[i] += value
    return dense


@pytest.mark.parametrize("shape", SHAPES)
@settings(deadline=None)
@given(ids=ids_of_six)
def test_summed_rows_are_the_dense_sum(shape: tuple[int, ...], ids: list[int]) -> None:
    values = draw_values(ids, shape)
    before = values.copy()
    rows = Rows.summed(ids, values, shape)
    assert rows.ids.tolist() == sorted(set(ids))
    assert (rows.shape, np.shape(rows), rows.dtype) == (shape, shape, np.dtype(np.float64))
    np.testing.assert_array_equal(np.asarray(rows), dense_sum(ids, values, shape))
    np.testing.assert_array_equal(values, before)


@pytest.mark.parametrize("shape", SHAPES)
@settings(deadline=None)
@given(ids=ids_of_six, more=ids_of_six)
def test_adding_rows_adds_the_arrays(shape: tuple[int, ...], ids: list[int], more: list[int]) -> None:
    rows, other = (
        Rows.summed(ids, draw_values(ids, shape), shape),
        Rows.summed(more, draw_values(more, shape, 1), shape),
    )
    expected, addend = np.asarray(rows) + np.asarray(other), np.asarray(other)
    same = rows
    rows += other
    assert rows is same
    assert rows.ids.tolist() == sorted({*ids, *more})
    np.testing.assert_array_equal(np.asarray(rows), expected)
    np.testing.assert_array_equal(np.asarray(other), addend)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_of_one_id_are_added_in_the_order_given(dtype: str) -> None:
    """1, then 1e20, then -1e20 give 0; with the first and last swapped, the sum is 1."""
    values = np.array([[1.0], [1e20], [1.0], [-1e20], [-1e20], [1e20], [1.0]], dtype)
    rows = Rows.summed(np.array([3, 3, 2, 3, 1, 1, 1], np.int32), values, (4, 1))
    assert rows.ids.tolist() == [1, 2, 3]
    assert rows.values[:, 0].tolist() == [1.0, 1.0, 0.0]
    assert rows.dtype == dtype


def test_rows_of_views_are_summed() -> None:
    """Values may be columns of a wider array, like those that a backend keeps."""
    wide = np.random.default_rng(0).standard_normal((50, 9))
    ids = np.random.default_rng(1).integers(0, 6, 50)
    np.testing.assert_array_equal(
        np.asarray(Rows.summed(ids, wide[:, 2:5], (6, 3))), dense_sum(ids.tolist(), wide[:, 2:5], (6, 3))
    )


@each("width", [1, 3, 300, 0])
@each("dtype", ["float32", "float64"])
def test_rows_on_a_device_are_summed_as_on_the_host(device: Device, dtype: str, width: int) -> None:
    """Bit-identical: in the given order, after rows that exist already, and also for rows of views."""
    rng = np.random.default_rng(width)
    on_host, there = (Rows.zeros((50, width), dtype, store) for store in (HOST, device))
    for n, first, step in ((40, 0, width), (0, 0, width), (7, 3, width + 2), (600, 1, 2 * width)):
        ids = rng.integers(0, 50, n)
        values = rng.standard_normal(first + max(n, 1) * step).astype(dtype)
        on_host.add(ids, values, first, step)
        there.add(ids, device.put(values), first, step)
        np.testing.assert_array_equal(there.ids, on_host.ids)
        np.testing.assert_array_equal(device.get(there.values), on_host.values)


def test_no_rows_are_zeros_to_which_rows_are_added() -> None:
    rows = Rows.zeros((4, 2), np.float64)
    assert (rows.shape, rows.dtype, rows.nbytes) == ((4, 2), np.dtype(np.float64), 0)
    np.testing.assert_array_equal(np.asarray(rows), np.zeros((4, 2)))
    other = Rows([1], np.ones((1, 2)), (4, 2))
    rows += other
    rows *= 3.0
    assert np.asarray(rows).tolist() == [[0.0, 0.0], [3.0, 3.0], [0.0, 0.0], [0.0, 0.0]]
    assert other.values.tolist() == [[1.0, 1.0]]


def test_rows_add_to_arrays_and_arrays_to_rows() -> None:
    rows = Rows([1, 2], np.array([1.0, 2.0]), (4,))
    dense = np.ones(4)
    rows.add_to(dense)
    assert dense.tolist() == [1.0, 2.0, 3.0, 1.0]
    dense += rows
    assert dense.tolist() == [1.0, 3.0, 5.0, 1.0]
    total: Any = rows
    total += np.ones(4)
    assert isinstance(total, np.ndarray)
    assert total.tolist() == [1.0, 2.0, 3.0, 1.0]


def test_scaling_is_in_place() -> None:
    values = np.array([1.0, 2.0], np.float32)
    rows = Rows([0, 3], values, (4,))
    rows *= 2.0
    assert values.tolist() == [2.0, 4.0]
    assert np.asarray(rows).dtype == np.float32


def test_a_copy_has_its_own_arrays() -> None:
    rows = Rows([0, 3], np.array([1.0, 2.0]), (4,))
    copied = rows.copy()
    rows *= 2.0
    assert copied.values.tolist() == [1.0, 2.0]


def test_an_array_is_made_in_the_dtype_asked_for() -> None:
    rows = Rows([1], np.array([0.5]), (2,))
    assert np.asarray(rows, np.float32).dtype == np.float32
    with pytest.raises(ValueError, match="only be converted to an array by a copy"):
        np.array(rows, copy=False)


def test_bytes_are_those_of_the_rows() -> None:
    assert Rows(np.arange(3), np.zeros((3, 8)), (1_000_000, 8)).nbytes == 3 * 8 + 3 * 8 * 8


@each(
    "ids, values, shape, error, message",
    [
        ([1, 1], np.ones(2), (4,), DataError, r"strictly increasing, got 1 before 1;"),
        ([2, 0], np.ones(2), (4,), DataError, r"strictly increasing, got 2 before 0;"),
        ([0, 4], np.ones(2), (4,), DataError, r"at least 0 and less than 4, got 4"),
        ([-1, 2], np.ones(2), (4,), DataError, r"at least 0 and less than 4, got -1"),
        ([0], np.ones(1), (0,), DataError, r"less than 0, got 0"),
        ([0.0], np.ones(1), (4,), DataError, r"got ids of float64 and values of float64"),
        ([0], [1], (4,), DataError, r"ids of int64 and values of int64"),
        ([0], np.ones(1, np.float16), (4,), DataError, r"float32 or float64 values, got .* values of float16"),
        ([0], np.ones(2), (4,), ShapeError, r"shape \(4,\) from ids of shape \(1,\) and values of shape \(2,\)"),
        ([0], np.ones((1, 2)), (4, 3), ShapeError, r"values of shape \(1, 2\); give n ids and n rows"),
        ([[0]], np.ones((1, 1)), (4, 1), ShapeError, r"ids of shape \(1, 1\)"),
        ([0], np.ones(1), (), ShapeError, r"an array of shape \(\)"),
    ],
)
def test_what_does_not_fit_is_refused(
    ids: Any, values: Any, shape: tuple[int, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=rf"Rows .*{message}"):
        Rows(ids, values, shape)


def test_shapes_must_agree_to_add() -> None:
    rows = Rows([0], np.ones(1), (4,))
    with pytest.raises(ShapeError, match=r"cannot add Rows of shape \(5,\) to Rows of shape \(4,\)"):
        rows += Rows([0], np.ones(1), (5,))
    with pytest.raises(ShapeError, match=r"cannot add Rows of shape \(4,\) to an array of shape \(5,\)"):
        rows.add_to(np.ones(5))
