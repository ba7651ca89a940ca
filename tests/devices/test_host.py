"""Test that the CPU in place of a GPU finds more than a GPU: races, missed barriers, and unwritten memory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autobatch.arrays import address_of
from autobatch.devices.device import Launch
from autobatch.errors import BackendError
from helpers.runs.device_kernels import MODULES, Module
from host_device import HostArray, HostDevice
from host_device import device as host
from host_device.device import rounded_to_tf32

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

SEEDS = range(8)

STUCK = Module(
    r"""
extern "C" __global__ void leaves(int64, int64, int64) { if (threadIdx.x != 3) __syncthreads(); }
extern "C" __global__ void leaves_a_warp(int64, int64, int64) { if (threadIdx.x != 3) __syncwarp(); }
extern "C" __global__ void leaves_a_shuffle(int64, int64, int64) {
    if (threadIdx.x != 3) __shfl_xor_sync(0xffffffffu, 1.0f, 1);
}
extern "C" __global__ void parts(int64, int64, int64) {
    if (threadIdx.x < 32) __syncthreads();
    else __syncwarp(threadIdx.x < 48 ? 0xffffffffu : 0xffff0000u);
}
extern "C" __global__ void names_others(int64, int64, int64) { __syncwarp(2); }
extern "C" __global__ void disagrees(int64, int64, int64) { __syncwarp(threadIdx.x % 2 ? 0xffffffffu : 0xffffu); }
extern "C" __global__ void reads_beyond(int64, int64, int64) { __shfl_sync(0xffu, 1, 9); }
extern "C" __global__ void leaves_a_team(int64, int64, int64) { if (threadIdx.x != 3) team_barrier(0, 64); }
extern "C" __global__ void joins_a_team(int64, int64, int64) { team_barrier(0, 32); }
extern "C" __global__ void misses_the_grid(int64 count, int64, int64) {
    if (blockIdx.x != 2) grid_wait((unsigned long long *)count);
}
extern "C" __global__ void leaves_the_grid(int64 count, int64, int64) {
    if (threadIdx.x != 3) grid_wait((unsigned long long *)count);
}
extern "C" __global__ void writes_behind(int64, int64, int64) {
    BLOCK_MEMORY(memory);
    memory[40] = 1;
}
""",
    (
        "leaves", "leaves_a_warp", "leaves_a_shuffle", "parts", "names_others", "disagrees", "reads_beyond",
        "leaves_a_team", "joins_a_team", "misses_the_grid", "leaves_the_grid", "writes_behind",
    ),
)  # fmt: skip

MEMORY = Module(
    r"""
// What shared memory holds before it is written, of both kinds: a block per row; both are then written.
extern "C" __global__ void peek(int64 out, int64, int64) {
    __shared__ float fixed[16];
    BLOCK_MEMORY(memory);
    float *row = (float *)out + 2 * blockDim.x * blockIdx.x;
    row[threadIdx.x] = ((float *)memory)[threadIdx.x];
    row[blockDim.x + threadIdx.x] = fixed[threadIdx.x];
    ((float *)memory)[threadIdx.x] = fixed[threadIdx.x] = 1;
}

// Shared memory of both kinds is that of the block, also after other blocks ran.
extern "C" __global__ void keep(int64 out, int64 arrived, int64) {
    __shared__ int fixed[16];
    BLOCK_MEMORY(memory);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    ((int *)memory)[threadIdx.x] = fixed[threadIdx.x] = i;
    grid_wait((unsigned long long *)arrived);
    ((int *)out)[i] = ((int *)memory)[threadIdx.x] == i && fixed[threadIdx.x] == i;
}

