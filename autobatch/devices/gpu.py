"""NVIDIA GPUs for the cuda backend: memory, kernels and matrix products with CuPy 13 or 14.

All work runs in order on CuPy's current stream, except uploads of mini-batches, which have their own stream. CuPy
caches compiled modules in `CUPY_CACHE_DIR`. Products call `cublasGemmEx` with addresses. cuBLAS expects column-major
matrices and ours are row-major, so it is given the transposed product with the operands exchanged. CuPy compiles all
kernels with `-ftz=true`: float32 numbers below the smallest normal one, 1.2e-38, become 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.devices.device import DeviceGemm, Launch, Traffic
from autobatch.errors import BackendError

OPTIONS = ("--std=c++17",)
REAL32, REAL64, BF16 = 0, 1, 14  # `cudaDataType`; CuPy 13 has no name for the last
ON_CUDA = 2  # DLPack's device type of CUDA
BF16_CAPABILITY = 80  # Ampere, the first with products of bf16 and tf32
ALIGNED = 8  # bf16 numbers, 16 bytes: rows with this alignment are read fastest

TO_BF16 = r"""
// Round a matrix to bf16, to nearest and ties to even; the rows of `out` are `out_step` apart. NaN stays NaN.
extern "C" __global__ void to_bf16(const unsigned *x, long long x_step, unsigned short *out, long long out_step,
                                   long long n_rows, long long width) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n_rows * width) return;
    unsigned bits = x[i / width * x_step + i % width], high = bits >> 16;
    bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    out[i / width * out_step + i % width] = is_nan ? high | 0x40u : (bits + (0x7fffu + (high & 1u))) >> 16;
}
"""
THREADS = 256  # per block of `to_bf16`


class GpuDevice:
    """CuPy's current GPU as a `Device`."""

    kind = "cuda"

    def __init__(self) -> None:
        import cupy
        from cupy.cuda import device, runtime
        from cupy_backends.cuda.libs import cublas

        chosen = cupy.cuda.Device()
        self.xp: Any = cupy
        self.name = runtime.getDeviceProperties(chosen.id)["name"].decode()
        self.n_processors: int = chosen.attributes["MultiProcessorCount"]
        self.most_shared_bytes: int = chosen.attributes["MaxSharedMemoryPerBlockOptin"]
        self.traffic = Traffic()
        self.out_of_memory: type[Exception] = cupy.cuda.memory.OutOfMemoryError
        self._number, self._capability = int(chosen.id), int(chosen.compute_capability)
        self._blas, self._get_handle = cublas, device.get_cublas_handle  # each thread has a handle of its own
        self._scalars = {np.dtype(t): (np.zeros(1, t), np.ones(1, t)) for t in (np.float32, np.float64)}
        self._to_bf16 = cupy.RawKernel(TO_BF16, "to_bf16", OPTIONS)
        self._uploading = cupy.cuda.Stream(non_blocking=True)
        self._copies_out: list[tuple[Any, NDArray[np.uint8]]] = []  # keeps memory alive until its copy is done
        self._rounded = [cupy.empty(0, np.uint16), cupy.empty(0, np.uint16)]

    def empty(self, size: int, dtype: np.dtype[Any]) -> Any:
        return self.xp.empty(size, dtype)

    def put(self, array: Any) -> Any:
        if isinstance(array, self.xp.ndarray):
            return array
        array = np.asarray(array)
        self.traffic.uploads += 1
        self.traffic.uploaded_bytes += array.nbytes
        return self.xp.asarray(array, order="C")

    def get(self, array: Any) -> NDArray[Any]:
        if isinstance(array, np.ndarray):
            return array
        self.traffic.downloads += 1
        self.traffic.downloaded_bytes += array.nbytes
        self.traffic.waits += 1
        found: NDArray[Any] = array.get(order="C")
        return found

    def copy_out(self, array: Any) -> Callable[[], NDArray[Any]]:
        self.traffic.downloads += 1
        self.traffic.downloaded_bytes += array.nbytes
        host = self.pinned(array.nbytes)
        array.data.copy_to_host_async(host.ctypes.data, array.nbytes)
        event = self.mark()
        # The caller may drop `wait`; without a reference, CuPy would reuse the pinned memory while it is being written.
        self._copies_out = [(done, memory) for done, memory in self._copies_out if not done.done]
        self._copies_out.append((event, host))

        def wait() -> NDArray[Any]:
            self.traffic.waits += 1
            event.synchronize()
            found: NDArray[Any] = host.view(array.dtype).reshape(array.shape).copy()
            return found

        return wait

    def adopt(self, values: Any) -> Any | None:
        if isinstance(values, self.xp.ndarray):
            return values
        tensor = values.detach() if hasattr(values, "detach") else values
        lies_on = getattr(tensor, "__dlpack_device__", None)
        is_here = lies_on is not None and tuple(lies_on()) == (ON_CUDA, self._number)
        return self.xp.from_dlpack(tensor) if is_here else None

    def __deepcopy__(self, memo: object) -> GpuDevice:
        return self

    def address(self, array: Any) -> int:
        address: int = array.data.ptr
        return address

    def pinned(self, n_bytes: int) -> NDArray[np.uint8]:
        return np.frombuffer(self.xp.cuda.alloc_pinned_memory(max(n_bytes, 1)), np.uint8)[:n_bytes]

    def mark(self) -> Any:
        event = self.xp.cuda.Event(disable_timing=True)
        event.record()
        return event

    def copy_in(self, host: NDArray[np.uint8], array: Any, after: Any) -> Callable[[], None]:
        self.traffic.uploads += 1
        self.traffic.uploaded_bytes += host.nbytes
        event = self.xp.cuda.Event(disable_timing=True)
        if after is not None:
            self._uploading.wait_event(after)
        array.data.copy_from_host_async(host.ctypes.data, host.nbytes, self._uploading)
        event.record(self._uploading)
        # Later work waits for the upload on the device; the host goes on.
        self.xp.cuda.get_current_stream().wait_event(event)
        wait: Callable[[], None] = event.synchronize
        return wait

    def load(self, source: str, names: Sequence[str], about: str) -> dict[str, Any]:
        module = self.xp.RawModule(code=source, options=OPTIONS, backend="nvrtc")
        try:
            kernels = {name: module.get_function(name) for name in names}
            for kernel in kernels.values():
                # Allow launches all the memory that a block can have; by default, CUDA allows less.
                kernel.max_dynamic_shared_size_bytes = self.most_shared_bytes - kernel.shared_size_bytes
        except self.xp.cuda.compiler.CompileException as error:
            lines = error.get_message().splitlines()
            first = next((line for line in lines if "error" in line), lines[0] if lines else "no reason given")
            raise BackendError(f"{about}: NVRTC failed to compile its kernels: {first}.") from error
        return kernels

    def launch(self, kernel: Any, launch: Launch) -> None:
        grid, threads, shared_bytes, args = launch
        self.traffic.launches += 1
        # A cooperative launch, in which all blocks run at the same time or the launch fails.
        kernel.kernel((grid,), (threads,), tuple(map(np.int64, args)), shared_bytes, enable_cooperative_groups=True)

    def multiply(self, product: DeviceGemm) -> None:
        self.traffic.products += 1
        n_rows, n, inner = product.n_rows, product.n, product.inner
        if not n_rows or not n:
            return
        blas, a, b = self._blas, (product.a, max(product.a_step, 1)), (product.b, max(product.b_step, 1))
        wide = product.dtype == np.float64
        kind = out_kind = REAL64 if wide else REAL32
        compute = blas.CUBLAS_COMPUTE_64F if wide else blas.CUBLAS_COMPUTE_32F
        if product.precision != "float32":
            self._check_capability(product.precision)
        if product.precision == "tf32":
            compute = blas.CUBLAS_COMPUTE_32F_FAST_TF32
        elif product.precision == "bf16":
            kind = BF16
            a = self._round(0, *a, n_rows, inner)
            b = self._round(1, *b, *((n, inner) if product.b_flipped else (inner, n)))
        # Addresses of host memory, which cuBLAS reads during the call.
        zero, one = (scalar.ctypes.data for scalar in self._scalars[product.dtype])
        blas.gemmEx(
            self._get_handle(),
            blas.CUBLAS_OP_T if product.b_flipped else blas.CUBLAS_OP_N,
            blas.CUBLAS_OP_N,
            *(n, n_rows, inner),
            *(one, b[0], kind, b[1], a[0], kind, a[1]),
            *(one if product.accumulate else zero, product.out, out_kind, product.out_step),
            *(compute, blas.CUBLAS_GEMM_DEFAULT),
        )

    def synchronize(self) -> None:
        self.traffic.waits += 1
        self.xp.cuda.get_current_stream().synchronize()

    def _round(self, place: int, address: int, step: int, n_rows: int, width: int) -> tuple[int, int]:
        """Round a matrix to bf16; return the address of the result, and its row step in elements."""
        kept_step = -(-max(width, 1) // ALIGNED) * ALIGNED
        if self._rounded[place].size < n_rows * kept_step:
            self._rounded[place] = self.xp.empty(n_rows * kept_step, np.uint16)
        kept = self.address(self._rounded[place])
        if n_rows * width:
            args = (address, step, kept, kept_step, n_rows, width)
            self._to_bf16((-(-n_rows * width // THREADS),), (THREADS,), tuple(map(np.int64, args)))
        return kept, kept_step

    def _check_capability(self, precision: str) -> None:
        if self._capability < BF16_CAPABILITY:
            raise BackendError(
                f'precision="{precision}" needs a GPU of compute capability 8.0 or later, got {self.name} with '
                f"{self._capability / 10}; leave precision out."
            )
