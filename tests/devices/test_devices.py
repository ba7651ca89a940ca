"""Test that a device runs kernels, multiplies and copies: the same checks on a GPU and on the CPU in its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autobatch.arrays import rounded
from autobatch.devices.device import Device, DeviceGemm, Launch
from autobatch.errors import BackendError
from autobatch.ops import error_function
from helpers.runs.device_kernels import MODULES, apply

THREADS = 256  # per block, see `support.cuh`
TEAMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of threads per team."""
UNIT = {np.dtype(np.float32): 2.0**-24, np.dtype(np.float64): 2.0**-53}
"""Relative rounding error."""


def reduce_rows(device: Device, rows: list[NDArray[Any]], team: int) -> tuple[Any, Any]:
    """Return the sum and maximum of each row, computed by the teams of two blocks."""
    kernel = MODULES["reductions"].load(device, rows[0].dtype)
    starts = np.cumsum([0, *map(len, rows)])
    x, starts = device.put(np.concatenate(rows)), device.put(starts)
    sums, largest = (device.empty(len(rows), rows[0].dtype) for _ in range(2))
    about = device.put(np.array([*map(device.address, (x, starts, sums, largest)), len(rows)]))
    device.launch(kernel, Launch(2, THREADS, 32 * rows[0].itemsize, (device.address(about), team, 0)))
    return device.get(sums), device.get(largest)


