"""Run the cuda backend without a GPU: `g++` builds the kernels, and their threads run on the CPU one at a time.

`cuda_on_host.h` is prepended to the kernels' source, and `threads.cpp` runs them. That is slow, but finds more mistakes
than a GPU: threads run in random orders, shared memory and new arrays start as NaN, endless waiting is an error, and
device arrays are not host arrays, so that nothing works merely because both are in one memory.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.arrays import address_of, aligned, rounded
from autobatch.devices.device import DeviceGemm, Launch, Traffic
from autobatch.errors import BackendError
from autobatch.system.cache import cache_folder
from autobatch.system.files import write_whole

FLAGS = (
    "-std=c++17", "-fPIC", "-shared", "-pipe",
    "-ffp-contract=off",                  # bit-identical on every processor
    "-U_FORTIFY_SOURCE",                  # it would report switched stacks as errors
    "-Werror=frame-larger-than=65536",    # half a thread's stack in `threads.cpp`
)  # fmt: skip
QUICK_TO_BUILD, QUICK_TO_RUN = "-Og", "-O2"  # kernels take longer to build than to run; their threads are built once
FOLDER = Path(__file__).parent
N_PROCESSORS = 4  # of the simulated GPU; small, so that a small grid fills it
MOST_SHARED_BYTES = 64 << 10  # the minimum of the GPUs that the cuda backend supports (compute capability 7.5)
MOST_THREADS = 1024  # per block
MESSAGE_BYTES = 512
TF32_DROPPED = 13  # number of a float32's 23 bits that tf32 lacks

_one_at_a_time = threading.Lock()  # launches of a process share their threads
_libraries: dict[str, ctypes.CDLL] = {}  # by name, for the life of the process


class HostArray(np.ndarray[Any, Any]):
    """An array of the host device, in memory that no host array shares.

    Like GPU arrays, it can be combined with others of its kind and with numbers. With a NumPy array it raises a
    TypeError.
    """

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        _refuse_numpy((*inputs, *out, *options.values()))
        given = {**options, "out": out} if out else options
        found = _held(getattr(ufunc, method)(*_plain(inputs), **_plain(given)))
        return out[0] if len(out) == 1 else found

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        _refuse_numpy((args, kwargs))
        return _held(function(*_plain(args), **_plain(kwargs)))

    def __setitem__(self, index: Any, value: Any) -> None:
        _refuse_numpy((index, value))
        super().__setitem__(index, value)

    def __getitem__(self, index: Any) -> Any:
        _refuse_numpy(index)
        return super().__getitem__(index)


class HostFunctions:
    """The functions of NumPy, restricted to arrays of the host device."""

    __name__ = "numpy"

    def __init__(self, module: Any = np) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if isinstance(found, ModuleType):
            return HostFunctions(found)
        if isinstance(found, np.ufunc | type) or not callable(found):
            return found

        def function(*args: Any, **kwargs: Any) -> Any:
            _refuse_numpy((args, kwargs))
            return _held(found(*_plain(args), **_plain(kwargs)))

        return function


class HostKernel(NamedTuple):
    """A compiled kernel.

    Attributes:
        name: the kernel's name, and `about` its module's, both for messages.
        address: address of the function.
        run: `autobatch_launch` of `cuda_on_host.h`.
    """

    name: str
    about: str
    address: int
    run: Any


class HostDevice:
    """The CPU as a device of the cuda backend; see `Device`.

    Args:
        seed: seed for the orders in which threads run, which differ between launches.
        most_bytes: maximum size of an array.

    Attributes:
        holds_tensors: whether tensors of PyTorch on the CPU stand in for tensors on a GPU.
    """

    kind = "cuda"
    xp: Any = HostFunctions()
    name = "the processor, in place of a GPU"
    n_processors = N_PROCESSORS
    most_shared_bytes = MOST_SHARED_BYTES
    out_of_memory: type[Exception] = MemoryError
    holds_tensors = False

    def __init__(self, seed: int = 0, most_bytes: int | None = None) -> None:
        _find_compiler()
        self.traffic = Traffic()
        self._seed, self._most_bytes = seed, most_bytes
        self._copies: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]] = []  # memory that a GPU may still copy from
        self._message = ctypes.create_string_buffer(MESSAGE_BYTES)

    def empty(self, size: int, dtype: np.dtype[Any]) -> HostArray:
        """See `Store`; all bytes are 0xff, so that floats are NaN."""
        if self._most_bytes is not None and size * dtype.itemsize > self._most_bytes:
            raise MemoryError(f"an array of {size * dtype.itemsize} bytes where {self._most_bytes} are allowed")
        array = aligned(size, dtype)
        array.view(np.uint8)[...] = 0xFF
        return array.view(HostArray)

    def put(self, array: Any) -> Any:
        """See `Store`."""
        if isinstance(array, HostArray):
            return array
        array = np.asarray(array)
        self.traffic.uploads += 1
        self.traffic.uploaded_bytes += array.nbytes
        held = self.empty(array.size, array.dtype).reshape(array.shape)
        _plain(held)[...] = array
        return held

    def get(self, array: Any) -> NDArray[Any]:
        """See `Store`."""
        if not isinstance(array, HostArray):
            return array  # type: ignore[no-any-return]
        self.traffic.downloads += 1
        self.traffic.downloaded_bytes += array.nbytes
        self.synchronize()
        return np.array(array, order="C", subok=False)

    def copy_out(self, array: Any) -> Callable[[], NDArray[Any]]:
        """See `Store`."""
        self.traffic.downloads += 1
        self.traffic.downloaded_bytes += array.nbytes
        found = np.array(_plain(array))

        def wait() -> NDArray[Any]:
            self.synchronize()
            return found

        return wait

    def adopt(self, values: Any) -> Any | None:
        """See `Store`."""
        if self.holds_tensors and hasattr(values, "detach"):
            values = values.detach().numpy().view(HostArray)
        return values if isinstance(values, HostArray) else None

    def __deepcopy__(self, memo: object) -> HostDevice:
        return self

    def address(self, array: Any) -> int:
        """See `Store`."""
        return address_of(array)

    def pinned(self, n_bytes: int) -> NDArray[np.uint8]:
        """See `Device`."""
        return aligned(n_bytes, np.dtype(np.uint8))

    def mark(self) -> Any:
        """See `Device`."""
        return self.traffic.launches

    def copy_in(self, host: NDArray[np.uint8], array: Any, after: Any) -> Callable[[], None]:
        """See `Device`."""
        self.traffic.uploads += 1
        self.traffic.uploaded_bytes += host.nbytes
        _plain(array).view(np.uint8)[...] = host
        self._check_copies(host)
        copy = host, host.copy()
        self._copies.append(copy)
        return partial(self._finish, copy)

    def load(self, source: str, names: Sequence[str], about: str) -> dict[str, Any]:
        """See `Device`."""
        _load_threads()
        text = f'#include "cuda_on_host.h"\n#line 1 "kernels.cu"\n{source}'
        library = _load(text, about, QUICK_TO_BUILD)
        run = library.autobatch_launch
        word, number, long = ctypes.c_void_p, ctypes.c_uint, ctypes.c_int64
        run.argtypes = (word, number, number, number, number, ctypes.c_uint64, long, long, long, word, ctypes.c_size_t)
        run.restype = ctypes.c_int
        addresses = {name: ctypes.cast(getattr(library, name), word).value for name in names}
        return {name: HostKernel(name, about, address or 0, run) for name, address in addresses.items()}

    def launch(self, kernel: HostKernel, launch: Launch) -> None:
        """See `Device`.

        Raises:
            BackendError: a GPU could not launch the kernel, or would never finish it.
        """
        grid, threads, shared_bytes, args = launch
        if not (grid > 0 and 0 < threads <= MOST_THREADS and 0 <= shared_bytes <= MOST_SHARED_BYTES):
            raise BackendError(
                f"{kernel.about}: kernel {kernel.name!r} cannot run as {launch}: a launch has at least one block, a "
                f"block from 1 to {MOST_THREADS} threads and at most {MOST_SHARED_BYTES} bytes of shared memory."
            )
        self.traffic.launches += 1
        seed = (self._seed << 32) + self.traffic.launches
        with _one_at_a_time:
            failed = kernel.run(
                kernel.address, grid, threads, 1, shared_bytes, seed, *args, self._message, MESSAGE_BYTES
            )
        if failed:
            why = self._message.value.decode()
            raise BackendError(f"{kernel.about}: kernel {kernel.name!r} cannot run: {why}.")

    def multiply(self, product: DeviceGemm) -> None:
        """See `Device`."""
        self.traffic.products += 1
        n_rows, n, inner = product.n_rows, product.n, product.inner
        if not n_rows or not n:
            return
        a = _matrix(product.a, n_rows, inner, product.a_step, product.dtype)
        if product.b_flipped:
            b = _matrix(product.b, n, inner, product.b_step, product.dtype).T
        else:
            b = _matrix(product.b, inner, n, product.b_step, product.dtype)
        out = _matrix(product.out, n_rows, n, product.out_step, product.dtype)
        if product.precision == "bf16":
            a, b = rounded(a), rounded(b)
        elif product.precision == "tf32":
            a, b = rounded_to_tf32(a), rounded_to_tf32(b)
        out[...] = out + a @ b if product.accumulate else a @ b

    def synchronize(self) -> None:
        """See `Device`."""
        self.traffic.waits += 1
        if self._copies:
            self._finish(self._copies[-1])

    def _finish(self, copy: tuple[NDArray[np.uint8], NDArray[np.uint8]]) -> None:
        """Finish a copy and all earlier ones."""
        end = next((number for number, other in enumerate(self._copies, 1) if other is copy), 0)
        finished, self._copies = self._copies[:end], self._copies[end:]
        for host, held in finished:
            _check_unchanged(host, held)

    def _check_copies(self, memory: NDArray[np.uint8]) -> None:
        for host, held in self._copies:
            if np.may_share_memory(host, memory):
                _check_unchanged(host, held)


def _check_unchanged(host: NDArray[np.uint8], held: NDArray[np.uint8]) -> None:
    if not np.array_equal(host, held):
        raise BackendError(
            f"{host.nbytes} bytes of pinned memory changed while a GPU might still have copied them: wait for the copy "
            "before (`Device.copy_in`)."
        )


def rounded_to_tf32(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round numbers to tf32, with 10 bits after the leading one, as float32; ties to even."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    half, last = np.uint32((1 << TF32_DROPPED - 1) - 1), bits >> np.uint32(TF32_DROPPED) & np.uint32(1)
    nearest = (bits + (half + last)) >> np.uint32(TF32_DROPPED) << np.uint32(TF32_DROPPED)
    return np.where(np.isfinite(x), nearest.view(np.float32), x)


def _matrix(address: int, n_rows: int, width: int, step: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the matrix at an address, with rows `step` elements apart."""
    if not n_rows or not width:
        return np.empty((n_rows, width), dtype)
    n_bytes = ((n_rows - 1) * step + width) * dtype.itemsize
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * n_bytes).from_address(address))
    return np.ndarray((n_rows, width), dtype, memory, strides=(step * dtype.itemsize, dtype.itemsize))


