"""The entries, one per parameter, that the kernels of `kernels.cuh` process, and their upload to the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.devices.device import Device, Launch
from autobatch.devices.staging import Staging
from autobatch.optim.change import N_CONSTANTS, Lines
from autobatch.system.compiling import compiling

LongArray = NDArray[np.int64]
KERNELS = "update", "measure", "scale"
ABOUT = "the kernels of optimizers"
THREADS, PIECE = 256, 1024  # threads and numbers per block; see `kernels.cuh`
BLOCKS = 4  # per streaming multiprocessor
WORDS = (
    "end", "data", "first", "second", "gradient", "ids", "n_ids", "rows", "size", "width", "data_step",
    "gradient_step", "is_wide",
)  # fmt: skip
ENTRY = np.dtype([*((word, np.int64) for word in WORDS), ("constants", np.int64, N_CONSTANTS)])
"""The layout of `Entry` in `kernels.cuh`, word by word."""
N_WORDS = ENTRY.itemsize // 8
ALL, GIVEN, SPARSE = range(3)
"""Selections of rows to update; see `Entry.rows`."""


_loaded: dict[Device, dict[str, Any]] = {}


def load_kernels(device: Device) -> dict[str, Any]:
    """Return the kernels by name, compiled once per device."""
    if device not in _loaded:
        with compiling(ABOUT):
            _loaded[device] = device.load(source(), KERNELS, ABOUT)
    return _loaded[device]


def source() -> str:
    """Return the CUDA source of the kernels."""
    return (Path(__file__).parent / "kernels.cuh").read_text(encoding="utf-8")


def launch(device: Device, name: str, n_pieces: int, *args: int) -> None:
    """Run a kernel over `n_pieces` pieces."""
    blocks = min(n_pieces, device.n_processors * BLOCKS)
    a, b, c, *_ = *args, 0, 0
    device.launch(load_kernels(device)[name], Launch(blocks, THREADS, 0, (a, b, c)))


def describe_gradient(entry: Any, grad: Lines, device: Device) -> None:
    """Write the address, layout and item size of a gradient to its entry."""
    array, _, width, step = grad
    entry["gradient"], entry["gradient_step"] = device.address(array), step
    entry["size"], entry["width"] = array.size, array.size if step == width else width
    entry["is_wide"] = array.itemsize == 8


def count_pieces(entries: NDArray[Any]) -> int:
    """Write the end of each entry's range of pieces; return the number of pieces."""
    np.cumsum(-(-entries["size"] // PIECE), out=entries["end"])
    return int(entries["end"][-1]) if len(entries) else 0


def borrow(staging: Staging, n_words: int, device: Device) -> tuple[LongArray, int]:
    """Return host words for the arguments of launches, and their address on the device after `Staging.send`."""
    staging.turn(8 * n_words)
    return staging.pinned.view(np.int64), device.address(staging.held)
