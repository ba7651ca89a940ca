"""Find the device of the cuda backend: a GPU, or the CPU device of the tests. A process has at most one of each.

AUTOBATCH_CUDA=host     run the cuda backend on the CPU, to try programs without a GPU; needs a checkout
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autobatch.devices.store import HOST, Store
from autobatch.errors import BackendError
from autobatch.release import pip_install

if TYPE_CHECKING:
    from autobatch.devices.device import Device

VARIABLE = "AUTOBATCH_CUDA"
LEAST_CAPABILITY = 70  # Volta, the first with independent scheduling of the threads of a warp
NO_DEVICE = "cudaErrorNoDevice"
HOST_DEVICE, TESTS = "host_device", Path(__file__).parents[2] / "tests"  # a package of a checkout's tests


def find_store(name: str) -> Store:
    """Return the memory of the device `name`, "cpu" or "cuda".

    Raises:
        BackendError: the name is unknown, or the device cannot be used.
    """
    if name not in ("cpu", "cuda"):
        raise BackendError(f"device must be 'cpu' or 'cuda', got {name!r}.")
    return HOST if name == "cpu" else find_device()


_devices: dict[str, Device] = {}  # by the value of AUTOBATCH_CUDA


def find_store_of(array: Any) -> Store:
    """Return the device memory that holds an array of any library; `HOST` unless a device in use holds it."""
    return next((device for device in _devices.values() if device.adopt(array) is not None), HOST)


def find_device() -> Device:
    """Return the device chosen by `AUTOBATCH_CUDA`: a GPU if unset, the CPU if "host".

    Raises:
        BackendError: the device cannot be used; the message says what to install or set.
    """
    chosen = os.environ.get(VARIABLE, "")
    if chosen not in _devices:
        _devices[chosen] = _make_device(chosen)
    return _devices[chosen]


def _make_device(chosen: str) -> Device:
    if chosen == "host":
        return make_host_device()
    if chosen:
        raise BackendError(f"{VARIABLE} must be host (to run on the CPU) or unset (for a GPU), got {chosen!r}.")
    _check_gpu(_import_cupy())
    from autobatch.devices.gpu import GpuDevice

    return GpuDevice()


def make_host_device() -> Device:
    """Make a device that runs kernels on the CPU, from the tests of a checkout.

    Raises:
        BackendError: autobatch does not run from a checkout, or `g++` is missing.
    """
    if HOST_DEVICE not in sys.modules:
        spec = PathFinder.find_spec(HOST_DEVICE, [str(TESTS)])
        if spec is None or spec.loader is None:
            raise BackendError(
                f"{VARIABLE}=host works only in a checkout: {str(TESTS / HOST_DEVICE)!r} is missing. Leave it unset "
                f"for a GPU, or choose another backend."
            )
        # Registered before it runs, because the package imports its own modules by this name.
        module = sys.modules[HOST_DEVICE] = module_from_spec(spec)
        spec.loader.exec_module(module)
    made: Device = sys.modules[HOST_DEVICE].HostDevice()
    return made


def _import_cupy() -> Any:
    try:
        import cupy
    except ModuleNotFoundError as error:
        raise BackendError(
            f"the cuda backend needs CuPy, which is not installed: {pip_install('cuda12')} if nvidia-smi shows "
            f"CUDA 12, {pip_install('cuda13')} for CUDA 13 or later."
        ) from error
    except ImportError as error:
        raise BackendError(f"the cuda backend needs CuPy, which cannot be imported: {_first_line(error)}.") from error
    return cupy


def _check_gpu(cupy: Any) -> None:
    """Raise a BackendError unless CuPy finds a supported GPU, a matching driver and CUDA's libraries."""
    runtime = cupy.cuda.runtime
    major, driver_major = runtime.runtimeGetVersion() // 1000, runtime.driverGetVersion() // 1000
    if driver_major == 0:
        raise BackendError("the cuda backend cannot find an NVIDIA driver: install one, or choose another backend.")
    if driver_major < major:
        raise BackendError(
            f"CuPy was built for CUDA {major}, but the NVIDIA driver supports only CUDA {driver_major}: "
            f"pip uninstall cupy-cuda{major}x, then {pip_install(f'cuda{driver_major}')}; or update the driver."
        )
    try:
        found = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        if NO_DEVICE not in str(error):
            raise BackendError(f"the cuda backend cannot use the NVIDIA driver: {_first_line(error)}.") from error
        found = 0
    if not found:
        raise BackendError(
            "the cuda backend found a driver but no NVIDIA GPU: check the output of nvidia-smi and "
            f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')!r}."
        )
    capability = int(cupy.cuda.Device().compute_capability)
    if capability < LEAST_CAPABILITY:
        raise BackendError(
            f"the cuda backend needs a GPU of compute capability {LEAST_CAPABILITY / 10} (Volta, 2017) or later, "
            f"got {capability / 10}: choose another backend."
        )
    try:
        from cupy_backends.cuda.libs import cublas, nvrtc  # noqa: F401

        nvrtc.getVersion()  # loads it
    except (ImportError, RuntimeError) as error:
        raise BackendError(
            f"CuPy cannot load cuBLAS or NVRTC of CUDA {major} ({_first_line(error)}): {pip_install(f'cuda{major}')}."
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
