"""Test native steps, called by address as in a run, against float64 NumPy on random operands."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from autobatch.arrays import address_of, rounded
from autobatch.backends.cpu.compiled_cell import PRODUCT, gradient_type
from autobatch.backends.cpu.step import FUNCTIONS
from autobatch.blas import get_provider
from autobatch.compiler.writer import SLOTS
from helpers.runs.ways import each

Array = Any
SCRATCH, TABLE, FIRST = list(SLOTS).index("scratch"), list(SLOTS).index("table"), len(SLOTS)
UNTOUCHED = -77.0


class Stage:
    """The memory of a stage, and the fields of one tile, the last of which is the number of a strip."""

    def __init__(self, n_rows: int, strip: int = 0) -> None:
        self.slots, self.fields = np.zeros(FIRST + 9, np.int64), np.array([n_rows, 0, 0, 0, strip])
        self.scratch, self._n_operands, self._alive = np.full(100_000, np.nan), 0, list[Array]()
        self.slots[SCRATCH], self.slots[TABLE] = address_of(self.scratch), address_of(self.fields)

    def place(self, rng: np.random.Generator, values: Array) -> tuple[Array, tuple[int, int, int, int]]:
        """Place rows at a random offset in a new array; return them, and the numbers that describe the operand."""
        first, offset, gap = rng.integers(0, 9, 3).tolist()
        step, before = values.shape[1] + gap, first + offset
        whole = np.full(before + len(values) * step + 1, UNTOUCHED, values.dtype)
        size = values.itemsize
        rows = np.ndarray(values.shape, values.dtype, whole, before * size, (step * size, size))
        rows[...] = values
        slot = FIRST + self._n_operands
        self._n_operands += 1
        self.slots[slot], self.fields[self._n_operands] = address_of(whole), first
        self._alive.append(whole)
        return rows, (slot, self._n_operands, offset * size, step)

    def call(self, function: str, descriptor: Array) -> None:
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
        kind(FUNCTIONS[function])(address_of(self.slots), address_of(descriptor), 0)

    def assert_rest_untouched(self, written: Array) -> None:
        """Check that nothing but `written` changed in the last operand."""
        written[...] = UNTOUCHED
        assert set(self._alive[-1].tolist()) == {UNTOUCHED}


def describe(dtype: np.dtype[np.void], itemsize: int, **numbers: Any) -> Array:
    """Return the descriptor of a step over rows; their number is the first of a tile's five fields."""
    descriptor = np.zeros((), dtype)
    for name, number in {"n_fields": 5, "rows": 0, "itemsize": itemsize, **numbers}.items():
        descriptor[name] = number
    return descriptor


@each("dtype, is_rounded", [("float32", False), ("float32", True), ("float64", False)])
@pytest.mark.parametrize("seed", range(12))
def test_rows_times_a_matrix(dtype: str, is_rounded: bool, seed: int) -> None:
    rng, routine = np.random.default_rng(seed), get_provider("numpy").addresses.get(dtype)
    if routine is None:
        pytest.skip("NumPy has no library whose routines can be found")
    m, (n, inner) = int(rng.integers(0, 120)), rng.integers(1, 90, 2).tolist()
    stage, beta, is_flipped = Stage(m), bool(rng.random() < 0.5), bool(rng.random() < 0.5)
    x, at_x = stage.place(rng, rng.standard_normal((m, inner)).astype(dtype))
    out, at_out = stage.place(rng, rng.standard_normal((m, n)).astype(dtype))
    w = rng.standard_normal((n, inner) if is_flipped else (inner, n)).astype(dtype)
    w = rounded(w) if is_rounded else w
    descriptor = describe(PRODUCT, x.itemsize, n=n, inner=inner, beta=beta, a=at_x, out=at_out, routine=routine)
    descriptor["matrix"] = is_flipped, address_of(w), w.shape[1]
    left = (rounded(x) if is_rounded else x).astype(np.float64)
    expected = left @ (w.T if is_flipped else w) + (out if beta else 0.0)
    stage.call("multiply_rounded" if is_rounded else "multiply_by_library", descriptor)
    tolerance = 1e-12 if dtype == "float64" else 3e-5
    np.testing.assert_allclose(out, expected, rtol=tolerance, atol=tolerance)
    stage.assert_rest_untouched(out)


@each("dtype", ["float32", "float64"])
@each("form", ["rows", "columns"])
@pytest.mark.parametrize("seed", range(12))
def test_strips_of_a_gradient_make_all_of_it(dtype: str, form: str, seed: int) -> None:
    """In three strips, some possibly empty. The gradient may be stored transposed."""
    rng, routine = np.random.default_rng(seed), get_provider("numpy").addresses.get(dtype)
    if routine is None:
        pytest.skip("NumPy has no library whose routines can be found")
    n_rows, (m, n) = int(rng.integers(0, 50)), rng.integers(1, 160, 2).tolist()
    stage = Stage(n_rows)
    x, at_x = stage.place(rng, rng.standard_normal((n_rows, m)).astype(dtype))
    y, at_y = stage.place(rng, rng.standard_normal((n_rows, n)).astype(dtype))
    start = rng.standard_normal((m, n)).astype(dtype)
    held, (slot, field, offset, step) = stage.place(rng, start if form == "rows" else start.T)
    stage.slots[slot] += offset + stage.fields[field] * held.itemsize
    stage.slots[slot + 1 : slot + 3] = (step, 1) if form == "rows" else (1, step)
    numbers = {"routine": routine, "m": m, "n": n, "n_strips": 3, "a": at_x, "b": at_y, "gradients": slot}
    descriptor = describe(gradient_type(1), held.itemsize, **numbers)
    for strip in range(3):
        stage.fields[4] = strip
        stage.call("add_outer", descriptor)
    found = held if form == "rows" else held.T
    expected = start.astype(np.float64) + x.T.astype(np.float64) @ y
    tolerance = 1e-12 if dtype == "float64" else 3e-5
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    stage.assert_rest_untouched(held)


@each("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_rows", [0, 1, 2, 3, 4, 5, 7, 9, 1250])
def test_strips_of_a_sum_make_all_of_it(dtype: str, n_rows: int) -> None:
    """Of whole numbers, so that order does not matter. Added to contiguous, padded and transposed matrices."""
    rng = np.random.default_rng(n_rows)
    m, n = rng.integers(1, 60, 2).tolist()
    stage = Stage(n_rows)
    rows, at_rows = stage.place(rng, rng.integers(-9, 9, (n_rows, m * n)).astype(dtype))
    targets = [np.ones((m, n), dtype), np.ones((m, n + 3), dtype)[:, :n], np.ones((n, m), dtype).T]
    numbers = {"routine": len(targets), "m": m, "n": n, "n_strips": 4, "a": at_rows}
    descriptor = describe(gradient_type(len(targets)), rows.itemsize, **numbers)
    slots = np.zeros(FIRST + 9 + 3 * len(targets), np.int64)
    slots[: stage.slots.size] = stage.slots
    for k, target in enumerate(targets):
        descriptor["gradients"][k] = slot = stage.slots.size + 3 * k
        slots[slot : slot + 3] = address_of(target), *(stride // target.itemsize for stride in target.strides)
    stage.slots = slots
    for strip in range(4):
        stage.fields[4] = strip
        stage.call("add_row_sum", descriptor)
    for target in targets:
        np.testing.assert_array_equal(target, 1 + rows.sum(axis=0).reshape(m, n))