// The order in which threads come by.
extern "C" __global__ void come_by(int64 counter, int64 out, int64) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    ((int *)out)[i] = atomicAdd((int *)counter, 1);
}
""",
    ("peek", "keep", "come_by"),
)


def turn_rows(seed: int, name: str) -> Any:
    """Rotate rows of 64 numbers by teams of 64 threads: the four teams of one block, three times."""
    device = HostDevice(seed)
    x = device.put(np.arange(12 * 64, dtype=np.float32))
    out = device.empty(x.size, x.dtype)
    about = device.put(np.array([device.address(x), device.address(out), 12, 64]))
    launch = Launch(1, 256, (32 + 4 * 64) * 4, (device.address(about), 64, 0))
    device.launch(MODULES["neighbours"].load(device)[name], launch)
    return device.get(out).reshape(12, 64)


def test_a_missing_barrier_shows_in_some_orders() -> None:
    """Almost every order of 64 threads reveals it as NaN, where a thread reads unwritten memory."""
    expected = np.roll(np.arange(12 * 64.0).reshape(12, 64), -1, axis=1)
    for seed in SEEDS:
        np.testing.assert_array_equal(turn_rows(seed, "turn_rows"), expected)
    racy = [turn_rows(seed, "turn_rows_without_barrier") for seed in SEEDS]
    assert all(np.isnan(found).any() for found in racy)
    assert len({found.tobytes() for found in racy}) == len(SEEDS)
    again = turn_rows(0, "turn_rows_without_barrier")
    np.testing.assert_array_equal(racy[0], again)


def test_a_barrier_after_reading_is_missed_too() -> None:
    """Without the barrier that frees a reduction's memory, a fast warp's next numbers end up in a slow one's sum."""
    module = Module(
        r"""
extern "C" __global__ void totals(int64 out, int64 waits, int64) {
    BLOCK_MEMORY(memory);
    int *spare = (int *)memory;
    for (int round = 0; round < 4; ++round) {
        if (threadIdx.x % 32 == 0) spare[threadIdx.x / 32] = round;
        __syncthreads();
        ((int *)out)[4 * threadIdx.x + round] = spare[0] + spare[1];
        if (waits) __syncthreads();
    }
}
""",
        ("totals",),
    )
    wrong = {0: 0, 1: 0}
    for seed, waits in ((seed, waits) for seed in SEEDS for waits in wrong):
        device = HostDevice(seed)
        out = device.empty(64 * 4, np.dtype(np.int32))
        device.launch(module.load(device), Launch(1, 64, 8, (device.address(out), waits, 0)))
        wrong[waits] += bool((device.get(out).reshape(64, 4) != 2 * np.arange(4)).any())
    assert wrong[1] == 0
    assert wrong[0] > 0


def test_orders_of_threads_repeat_and_differ_between_launches_and_seeds() -> None:
    def orders(seed: int) -> list[bytes]:
        device = HostDevice(seed)
        kernel = MEMORY.load(device)["come_by"]
        found = []
        for _ in range(3):
            counter, out = device.put(np.zeros(1, np.int32)), device.empty(4 * 32, np.dtype(np.int32))
            device.launch(kernel, Launch(4, 32, 0, (device.address(counter), device.address(out), 0)))
            assert sorted(out) == list(range(4 * 32))
            found.append(out.tobytes())
        return found

    assert orders(0) == orders(0)
    assert len({*orders(0), *orders(1)}) == 6


