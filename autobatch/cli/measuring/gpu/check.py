"""What the sections of a check share: the device, the time that is left, and the table that each of them fills."""

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

MEANINGLESS = "; times mean nothing here, where a processor stands in for a GPU"
PACKAGES = ("numpy", "torch", "cupy-cuda12x", "cupy-cuda13x")


@dataclass
class Result:
    """What a section found.

    Attributes:
        title: says what the table is about.
        header, rows: of the table; every row is also a figure of the record, by the names in the header.
        seconds: raw timings, by what was timed.
        notes: what was left out, and why.
        failures: what is wrong: a sentence each.
    """

    title: str
    header: tuple[str, ...]
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, *row: Any) -> None:
        """Add a row; it is also shown at once, for a run that is broken off."""
        self.rows.append(row)
        print("  ".join(map(_text, row)), file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Say once what was left out, and why."""
        if text not in self.notes:
            self.notes.append(text)

    def figures(self) -> dict[str, Any]:
        """What a record holds."""
        rows = [dict(zip(self.header, map(_rounded, row), strict=True)) for row in self.rows]
        return {"rows": rows, "notes": self.notes, "failures": self.failures}

    def table(self, device: str) -> str:
        """What is printed in the end."""
        table = format_table(self.header, [tuple(map(_text, row)) for row in self.rows])
        lines = [*(f"note: {note}" for note in self.notes), *(f"FAILED: {failure}" for failure in self.failures)]
        return "\n".join([f"\n{self.title}; {device}\n", table, *lines])


@dataclass(frozen=True)
class Check:
    """The settings of a section.

    Attributes:
        device: the device of the cuda backend.
        quick: all is as small as can be, to see that the check itself runs.
        seed: of data and parameters.
        deadline: the second of `time.perf_counter` from which nothing new begins.
    """

    device: Device
    quick: bool
    seed: int
    deadline: float

    @property
    def is_gpu(self) -> bool:
        """Whether times mean something."""
        return isinstance(self.device, GpuDevice)

    def backend(self, poison: bool = False, blocks: int = 1) -> Cuda:
        """The cuda backend on the device, with so many blocks of threads per processor."""
        return Cuda(poison, self.device, blocks)

    def choose(self, full: Any, quick: Any) -> Any:
        """One of two values."""
        return quick if self.quick else full

    def measure_each(self, result: Result, settings: Iterable[tuple[Any, ...]], work: Callable[..., None]) -> None:
        """Do the work for one setting after the other, the most important first, until the time is up.

        The first is done in any case; one that fails does not end the others.
        """
        waiting = list(settings)
        for number, setting in enumerate(waiting):
            if number and time.perf_counter() > self.deadline:
                result.note(f"no time was left for {waiting[number:]}")
                return
            try:
                work(*setting)
            except Exception as error:  # a section that fails must not stop the others
                traceback.print_exc()
                result.failures.append(f"{setting}: {type(error).__name__}: {error}")
            self.free_memory()

    def free_memory(self) -> None:
        """Give memory back that CuPy and PyTorch keep, each from the other."""
        gc.collect()
        if self.is_gpu:
            self.device.xp.get_default_memory_pool().free_all_blocks()
            if "torch" in sys.modules:
                sys.modules["torch"].cuda.empty_cache()

    def wait(self) -> None:
        """Wait for all work on the device, PyTorch's too."""
        if self.is_gpu:
            self.device.xp.cuda.runtime.deviceSynchronize()
        self.device.synchronize()

    def waited(self, work: Callable[[], object], times: int = 1) -> Callable[[], None]:
        """What asks the device for some work that often, and waits until it is done."""

        def run() -> None:
            for _ in range(times):
                work()
            self.device.synchronize()

        return run

    def describe(self) -> dict[str, Any]:
        """Name the device and the libraries that it is used with, for a record."""
        return {
            "device": self.device.name,
            **(_cuda_versions(self.device.xp) if self.is_gpu else {}),
            "processors": self.device.n_processors,
            "shared_bytes": self.device.most_shared_bytes,
            "times_mean_something": self.is_gpu,
            "versions": dict(_versions()),
        }

    def say_device(self) -> str:
        """Name the device, and say if times mean nothing there."""
        return self.device.name + ("" if self.is_gpu else MEANINGLESS)


def growth(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """How much each count grew."""
    return {name: after[name] - before[name] for name in after}


def _cuda_versions(cupy: Any) -> dict[str, Any]:
    """The GPU's compute capability, and the CUDA of the driver and of CuPy, such as 13000 for 13.0."""
    runtime = cupy.cuda.runtime
    return {
        "compute_capability": str(cupy.cuda.Device().compute_capability),
        "driver": int(runtime.driverGetVersion()),
        "runtime": int(runtime.runtimeGetVersion()),
    }


def _rounded(value: Any) -> Any:
    """For JSON, which has no infinity."""
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
