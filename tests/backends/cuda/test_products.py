"""Test tiled products of all shapes, on a GPU and on the CPU in its place, against NumPy in higher precision."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from autobatch.backends.cuda.device_cell import THREADS, TILE_BYTES
from autobatch.compiler.cuda.source import module_text
from autobatch.devices.device import Device, Launch

SHAPES = {"small": "16, 64, 8, 4, 8", "middle": "64, 64, 4, 8, 8", "large": "128, 128, 1, 8, 8"}
SIZES = [(1, 1, 1), (3, 5, 4), (17, 70, 130), (70, 65, 16), (130, 140, 37), (0, 3, 2), (3, 0, 2), (5, 3, 0)]
"""Rows, columns and length of the inner axis."""
LAYOUTS = [(False, False), (False, True), (True, False)]  # whether a and b are stored transposed; the layouts of steps
BLOCKS = 2


def load(device: Device, dtype: np.dtype[Any], shape: str) -> Any:
    """Compile a kernel that multiplies in tiles of one shape."""
    kernel = f"""
extern "C" __global__ void one_shape(int64 about_, int64, int64) {{
    const int64 *about = (const int64 *)about_;
    const Worker worker = {{nullptr, blockIdx.x, gridDim.x}};
    Matrices m = {{(const real *)about[0], (const real *)about[1], (real *)about[2], about[3], about[4], about[5],
                  about[6], (int)about[7], (int)about[8], about[9] != 0, about[10] != 0, about[11] != 0}};
    multiply_tiles<{SHAPES[shape]}>(worker, m);
}}
"""
    text = module_text({}, dtype.name, "int32") + kernel
    return device.load(text, ["one_shape"], f"products in {shape} tiles")["one_shape"]


@pytest.mark.cases(2)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tiles_of_all_shapes(device: Device, shape: str, dtype: str) -> None:
    """Matrices are parts of larger ones, in all layouts that steps use. Nothing around `out` may change."""
    real: np.dtype[Any] = np.dtype(dtype)
    kernel, rng = load(device, real, shape), np.random.default_rng(0)

    def draw(*size: int) -> Any:
        return rng.standard_normal(size).astype(real)

    for (n_rows, n, inner), (a_flipped, b_flipped), adds in product(SIZES, LAYOUTS, (False, True)):
        a = draw(inner, n_rows + 2) if a_flipped else draw(n_rows, inner + 3)
        b = draw(n, inner + 1) if b_flipped else draw(inner, n + 3)
        out = draw(n_rows + 1, n + 2)
        held = [device.put(array) for array in (a, b, out)]
        addresses = [device.address(array) if array.size else 0 for array in held]
        steps = a.shape[1], b.shape[1], out.shape[1]
        about = device.put(np.array([*addresses, *steps, n_rows, n, inner, a_flipped, b_flipped, adds], np.int64))
        device.launch(kernel, Launch(BLOCKS, THREADS, TILE_BYTES, (device.address(about), 0, 0)))
        found = device.get(held[2])
        left = (a[:, :n_rows].T if a_flipped else a[:, :inner]).astype(np.longdouble)
        right = (b[:, :inner].T if b_flipped else b[:, :n]).astype(np.longdouble)
        expected = left @ right + (out[:n_rows, :n] if adds else 0)
        bound = np.abs(left) @ np.abs(right) + np.abs(expected)
        case = n_rows, n, inner, a_flipped, b_flipped, adds
        assert (np.abs(found[:n_rows, :n] - expected) <= (inner + 2) * np.finfo(real).eps * bound).all(), case
        np.testing.assert_array_equal(found[:, n:], out[:, n:], err_msg=str(case))
        np.testing.assert_array_equal(found[n_rows:], out[n_rows:], err_msg=str(case))


def test_no_shape_needs_more_shared_memory_than_steps_ask_for() -> None:
    for itemsize, (rows, columns, slices, *_) in product((4, 8), (eval(text) for text in SHAPES.values())):
        pack, depth = 16 // itemsize, 64 // itemsize
        panels = slices * depth * (rows + columns + 2 * pack)
        handed = slices // 2 * rows * columns if slices > 2 else 0
        last = 2 * rows * columns if slices > 1 else 0
        assert itemsize * max(panels, handed, last) <= TILE_BYTES