def test_what_never_ends_is_told() -> None:
    """In all orders. The next launch is unaffected."""
    told = {
        "leaves": "block . never ends: thread .* waits at __syncthreads, and thread 3 is done",
        "leaves_a_warp": "block . never ends: thread .* waits at __syncwarp or a shuffle, and thread 3 is done",
        "leaves_a_shuffle": "block . never ends: thread .* waits at __syncwarp or a shuffle, and thread 3 is done",
        "parts": "never ends: thread .* waits at __sync.*, and thread .* (waits at|is done)|waits for the lanes",
        "names_others": "is lane .* of a warp with the lanes 0xffffffff, and waits for the lanes 0x2",
        "disagrees": "waits for the lanes",
        "reads_beyond": "reads from lane 9, and the lanes 0xff take part|and waits for the lanes 0xff",
        "leaves_a_team": "block . never ends: thread .* waits at team_barrier, and thread 3 is done",
        "joins_a_team": "thread .* of block . waits for team 0 of 32 threads",
        "misses_the_grid": "it never ends: 2 of 3 blocks wait at grid_wait, and the others are done",
        "leaves_the_grid": "block . never ends: thread .* waits at grid_wait, and thread 3 is done",
        "writes_behind": "block . writes behind its 40 bytes of shared memory",
    }
    for seed in SEEDS:
        device = HostDevice(seed)
        kernels = STUCK.load(device)
        for name, why in told.items():
            count = device.put(np.zeros(1, np.int64))
            launch = Launch(3, 64, 40, (device.address(count), 0, 0))
            with pytest.raises(
                BackendError, match=rf"^cell 'tested' \(forward\): kernel '{name}' cannot run: .*({why})"
            ):
                device.launch(kernels[name], launch)
        np.testing.assert_array_equal(turn_rows(seed, "turn_rows")[0], np.roll(np.arange(64), -1))


def test_shared_memory_begins_as_nan_in_each_block() -> None:
    device = HostDevice()
    out = device.put(np.zeros((5, 2, 16), np.float32))
    device.launch(MEMORY.load(device)["peek"], Launch(5, 16, 64, (device.address(out), 0, 0)))
    assert np.isnan(out).all()


def test_blocks_that_wait_for_the_grid_keep_their_memory() -> None:
    """More blocks than ever before, so that their stacks are new."""
    for seed, blocks in ((0, 6), (1, 6), (2, 200)):
        device = HostDevice(seed)
        out, arrived = device.empty(blocks * 16, np.dtype(np.int32)), device.put(np.zeros(1, np.int64))
        launch = Launch(blocks, 16, 64, (device.address(out), device.address(arrived), 0))
        device.launch(MEMORY.load(device)["keep"], launch)
        assert (out == 1).all()
        with pytest.raises(BackendError, match="at grid_wait: the count was not 0 before"):
            device.launch(MEMORY.load(device)["keep"], launch)


def test_launches_that_no_gpu_runs_are_refused() -> None:
    device = HostDevice()
    kernel = STUCK.load(device)["leaves"]
    for grid, threads, shared in ((0, 32, 0), (1, 2048, 0), (1, 0, 0), (1, 32, 65 << 10)):
        with pytest.raises(
            BackendError, match=r"kernel 'leaves' cannot run as Launch\(.*a block from 1 to 1024 threads"
        ):
            device.launch(kernel, Launch(grid, threads, shared, (0, 0, 0)))


def test_new_arrays_hold_no_numbers_and_are_no_arrays_of_the_host() -> None:
    device = HostDevice()
    assert np.isnan(device.empty(100, np.dtype(np.float32))).all()
    array = np.ones(3)
    held = device.put(array)
    assert isinstance(held, HostArray)
    assert type(device.get(held[1:])) is np.ndarray
    assert device.address(held) != address_of(array)
    assert device.address(held) != address_of(device.get(held))


def test_arrays_of_the_host_and_of_the_device_do_not_mix() -> None:
    """Mixtures that would fail only on a GPU fail here."""
    device = HostDevice()
    array, held = np.arange(3.0), device.put(np.arange(3.0))
    mixed: list[Callable[[], Any]] = [
        lambda: held + array,
        lambda: array + held,
        lambda: np.add(held, held, out=array),
        lambda: held[np.array([0, 1])],
        lambda: held.__setitem__(slice(None), array),
        lambda: array.__iadd__(held),
        lambda: np.add.at(held, np.array([0]), held[:1]),
        lambda: device.xp.concatenate((held, array)),
        lambda: device.xp.where(held > 1, array, 0.0),
        lambda: np.concatenate((held, array)),
    ]
    for mix in mixed:
        with pytest.raises(TypeError, match="put it there first"):
            mix()


