"""What the cuda backend asks of a device: memory, copies, kernels and matrix products, in the order of one stream.

`autobatch.devices.gpu` runs on an NVIDIA GPU through CuPy. The tests have another device, `tests/host_device`, which
runs the same kernels on the processor, built by `g++`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from autobatch.devices.store import Store


class Launch(NamedTuple):
    """The threads of a launch, and the arguments of its kernel.

    Attributes:
        grid: the number of blocks. All of them run at the same time, so that they may wait for each other.
        threads: per block.
        shared_bytes: dynamic shared memory per block.
        args: the three 64-bit ints that every kernel takes.
    """

    grid: int
    threads: int
    shared_bytes: int
    args: tuple[int, int, int]


class DeviceGemm(NamedTuple):
    """out = a @ b, or out += a @ b, for matrices at addresses of the device, with rows `*_step` elements apart.

    Attributes:
        dtype: float32 or float64.
        precision: see `autobatch.ir.precision`.
        n_rows, n, inner: a is [n_rows, inner], b is [inner, n] and out is [n_rows, n].
        b_flipped: b is the transpose of the [n, inner] matrix that is stored at `b`.
        accumulate: add to `out`.
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
    """What a device was asked to do so far.

    Attributes:
        launches: launches of kernels.
        products: matrix products by a library.
        uploads, uploaded_bytes: copies from the host, and their bytes.
        downloads, downloaded_bytes: copies to the host, and their bytes.
        waits: how often the host waited for the device.
    """

    launches: int = 0
    products: int = 0
    uploads: int = 0
    uploaded_bytes: int = 0
    downloads: int = 0
    downloaded_bytes: int = 0
    waits: int = 0


class Device(Store, Protocol):
    """A device: a store of arrays that also runs kernels.

    Attributes:
        name: of the device, for people.
        n_processors: streaming multiprocessors.
        most_shared_bytes: the dynamic shared memory that a block may have.
        traffic: the counts so far.
        out_of_memory: what is raised where it has no room for an array.
    """

    name: str
    n_processors: int
    most_shared_bytes: int
    traffic: Traffic
    out_of_memory: type[Exception]

    def pinned(self, n_bytes: int) -> NDArray[np.uint8]:
        """Memory of the host that the device can copy from while the host goes on."""

    def mark(self) -> Any:
        """Remember the work that was asked for so far."""

    def copy_in(self, host: NDArray[np.uint8], array: Any, after: Any) -> Callable[[], None]:
        """Begin to copy pinned memory to an array of the device of as many bytes, beside other work.

        Work that is asked for later finds the copy.

        Args:
            after: the work that comes first, from `mark`; None if there is none.

        Returns:
            Waits until the copy is done; before that, the host must leave its memory as it is.
        """

    def load(self, source: str, names: Sequence[str], about: str) -> dict[str, Any]:
        """Compile a module and return its kernels by name. Compiled modules are kept in the user's cache.

        Args:
            source: CUDA C++ that defines `extern "C" __global__ void NAME(int64, int64, int64)` for each name; the
                text of `autobatch/compiler/cuda/support.cuh` comes first in it.
            about: what is compiled, for messages: "cell 'leaf' (forward)".

        Raises:
            BackendError: it cannot be compiled; names `about` and what the compiler says first.
        """

    def launch(self, kernel: Any, launch: Launch) -> None:
        """Run a kernel, after all work that was asked for before.

        Raises:
            BackendError: so many blocks cannot run at the same time.
        """

    def multiply(self, product: DeviceGemm) -> None:
        """Multiply matrices, after all work that was asked for before."""

    def synchronize(self) -> None:
        """Wait for all work that was asked for."""
