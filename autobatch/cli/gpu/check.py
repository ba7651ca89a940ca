"""The common parts of all sections of a check: the device, the deadline, and the table of results."""

from __future__ import annotations

import gc
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from autobatch.backends.cuda.backend import Cuda
from autobatch.cli.results import format_table
from autobatch.devices.device import Device
from autobatch.devices.gpu import GpuDevice

MEANINGLESS = "; times are meaningless, as the CPU stands in for a GPU"
PACKAGES = ("numpy", "torch", "cupy-cuda12x", "cupy-cuda13x")


@dataclass
class Result:
    """The results of a section.

    Attributes:
        title: title of the table.
        header, rows: the table; rows are also written to the record, by the names in the header.
        seconds: raw timings, by name.
        notes: sentences about omissions.
        failures: sentences about failed checks.
    """

    title: str
    header: tuple[str, ...]
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, *row: Any) -> None:
        """Add a row, and print it at once in case the run is interrupted."""
        self.rows.append(row)
        print("  ".join(map(_text, row)), file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def figures(self) -> dict[str, Any]:
        """Return the results as JSON values, for the record."""
        rows = [dict(zip(self.header, map(_rounded, row), strict=True)) for row in self.rows]
        return {"rows": rows, "notes": self.notes, "failures": self.failures}

    def table(self, device: str) -> str:
        """Format the results for printing; `device` describes the device."""
        table = format_table(self.header, [tuple(map(_text, row)) for row in self.rows])
        lines = [*(f"note: {note}" for note in self.notes), *(f"FAILED: {failure}" for failure in self.failures)]
        return "\n".join([f"\n{self.title}; {device}\n", table, *lines])


@dataclass(frozen=True)
class Check:
    """The settings of a section.

    Attributes:
        device: the device of the cuda backend.
        quick: whether to use the smallest sizes, to test the check itself.
        seed: seed of data and parameters.
        deadline: `time.perf_counter` in seconds after which no further setting is measured.
    """

    device: Device
    quick: bool
    seed: int
    deadline: float

    @property
    def is_gpu(self) -> bool:
        """Return whether the device is a real GPU, so that times are meaningful."""
        return isinstance(self.device, GpuDevice)

    def backend(self, poison: bool = False, blocks: int = 1) -> Cuda:
        """Make a cuda backend on the device, with `blocks` thread blocks per multiprocessor."""
        return Cuda(poison, self.device, blocks)

    def choose(self, full: Any, quick: Any) -> Any:
        """Return `quick` in a quick check, else `full`."""
        return quick if self.quick else full

    def measure_each(self, result: Result, settings: Iterable[tuple[Any, ...]], work: Callable[..., None]) -> None:
        """Call `work` for each setting, in order of importance, until the deadline.

        The first setting is always measured. Errors are added to the failures and do not stop the others.
        """
        waiting = list(settings)
        for number, setting in enumerate(waiting):
            if number and time.perf_counter() > self.deadline:
                result.note(f"no time left for {waiting[number:]}")
                return
            try:
                work(*setting)
            except Exception as error:  # a section that fails must not stop the others
                traceback.print_exc()
                result.failures.append(f"{setting}: {type(error).__name__}: {error}")
            self.free_memory()

    def free_memory(self) -> None:
        """Release the memory pools of CuPy and PyTorch, because neither can use the other's memory."""
        gc.collect()
        if self.is_gpu:
            self.device.xp.get_default_memory_pool().free_all_blocks()
            if "torch" in sys.modules:
                sys.modules["torch"].cuda.empty_cache()

    def wait(self) -> None:
        """Wait for all work on the device, including PyTorch's."""
        if self.is_gpu:
            self.device.xp.cuda.runtime.deviceSynchronize()
        self.device.synchronize()

    def waited(self, work: Callable[[], object], times: int = 1) -> Callable[[], None]:
        """Return a function that calls `work` `times` times and waits for the device."""

        def run() -> None:
            for _ in range(times):
                work()
            self.device.synchronize()

        return run

    def describe(self) -> dict[str, Any]:
        """Return the device and the versions of its libraries, for a record."""
        return {
            "device": self.device.name,
            **(_cuda_versions(self.device.xp) if self.is_gpu else {}),
            "processors": self.device.n_processors,
            "shared_bytes": self.device.most_shared_bytes,
            "times_mean_something": self.is_gpu,
            "versions": dict(_versions()),
        }

    def say_device(self) -> str:
        """Return the name of the device, with a remark if times are meaningless."""
        return self.device.name + ("" if self.is_gpu else MEANINGLESS)


def growth(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the increase of each count."""
    return {name: after[name] - before[name] for name in after}


def _cuda_versions(cupy: Any) -> dict[str, Any]:
    """Return the GPU's compute capability, and the CUDA versions of driver and CuPy, such as 13000 for 13.0."""
    runtime = cupy.cuda.runtime
    return {
        "compute_capability": str(cupy.cuda.Device().compute_capability),
        "driver": int(runtime.driverGetVersion()),
        "runtime": int(runtime.runtimeGetVersion()),
    }


def _rounded(value: Any) -> Any:
    """Round a float to four digits; non-finite ones become strings, as JSON lacks them."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.4g}") if np.isfinite(value) else str(value)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < np.inf else f"{value:.3g}"
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else str(value)


def _versions() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue
