"""The device interface of the cuda backend: memory, copies, kernels and matrix products, ordered on one stream.

`autobatch.devices.gpu` implements it for NVIDIA GPUs with CuPy. `tests/host_device` implements it on the CPU, with the
same kernels compiled by `g++`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from autobatch.devices.store import Store


class Launch(NamedTuple):
    """The threads of a kernel launch, and the kernel's arguments.

    Attributes:
        grid: number of blocks. All run at the same time, so they may wait for each other.
        threads: threads per block.
        shared_bytes: dynamic shared memory per block.
        args: the three int64 arguments that every kernel takes.
    """

    grid: int
    threads: int
    shared_bytes: int
    args: tuple[int, int, int]


class DeviceGemm(NamedTuple):
    """A product out = a @ b, or out += a @ b, of matrices at device addresses, with rows `*_step` elements apart.

    Attributes:
        dtype: float32 or float64.
        precision: see `autobatch.ir.precision`.
        n_rows, n, inner: a is [n_rows, inner], b is [inner, n] and out is [n_rows, n].
        b_flipped: whether b is the transpose of the [n, inner] matrix stored at `b`.
        accumulate: whether to add to `out` instead of overwriting it.
    """

    dtype: np.dtype[Any]
    precision: str
    n_rows: int
    n: int
    inner: int
    a: int
    a_step: int
    b: int
    b_step: int
    b_flipped: bool
    out: int
    out_step: int
    accumulate: bool


@dataclass
class Traffic:
    """Counts of a device's operations so far.

    Attributes:
        launches: kernel launches.
        products: matrix products by a library.
        uploads, uploaded_bytes: copies from the host, and their size.
        downloads, downloaded_bytes: copies to the host, and their size.
        waits: number of times that the host waited for the device.
    """

    launches: int = 0
    products: int = 0
    uploads: int = 0
    uploaded_bytes: int = 0
    downloads: int = 0
    downloaded_bytes: int = 0
    waits: int = 0


class Device(Store, Protocol):
    """Device memory that can also run kernels. Operations are asynchronous and run in the order of the calls.

    Attributes:
        name: product name, for messages.
        n_processors: number of streaming multiprocessors.
        most_shared_bytes: limit on the dynamic shared memory of a block.
        traffic: counts of operations so far.
        out_of_memory: class of the error raised when an array does not fit.
    """

    name: str
    n_processors: int
    most_shared_bytes: int
    traffic: Traffic
    out_of_memory: type[Exception]

    def pinned(self, n_bytes: int) -> NDArray[np.uint8]:
        """Allocate page-locked host memory, which the device can read asynchronously."""

    def mark(self) -> Any:
        """Return a marker of the work submitted so far, for `copy_in`."""

    def copy_in(self, host: NDArray[np.uint8], array: Any, after: Any) -> Callable[[], None]:
        """Start to copy pinned memory to a device array of the same size, concurrently with other work.

        Work submitted later sees the copied data.

        Args:
            after: a marker from `mark` of work that must finish first, or None.

        Returns:
            A function that waits for the copy; until then, `host` must not change.
        """

    def load(self, source: str, names: Sequence[str], about: str) -> dict[str, Any]:
        """Compile a module, or load it from the user's cache, and return its kernels by name.

        Args:
            source: CUDA C++ that defines `extern "C" __global__ void NAME(int64, int64, int64)` for each name; it
                begins with the text of `autobatch/compiler/cuda/support.cuh`.
            about: subject of error messages, such as "cell 'leaf' (forward)".

        Raises:
            BackendError: the compilation failed; the message has `about` and the compiler's first error.
        """

    def launch(self, kernel: Any, launch: Launch) -> None:
        """Run a kernel after all work submitted before.

        Raises:
            BackendError: the blocks cannot all run at the same time.
        """

    def multiply(self, product: DeviceGemm) -> None:
        """Multiply matrices after all work submitted before."""

    def synchronize(self) -> None:
        """Wait for all submitted work."""
