"""Test the calls to a GPU without one: NumPy stands in for CuPy and cuBLAS, following their documentation.

The tests on a GPU itself are in `test_devices`; run them with `-m gpu`.
"""

from __future__ import annotations

import ctypes
import shutil
import sys
from ctypes import memmove
from functools import partial
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from autobatch.arrays import rounded
from autobatch.devices.device import DeviceGemm, Launch
from autobatch.devices.gpu import TO_BF16, GpuDevice
from autobatch.errors import BackendError
from helpers.runs.device_kernels import Module
from host_device import HostDevice

KINDS: dict[int, Any] = {0: np.float32, 1: np.float64, 14: np.uint16}  # `cudaDataType`
COMPUTES = {"CUBLAS_COMPUTE_32F": 68, "CUBLAS_COMPUTE_64F": 70, "CUBLAS_COMPUTE_32F_FAST_TF32": 77}
SCALARS: dict[int, Any] = {68: np.float32, 70: np.float64, 77: np.float32}
ALLOWED = {(0, 0, 68), (0, 0, 77), (1, 1, 70), (14, 0, 68)}  # types of A and B, of C, and of the sum


def at(address: int, shape: tuple[int, int], step: int, dtype: Any) -> NDArray[Any]:
    """Return the matrix at an address, with columns `step` apart."""
    if not all(shape):
        return np.zeros(shape, dtype)
    size = np.dtype(dtype).itemsize
    memory = (ctypes.c_uint8 * (((shape[1] - 1) * step + shape[0]) * size)).from_address(address)
    return np.ndarray(shape, dtype, np.ctypeslib.as_array(memory), strides=(size, step * size))


def widened(x: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers that bf16 bits stand for."""
    return (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x


def gemm_ex(
    handle: int, op_a: int, op_b: int, m: int, n: int, k: int, alpha: int, a: int, a_kind: int, a_step: int, b: int,
    b_kind: int, b_step: int, beta: int, c: int, c_kind: int, c_step: int, compute: int, algo: int,
) -> None:  # fmt: skip
    """Compute C = alpha * op(A) op(B) + beta * C, by columns: https://docs.nvidia.com/cuda/cublas/#cublasgemmex."""
    assert handle == 7
    assert a_kind == b_kind
    assert (a_kind, c_kind, compute) in ALLOWED
    assert a_step >= max(1, k if op_a else m)
    assert b_step >= max(1, n if op_b else k)
    assert c_step >= m
    left = widened(at(a, (k, m) if op_a else (m, k), a_step, KINDS[a_kind]))
    right = widened(at(b, (n, k) if op_b else (k, n), b_step, KINDS[b_kind]))
    scale, keep = (at(address, (1, 1), 1, SCALARS[compute])[0, 0] for address in (alpha, beta))
    out = at(c, (m, n), c_step, KINDS[c_kind])
    out[...] = scale * ((left.T if op_a else left) @ (right.T if op_b else right)) + (keep * out if keep else 0)


class FakeArray:
    """Stands in for CuPy's array."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array, self.nbytes, self.size = array, array.nbytes, array.size
        self.dtype, self.shape = array.dtype, array.shape
        self.data = SimpleNamespace(ptr=array.ctypes.data)

    def get(self, order: str) -> NDArray[Any]:
        return self.array.copy(order="C")


class FakeStream:
    """Stands in for CuPy's stream; notes requests."""

    asked: ClassVar[list[tuple[Any, ...]]] = []

    def __init__(self, non_blocking: bool) -> None:
        self.name = "uploads" if non_blocking else "kernels"

    def wait_event(self, event: FakeEvent) -> None:
        self.asked.append((self.name, "waits for", event))


class FakeEvent:
    """Stands in for CuPy's event."""

    done = False

    def __init__(self, disable_timing: bool) -> None:
        assert disable_timing

    def record(self, stream: FakeStream | None = None) -> None:
        FakeStream.asked.append((stream.name if stream else "kernels", "records", self))

    def synchronize(self) -> None:
        self.done = True
        FakeStream.asked.append(("the host", "waits for", self))


class FakeKernel:
    """Stands in for CuPy's kernel; notes launches, and rounds as `TO_BF16` does."""

    def __init__(self, code: str, name: str, options: tuple[str, ...]) -> None:
        self.name, self.launches, self.shared_size_bytes = name, [], 0  # type: ignore[var-annotated]

    def kernel(self, grid: Any, block: Any, args: Any, shared_mem: int, enable_cooperative_groups: bool) -> None:
        assert enable_cooperative_groups
        self(grid, block, args, shared_mem)

    def __call__(self, grid: Any, block: Any, args: Any, shared_mem: int = 0) -> None:
        assert {type(arg) for arg in args} == {np.int64}
        self.launches.append((grid, block, args, shared_mem))
        if self.name == "to_bf16":
            x, x_step, out, out_step, n_rows, width = map(int, args)
            assert grid[0] * block[0] >= n_rows * width
            found = rounded(at(x, (width, n_rows), x_step, np.float32))
            at(out, (width, n_rows), out_step, np.uint16)[...] = found.view(np.uint32) >> 16


class CompileException(Exception):
    """Stands in for CuPy's error."""

    def get_message(self) -> str:
        return "In file\nkernels.cu(3): error: what is this\n1 error detected"


class FakeModule:
    """Stands in for CuPy's module of kernels."""

    def __init__(self, code: str, options: tuple[str, ...], backend: str) -> None:
        assert (options, backend) == (("--std=c++17",), "nvrtc")
        self.code = code

    def get_function(self, name: str) -> FakeKernel:
        if name not in self.code:
            raise CompileException
        return FakeKernel(self.code, name, ())


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> GpuDevice:
    blas = SimpleNamespace(CUBLAS_OP_N=0, CUBLAS_OP_T=1, CUBLAS_GEMM_DEFAULT=-1, gemmEx=gemm_ex, **COMPUTES)
    attributes = {"MultiProcessorCount": 132, "MaxSharedMemoryPerBlockOptin": 232448}
    cupy: Any = ModuleType("cupy")
    cupy.ndarray, cupy.RawKernel, cupy.RawModule = FakeArray, FakeKernel, FakeModule
    cupy.empty = lambda size, dtype: FakeArray(np.zeros(size, dtype))
    cupy.asarray = lambda array, order: FakeArray(np.array(array, order=order))
    cupy.cuda = ModuleType("cupy.cuda")
    cupy.cuda.runtime = SimpleNamespace(getDeviceProperties=lambda number: {"name": b"a GPU"})
    cupy.cuda.device = SimpleNamespace(get_cublas_handle=lambda: 7)
    cupy.cuda.memory = SimpleNamespace(OutOfMemoryError=MemoryError)
    cupy.cuda.Stream, cupy.cuda.Event = FakeStream, FakeEvent
    cupy.cuda.alloc_pinned_memory = lambda n_bytes: np.zeros(n_bytes, np.uint8)
    cupy.cuda.get_current_stream = partial(FakeStream, False)
    FakeStream.asked = []
    cupy.cuda.compiler = SimpleNamespace(CompileException=CompileException)
    cupy.cuda.Device = lambda: SimpleNamespace(id=0, attributes=attributes, compute_capability="80")
    libraries: Any = ModuleType("cupy_backends.cuda.libs")
    libraries.cublas = blas
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cupy.cuda)
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", libraries)
    return GpuDevice()


def test_products_of_rows_are_products_of_columns(gpu: GpuDevice) -> None:
    rng = np.random.default_rng(0)
    kinds = [(np.float32, "float32"), (np.float64, "float32"), (np.float32, "tf32"), (np.float32, "bf16")]
    sizes = [(3, 5, 4), (1, 1, 1), (17, 33, 9), (0, 4, 3), (4, 0, 3), (4, 3, 0)]
    for (m, n, k), (kind, precision), flipped, adds in product(sizes, kinds, (False, True), (False, True)):
        a, out = (rng.standard_normal((m, width + 3)).astype(kind) for width in (k, n))
        b = rng.standard_normal((n, k + 2) if flipped else (k, n + 2)).astype(kind)
        left, right = a[:, :k], b[:, :k].T if flipped else b[:, :n]
        if precision == "bf16":
            left, right = rounded(left), rounded(right)
        expected = np.concatenate([left @ right + (out[:, :n] if adds else 0), out[:, n:]], axis=1)
        held = [gpu.put(array) for array in (a, b, out)]
        addresses, steps = [gpu.address(array) for array in held], (k + 3, k + 2 if flipped else n + 2, n + 3)
        gpu.multiply(
            DeviceGemm(
                np.dtype(kind), precision, m, n, k, addresses[0], steps[0], addresses[1], steps[1], flipped,
                addresses[2], steps[2], adds,
            )
        )  # fmt: skip
        np.testing.assert_allclose(gpu.get(held[2]), expected, rtol=1e-5, atol=1e-5)


def test_a_gpu_that_is_too_old_for_a_precision_is_told(gpu: GpuDevice) -> None:
    gpu._capability = 75
    for precision in ("tf32", "bf16"):
        told = rf'precision="{precision}" needs .* 8.0 or later, got a GPU with 7.5'
        with pytest.raises(BackendError, match=told):
            gpu.multiply(DeviceGemm(np.dtype(np.float32), precision, 1, 1, 1, 0, 1, 0, 1, False, 0, 1, False))


def test_uploads_run_beside_kernels(gpu: GpuDevice) -> None:
    """They wait for the given event, and later work waits for them."""
    host, array = gpu.pinned(8), FakeArray(np.zeros(8, np.uint8))
    array.data.copy_from_host_async = lambda address, n_bytes, stream: stream.asked.append(
        (stream.name, "copies", address, n_bytes)
    )
    used = gpu.mark()
    wait = gpu.copy_in(host, array, used)
    wait()
    copied = FakeStream.asked[-1][-1]
    assert FakeStream.asked == [
        ("kernels", "records", used),
        ("uploads", "waits for", used),
        ("uploads", "copies", host.ctypes.data, 8),
        ("uploads", "records", copied),
        ("kernels", "waits for", copied),
        ("the host", "waits for", copied),
    ]


def test_copies_to_the_host_are_read_when_they_are_done(gpu: GpuDevice) -> None:
    """Their memory is kept until then, also without a reader."""
    array = FakeArray(np.arange(4, dtype=np.int64))
    array.data.copy_to_host_async = lambda address, n_bytes: memmove(address, array.array.ctypes.data, n_bytes)
    wait = gpu.copy_out(array)
    event = FakeStream.asked[-1][-1]
    assert [done for done, _ in gpu._copies_out] == [event]
    assert gpu.traffic.waits == 0
    np.testing.assert_array_equal(wait(), np.arange(4))
    assert FakeStream.asked[-1] == ("the host", "waits for", event)
    gpu.copy_out(array)
    assert [done for done, _ in gpu._copies_out] == [FakeStream.asked[-1][-1]]
    assert (gpu.traffic.downloads, gpu.traffic.waits) == (2, 1)


def test_arrays_of_other_libraries_are_adopted_from_this_gpu_only(gpu: GpuDevice) -> None:
    held = FakeArray(np.zeros(3))
    gpu.xp.from_dlpack = lambda tensor: held
    found = [gpu.adopt(SimpleNamespace(__dlpack_device__=lambda at=at: at)) for at in ((2, 0), (2, 1), (1, 0))]
    assert found == [held, None, None]
    assert gpu.adopt(held) is held
    assert gpu.adopt([1.0]) is None


def test_launches_and_limits(gpu: GpuDevice) -> None:
    kernels = gpu.load("void first() void second()", ["first", "second"], "cell 'leaf' (forward)")
    assert [kernel.max_dynamic_shared_size_bytes for kernel in kernels.values()] == [gpu.most_shared_bytes] * 2
    gpu.launch(kernels["second"], Launch(5, 32, 100, (1 << 40, 2, 3)))
    assert kernels["second"].launches == [((5,), (32,), (1 << 40, 2, 3), 100)]
    assert (gpu.name, gpu.n_processors, gpu.traffic.launches) == ("a GPU", 132, 1)
    with pytest.raises(BackendError, match=r"cell 'leaf' \(forward\): NVRTC .* kernels: kernels.cu\(3\): error: what"):
        gpu.load("void first()", ["other"], "cell 'leaf' (forward)")


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_matrices_are_rounded_to_bf16_as_everywhere() -> None:
    """Including ties, NaN, infinities and denormals. Nothing is written behind the rows."""
    device = HostDevice()
    text = (
        TO_BF16
        + r"""
extern "C" __global__ void wrapped(int64 x, int64 out, int64 width) {
    to_bf16((const unsigned *)x, width + 1, (unsigned short *)out, width + 3, 7, width);
}
"""
    )
    x = np.random.default_rng(0).integers(0, 1 << 32, (7, 101), np.uint32)
    x[:, ::3] = x[:, ::3] & np.uint32(0xFFFF0000) | np.uint32(0x8000)
    x[0, :4] = np.array([np.nan, -np.nan, np.inf, -np.inf], np.float32).view(np.uint32)
    x[1, :3] = 0x7F800001, 0xFF80FFFF, 0x7FFFFFFF
    held, out = device.put(x), device.put(np.full((7, 103), 9, np.uint16))
    kernel = Module(text, ("wrapped",)).load(device)
    device.launch(kernel, Launch(3, 256, 0, (device.address(held), device.address(out), 100)))
    expected = (rounded(x[:, :100].view(np.float32)).view(np.uint32) >> 16).astype(np.uint16)
    np.testing.assert_array_equal(device.get(out)[:, :100], expected)
    assert (device.get(out)[:, 100:] == 9).all()