def test_functions_give_arrays_of_the_device() -> None:
    device = HostDevice()
    xp, held = device.xp, device.put(np.arange(6.0))
    made = [
        xp.zeros((2, 3)), xp.where(held > 2, held, -held), held[held > 2], held.reshape(2, 3).T, xp.exp(held), held + 1,
        xp.add.reduceat(held, device.put(np.array([0, 2]))), xp.lib.stride_tricks.as_strided(held, (3,), (16,)),
        np.concatenate((held, held)), *xp.unique(held, return_index=True),
    ]  # fmt: skip
    assert all(type(array) is HostArray for array in made)
    held += 1.0
    held[1:] *= xp.float64(2.0)
    np.testing.assert_array_equal(device.get(held), [1, 4, 6, 8, 10, 12])
    assert device.get(xp.sum(held)) == 41


def test_memory_that_is_still_copied_must_not_change() -> None:
    """Until someone waits for the copy or for anything after it."""
    ends: dict[str, Callable[[HostDevice, Any, Any], Any]] = {
        "wait": lambda device, wait, target: wait(),
        "another": lambda device, wait, target: device.copy_in(device.pinned(8), target, None)(),
        "synchronize": lambda device, wait, target: device.synchronize(),
        "get": lambda device, wait, target: device.get(target),
    }
    for name, end in ends.items():
        device = HostDevice()
        target, pinned = device.empty(8, np.dtype(np.uint8)), device.pinned(8)
        pinned[...] = 1
        end(device, device.copy_in(pinned, target, None), target)
        pinned[...] = 2
        wait = device.copy_in(pinned, target, None)
        pinned[...] = 3
        with pytest.raises(BackendError, match="8 bytes of pinned memory changed while a GPU might still have copied"):
            device.copy_in(pinned, target, None) if name == "another" else end(device, wait, target)


def test_rounding_to_tf32() -> None:
    """The nearest number with 10 bits after the leading one; ties go to even, and non-finite numbers stay."""
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    mantissa, exponent = np.frexp(x.astype(np.float64))
    np.testing.assert_array_equal(rounded_to_tf32(x), np.ldexp(np.rint(mantissa * 2**11) / 2**11, exponent))
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], np.float32)
    np.testing.assert_array_equal(rounded_to_tf32(special), special)
    assert rounded_to_tf32(np.array([np.finfo(np.float32).max]))[0] == np.inf


def test_built_modules_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another process finds what one built. A folder that cannot be written is reported, and the cache is not used."""
    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path))
    text = Module('extern "C" __global__ void kept(int64, int64, int64) {}', ("kept",)).source()
    HostDevice().load(text, ["kept"], "cell")
    (library,) = (tmp_path / "kernels").iterdir()
    assert library.suffix == ".so"
    with monkeypatch.context() as patch:
        patch.setattr(host, "_libraries", {})
        patch.setattr(host, "_compile", lambda *args: pytest.fail("it was kept"))
        HostDevice().load(text, ["kept"], "cell")
    (tmp_path / "file").touch()
    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="cannot keep compiled kernels in"):
        kernels = HostDevice().load(text + "// other", ["kept"], "cell")
    HostDevice().launch(kernels["kept"], Launch(1, 1, 0, (0, 0, 0)))


def test_a_missing_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    host._find_compiler.cache_clear()
    with pytest.raises(BackendError, match=r"builds kernels with g\+\+, which is not on the PATH: install it"):
        HostDevice()
    monkeypatch.undo()
    HostDevice()


def test_threads_have_no_large_frames() -> None:
    text = 'extern "C" __global__ void large(int64 x, int64, int64) { volatile char a[70000]; a[x] = 1; }'
    with pytest.raises(BackendError, match=r"cannot compile its kernels: .*frame size"):
        Module(text, ("large",)).load(HostDevice())
