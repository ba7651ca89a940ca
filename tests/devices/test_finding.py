"""Test that the requested device is found, or that one sentence says what to install or set."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from autobatch.devices import finding
from autobatch.devices.finding import find_device
from autobatch.errors import BackendError
from host_device import HostDevice


class CUDARuntimeError(RuntimeError):
    """Stands in for CuPy's error."""


def fake_cupy(built: int = 12, driver: int = 12, capability: str = "90", error: str = "", devices: int = 1) -> Any:
    """Return a fake CuPy for a CUDA version, with a driver and GPUs."""

    def count() -> int:
        if error:
            raise CUDARuntimeError(error)
        return devices

    runtime = SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        runtimeGetVersion=lambda: built * 1000 + 20,
        driverGetVersion=lambda: driver * 1000,
        getDeviceCount=count,
    )
    cuda = SimpleNamespace(runtime=runtime, Device=lambda: SimpleNamespace(compute_capability=capability))
    module: Any = ModuleType("cupy")
    module.cuda = cuda
    return module


def test_the_processor_is_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    monkeypatch.setenv("AUTOBATCH_CUDA", "host")
    assert isinstance(find_device(), HostDevice)


def test_the_processor_is_in_checkouts_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "host_device")
    monkeypatch.setattr(finding, "TESTS", tmp_path)
    with pytest.raises(BackendError, match=r"=host works only in a checkout: '.*host_device'"):
        finding.make_host_device()


def test_another_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOBATCH_CUDA", "cpu")
    with pytest.raises(BackendError, match=r"AUTOBATCH_CUDA must be .*, got 'cpu'"):
        find_device()


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOBATCH_CUDA", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    cases: dict[str, Any] = {
        r"needs CuPy, which is not installed: pip install 'autobatch-nn\[cuda12\]' .* 'autobatch-nn\[cuda13\]'": None,
        r"cannot find an NVIDIA driver: install one": fake_cupy(driver=0),
        r"CuPy was built for CUDA 13, .* CUDA 12: .* pip install 'autobatch-nn\[cuda12\]'":
            fake_cupy(built=13),
        r"found a driver but no NVIDIA GPU: .* CUDA_VISIBLE_DEVICES='7'": fake_cupy(error="cudaErrorNoDevice: none"),
        r"found a driver but no NVIDIA GPU": fake_cupy(devices=0),
        r"cannot use the NVIDIA driver: cudaErrorUnknown: bad luck": fake_cupy(error="cudaErrorUnknown: bad luck"),
        r"needs a GPU of compute capability 7.0 .*, got 6.1": fake_cupy(capability="61"),
        r"CuPy cannot load cuBLAS or NVRTC of CUDA 12 .*: pip install 'autobatch-nn\[cuda12\]'": fake_cupy(driver=13),
    }  # fmt: skip
    monkeypatch.setitem(sys.modules, "cupy_backends", None)
    for message, cupy in cases.items():
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        with pytest.raises(BackendError, match=message):
            find_device()


def test_a_missing_compiler_of_the_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("CuPy failed to load libnvrtc.so.12")

    libraries: Any = ModuleType("cupy_backends.cuda.libs")
    libraries.cublas, libraries.nvrtc = None, SimpleNamespace(getVersion=fail)
    monkeypatch.delenv("AUTOBATCH_CUDA", raising=False)
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", libraries)
    with pytest.raises(BackendError, match=r"NVRTC of CUDA 12 \(CuPy failed to load libnvrtc.so.12\)"):
        find_device()