def test_teams_reduce_rows(device: Device) -> None:
    """Teams of all sizes, several per block, with different numbers of rows of different lengths."""
    for team, dtype in product(TEAMS, (np.float32, np.float64)):
        rng = np.random.default_rng(team)
        sizes = rng.integers(1, 200, min(5 * THREADS // team // 2 + 4, 200))
        rows = [rng.standard_normal(size).astype(dtype) for size in sizes]
        sums, largest = reduce_rows(device, rows, team)
        for row, total, most in zip(rows, sums, largest, strict=True):
            assert most == row.max(), (team, dtype)
            error = abs(total - row.astype(np.longdouble).sum())
            assert error <= len(row) * UNIT[row.dtype] * np.abs(row).sum(), (team, dtype)


def test_nan_is_larger_and_infinities_are_reduced(device: Device) -> None:
    inf, nan = np.inf, np.nan
    rows = [np.array(row, np.float32) for row in ([1, nan, 3], [-inf, -inf, -inf], [inf, 1, 2], [nan, inf, -inf])]
    for team in TEAMS:
        sums, largest = reduce_rows(device, rows, team)
        np.testing.assert_array_equal(largest, [nan, -inf, inf, nan])
        np.testing.assert_array_equal(sums, [nan, -inf, inf, nan])


def test_threads_of_a_team_share_memory(device: Device) -> None:
    kernel = MODULES["neighbours"].load(device)["turn_rows"]
    for team, n in product(TEAMS, (1, 2, 33, 40)):
        teams = THREADS // team
        x = np.random.default_rng(n).standard_normal((5 * teams // 2 + 1, n)).astype(np.float32)
        held, out = device.put(x), device.empty(x.size, x.dtype)
        about = device.put(np.array([device.address(held), device.address(out), len(x), n]))
        shared = (32 + n * teams) * x.itemsize
        device.launch(kernel, Launch(2, THREADS, shared, (device.address(about), team, 0)))
        np.testing.assert_array_equal(device.get(out).reshape(x.shape), np.roll(x, -1, axis=1))


def test_threads_of_a_warp_exchange_numbers(device: Device) -> None:
    kernel = MODULES["warps"].load(device)["exchange"]
    for width in (2, 8, 32):
        held = device.empty(32 * 8, np.dtype(np.int64))
        device.launch(kernel, Launch(1, 32, 0, (device.address(held), width, 0)))
        found = device.get(held).reshape(32, 8)
        lane = np.arange(32)
        first, last = lane // width * width, lane // width * width + width - 1
        np.testing.assert_array_equal(found[:, 0], first + 5 % width)
        np.testing.assert_array_equal(found[:, 1], np.where(lane ^ 3 <= last, lane ^ 3, lane))
        np.testing.assert_array_equal(found[:, 2], np.where(lane + 2 <= last, lane + 2, lane))
        np.testing.assert_array_equal(found[:, 3], first + (lane + 1) % width)
        np.testing.assert_array_equal(found[:, 4], lane ^ 1)
        assert (found[:, 5] == sum(1 << i for i in range(0, 32, 3))).all()
        assert (found[:, 6] == 1).all()
        assert (found[:, 7] == 0).all()


def test_all_blocks_wait_for_each_other(device: Device) -> None:
    kernel = MODULES["warps"].load(device)["add_places"]
    for blocks in (1, device.n_processors):
        n = blocks * 64
        places, out = (device.empty(n, np.dtype(np.int32)) for _ in range(2))
        arrived = device.put(np.zeros(6, np.int64))
        device.launch(kernel, Launch(blocks, 64, 0, tuple(map(device.address, (places, out, arrived)))))  # type: ignore[arg-type]
        assert (device.get(out) == 3 * sum(range(n)) + 3 * n).all()
        assert (device.get(arrived) == blocks).all()


def test_threads_of_all_blocks_count(device: Device) -> None:
    kernel = MODULES["warps"].load(device)["count"]
    held = [device.put(np.zeros(1, kind)) for kind in (np.int32, np.uint32, np.uint64)]
    ints, unsigneds, wide = map(device.address, held)
    device.launch(kernel, Launch(5, 48, 0, (ints, unsigneds, wide)))
    assert [int(device.get(array)[0]) for array in held] == [-240, 240, 240 << 33]


EXACT: Mapping[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "erf": lambda x: error_function.erf_of(np, x.astype(np.float64)),
    "ndtr": lambda x: error_function.ndtr_of(np, x.astype(np.float64)),
    "gelu": lambda x: error_function.gelu_of(np, x.astype(np.float64)),
    "gelu_tanh": lambda x: x / (1 + np.exp(-2 * np.sqrt(2 / np.longdouble(np.pi)) * (x + 0.044715 * x**3))),
    "power": lambda x: x**1.5,
}
"""Functions of numbers with many digits, in the float64 of `ops` where NumPy lacks them."""


def smallest_kept(device: Device, dtype: Any) -> float:
    """Return the smallest positive number of a dtype on the device; GPUs flush float32 denormals to 0."""
    limits = np.finfo(dtype)
    return float(limits.smallest_normal if (device.kind, dtype) == ("cuda", np.float32) else limits.smallest_subnormal)


def test_functions_are_accurate(device: Device) -> None:
    """Within 12 units in the last place. In gelu's tanh form, the exponent multiplies its own rounding error."""
    for dtype in (np.float32, np.float64):
        kernel = MODULES["functions"].load(device, dtype)
        rng = np.random.default_rng(0)
        numbers = np.concatenate([rng.uniform(-14, 14, 500), rng.uniform(-40, 40, 300), rng.standard_normal(99) * 1e-3])
        for name, function in EXACT.items():
            x: Any = (np.abs(numbers) if name in ("log", "sqrt", "power") else numbers).astype(dtype)
            exponent = np.minimum(1.6 * x + 0.0714 * x**3, 0.0) if name == "gelu_tanh" else 0.0
            units = 12 - 4 * exponent
            expected = function(x.astype(np.longdouble))
            bound = 2 * units * UNIT[x.dtype] * np.abs(expected) + 40 * smallest_kept(device, dtype)
            assert (np.abs(apply(device, kernel, name, x) - expected) <= bound).all(), (name, dtype)


def test_functions_at_their_limits(device: Device) -> None:
    inf, nan, tiny = math.inf, math.nan, 1e-40
    cases: dict[str, dict[float, float]] = {
        "exp": {-inf: 0, inf: inf, 0: 1, 89: inf, -104: 0},
        "log": {0: -inf, -1: nan, inf: inf, -inf: nan},
        "sqrt": {-1: nan, inf: inf},
        "sin": {inf: nan, tiny: tiny},
        "cos": {inf: nan, tiny: 1},
        "tanh": {inf: 1, -inf: -1, tiny: tiny},
        "sigmoid": {inf: 1, -inf: 0, 1e30: 1, -1e30: 0},
        "softplus": {inf: inf, -inf: 0, 1e30: 1e30, -1e30: 0},
        "erf": {inf: 1, -inf: -1, 1e30: 1, -1e30: -1},
        "ndtr": {inf: 1, -inf: 0, 1e30: 1, -1e30: 0, tiny: 0.5},
        "gelu": {inf: inf, -inf: 0, 1e30: 1e30, -1e30: 0, tiny: tiny / 2},
        "gelu_tanh": {inf: inf, -inf: 0, 1e30: 1e30, -1e30: 0, tiny: tiny / 2},
        "power": {inf: inf, 0: 0, -1: nan},
        "larger": {inf: inf, -inf: 0.5, 0: 0.5, 1: 1},
        "larger_flipped": {inf: inf, -inf: 0.5, 0: 0.5, 1: 1},
    }
    kernel = MODULES["functions"].load(device)
    for name, limits in cases.items():
        found = apply(device, kernel, name, np.array([*limits, nan], np.float32))
        expected, least = np.array([*limits.values(), nan], np.float32), smallest_kept(device, np.float32)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=least, err_msg=name)


def test_products(device: Device) -> None:
    """Products of all kinds, of matrices that are parts of larger ones, against float64."""
    rng = np.random.default_rng(0)
    sizes = [(3, 5, 4), (1, 1, 1), (17, 33, 9), (0, 4, 3), (4, 0, 3), (4, 3, 0), (130, 64, 70)]
    kinds = [(np.float32, "float32"), (np.float64, "float32"), (np.float32, "tf32"), (np.float32, "bf16")]
    error = {"float32": 0.0, "tf32": 2.0**-11, "bf16": 2.0**-8}
    for (m, n, k), (kind, precision), flipped, adds in product(sizes, kinds, (False, True), (False, True)):
        dtype: np.dtype[Any] = np.dtype(kind)
        a, out = (rng.standard_normal((m, width + 3)).astype(dtype) for width in (k, n))
        b = rng.standard_normal((n, k + 2) if flipped else (k, n + 2)).astype(dtype)
        held = [device.put(array) for array in (a, b, out)]
        addresses = [device.address(array) if array.size else 0 for array in held]
        device.multiply(
            DeviceGemm(
                dtype, precision, m, n, k, addresses[0], a.shape[1], addresses[1], b.shape[1], flipped,
                addresses[2], out.shape[1], adds,
            )
        )  # fmt: skip
        left, right = a[:, :k], b[:, :k].T if flipped else b[:, :n]
        if precision == "bf16":
            left, right = rounded(left), rounded(right)
        left, right = left.astype(np.longdouble), right.astype(np.longdouble)
        expected = left @ right + (out[:, :n] if adds else 0)
        bound = np.abs(left) @ np.abs(right) + np.abs(expected)
        slack = (k + 2) * UNIT[a.dtype] + (2 * error[precision] if precision == "tf32" else 0)
        found = device.get(held[2])
        assert (np.abs(found[:, :n] - expected) <= slack * bound).all(), (m, n, k, dtype, precision, flipped, adds)
        np.testing.assert_array_equal(found[:, n:], out[:, n:])


def test_copies_are_counted_and_share_nothing(device: Device) -> None:
    device.traffic = type(device.traffic)()
    array = np.arange(12.0).reshape(3, 4)
    held = device.put(array.T)
    array[...] = 0
    found = device.get(held)
    np.testing.assert_array_equal(found, np.arange(12.0).reshape(3, 4).T)
    found[...] = 0
    assert device.put(held) is held
    np.testing.assert_array_equal(device.get(held), np.arange(12.0).reshape(3, 4).T)
    pinned = device.pinned(64)
    pinned[...] = np.arange(64)
    target = device.empty(8, np.dtype(np.int64))
    wait = device.copy_in(pinned, target, None)
    wait()
    pinned[...] = 0
    np.testing.assert_array_equal(device.get(target).view(np.uint8), np.arange(64))
    device.synchronize()
    assert device.pinned(0).nbytes == device.get(device.put(np.zeros((0, 3)))).nbytes == 0
    traffic = device.traffic
    assert (traffic.uploads, traffic.uploaded_bytes) == (3, 96 + 64)
    assert (traffic.downloads, traffic.downloaded_bytes) == (4, 96 + 96 + 64)
    assert (traffic.launches, traffic.products, traffic.waits) == (0, 0, 5)


def test_what_does_not_compile_is_named(device: Device) -> None:
    source = 'extern "C" __global__ void wrong(long long a, long long b, long long c) { unknown(a); }'
    with pytest.raises(BackendError, match=r"^cell 'leaf' \(forward\): .*cannot compile its kernels: .*unknown"):
        device.load(source, ["wrong"], "cell 'leaf' (forward)")


def test_a_device_names_its_limits(device: Device) -> None:
    assert device.name
    assert device.n_processors > 0
    assert device.most_shared_bytes >= 48 << 10
