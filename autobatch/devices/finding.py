"""Find the device of the cuda backend: a GPU, or the tests' stand-in for one. A process has one of each.

AUTOBATCH_CUDA=host     in a checkout, the cuda backend runs on the processor, to try programs without a GPU
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
LEAST_CAPABILITY = 70  # threads of a warp run independently from here on
NO_DEVICE = "cudaErrorNoDevice"
HOST_DEVICE, TESTS = "host_device", Path(__file__).parents[2] / "tests"  # a package of a checkout's tests


def find_store(name: str) -> Store:
    """Give the memory of a device by its name: "cpu" or "cuda".

    Raises:
        BackendError: there is no such device, or it cannot be used.
    """
    if name not in ("cpu", "cuda"):
        raise BackendError(f"there is no device {name!r}; there are cpu and cuda.")
    return HOST if name == "cpu" else find_device()


_devices: dict[str, Device] = {}  # those made so far


def find_store_of(array: Any) -> Store:
    """Give the memory that an array of any library lies in: that of a device in use, else the processor's."""
    return next((device for device in _devices.values() if device.adopt(array) is not None), HOST)


def find_device() -> Device:
    """Give the device that `AUTOBATCH_CUDA` names: a GPU if it is not set, the processor if it is "host".

    Raises:
        BackendError: it cannot be used; says what to install, or to set.
    """
    chosen = os.environ.get(VARIABLE, "")
    if chosen not in _devices:
        _devices[chosen] = _make_device(chosen)
    return _devices[chosen]


def _make_device(chosen: str) -> Device:
    if chosen == "host":
        return make_host_device()
    if chosen:
        raise BackendError(
            f"{VARIABLE}={chosen!r}: set it to host, to run on the processor, or leave it unset for a GPU."
        )
    _check_gpu(_import_cupy())
    from autobatch.devices.gpu import GpuDevice

    return GpuDevice()


def make_host_device() -> Device:
    """Make a device that runs kernels on the processor; a checkout has it, in its tests.

    Raises:
        BackendError: this is no checkout, or there is no `g++`.
    """
    if HOST_DEVICE not in sys.modules:
        spec = PathFinder.find_spec(HOST_DEVICE, [str(TESTS)])
        if spec is None or spec.loader is None:
            raise BackendError(
                f"{VARIABLE}=host is for checkouts, whose tests run the cuda backend on the processor: there is no "
                f"folder {str(TESTS / HOST_DEVICE)!r}; leave it unset for a GPU, or choose another backend."
            )
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
            f"CUDA 12, {pip_install('cuda13')} from CUDA 13 on."
        ) from error
    except ImportError as error:
        raise BackendError(f"the cuda backend needs CuPy, which cannot be imported: {_first_line(error)}.") from error
    return cupy


def _check_gpu(cupy: Any) -> None:
    """Raise a BackendError if CuPy finds no GPU that the backend runs on."""
    runtime = cupy.cuda.runtime
    major, driver_major = runtime.runtimeGetVersion() // 1000, runtime.driverGetVersion() // 1000
    if driver_major == 0:
        raise BackendError("the cuda backend finds no NVIDIA driver: install one, or choose another backend.")
    if driver_major < major:
        raise BackendError(
            f"CuPy is that of CUDA {major} and the NVIDIA driver runs CUDA up to {driver_major}: "
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
            "the cuda backend finds a driver but no NVIDIA GPU: look at what nvidia-smi lists and at "
            f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')!r}."
        )
    capability = int(cupy.cuda.Device().compute_capability)
    if capability < LEAST_CAPABILITY:
        raise BackendError(
            f"the cuda backend needs a GPU of compute capability {LEAST_CAPABILITY / 10} (Volta, 2017) or later and "
            f"this one has {capability / 10}: choose another backend."
        )
    try:
        from cupy_backends.cuda.libs import cublas, nvrtc  # noqa: F401

        nvrtc.getVersion()  # loads it
    except (ImportError, RuntimeError) as error:
        raise BackendError(
            f"CuPy finds no cuBLAS or no NVRTC of CUDA {major}: {pip_install(f'cuda{major}')} ({_first_line(error)})."
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