@cache
def _find_compiler() -> str:
    """Identify the g++ version, for digests."""
    if shutil.which("g++") is None:
        raise BackendError(
            "AUTOBATCH_CUDA=host builds kernels with g++, which is not on the PATH: install it (on Debian: apt install "
            "g++) or choose another backend."
        )
    return subprocess.run(["g++", "--version"], check=True, capture_output=True, text=True).stdout


@cache
def _load_threads() -> None:
    """Load the code that runs the threads of kernels, for all modules of this process."""
    text = (FOLDER / "threads.cpp").read_text()
    _load(text, "the threads of AUTOBATCH_CUDA=host", QUICK_TO_RUN, ctypes.RTLD_GLOBAL)


def _load(text: str, about: str, level: str, mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL:
    """Load a library, building it if it is not cached; its name is a digest of everything that it depends on."""
    parts = (text, (FOLDER / "cuda_on_host.h").read_text(), _find_compiler(), level, *FLAGS)
    name = f"h{sha256(chr(0).join(parts).encode()).hexdigest()[:24]}.so"
    if name not in _libraries:
        with TemporaryDirectory(prefix="autobatch_") as folder:
            path = _find_or_build(Path(folder) / name, text, about, level)
            _libraries[name] = ctypes.CDLL(str(path), mode=mode)
    return _libraries[name]


def _find_or_build(library: Path, text: str, about: str, level: str) -> Path:
    """Return the library with this name from the user's cache, or build and cache it."""
    folder = cache_folder()
    kept = None if folder is None else folder / "kernels" / library.name
    if kept is not None and kept.is_file():
        return kept
    _compile(library, text, about, level)
    if kept is not None:
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_whole(kept, library.read_bytes())
        except OSError as error:
            why = error.strerror or error
            warnings.warn(
                f"cannot keep compiled kernels in {str(kept.parent)!r} ({why}); continuing without.", stacklevel=5
            )
    return library


def _compile(library: Path, text: str, about: str, level: str) -> None:
    source = library.with_suffix(".cpp")
    source.write_text(text)
    command = ["g++", level, *FLAGS, f"-I{FOLDER}", "-o", str(library), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise BackendError(f"{about}: g++ cannot compile its kernels: {errors[0] if errors else done.returncode}.")


def _plain(x: Any) -> Any:
    """Convert host device arrays to plain NumPy arrays over the same memory; return anything else unchanged."""
    if isinstance(x, tuple | list):
        return type(x)(map(_plain, x))
    if isinstance(x, dict):
        return {key: _plain(value) for key, value in x.items()}
    return x.view(np.ndarray) if isinstance(x, HostArray) else x


def _held(found: Any) -> Any:
    """Convert results of a function to arrays of the host device; numbers stay as they are."""
    if isinstance(found, tuple | list):
        return tuple(map(_held, found))
    return found.view(HostArray) if isinstance(found, np.ndarray) else found


def _refuse_numpy(values: Any) -> None:
    """Raise a TypeError if the values include a NumPy array, as CuPy does."""
    if isinstance(values, np.ndarray) and not isinstance(values, HostArray):
        raise TypeError(f"an array of NumPy, of shape {values.shape}, is used as one of the device; put it there first")
    if isinstance(values, tuple | list):
        for value in values:
            _refuse_numpy(value)
    elif isinstance(values, dict):
        _refuse_numpy(list(values.values()))
