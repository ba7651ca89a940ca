"""The list that the kernels of `kernels.cuh` go through, an entry per parameter, and its way to the device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.devices.device import Device, Launch
from autobatch.jit.compiling import compiling
from autobatch.optim.change import N_CONSTANTS, Lines

LongArray = NDArray[np.int64]
KERNELS = "update", "measure", "scale"
ABOUT = "the kernels of optimizers"
THREADS, PIECE = 256, 1024  # of a block; see `kernels.cuh`
BLOCKS = 4  # that a streaming multiprocessor runs at the same time
WORDS = (
    "end", "data", "first", "second", "gradient", "ids", "n_ids", "rows", "size", "width", "data_step",
    "gradient_step", "is_wide",
)  # fmt: skip
ENTRY = np.dtype([*((word, np.int64) for word in WORDS), ("constants", np.int64, N_CONSTANTS)])
"""An entry: `Entry` of `kernels.cuh`, word by word."""
N_WORDS = ENTRY.itemsize // 8
ALL, GIVEN, SPARSE = range(3)
"""Which rows change; see `Entry.rows`."""


_loaded: dict[Device, dict[str, Any]] = {}


def load_kernels(device: Device) -> dict[str, Any]:
    """The kernels by name, compiled once for each device."""
    if device not in _loaded:
        with compiling(ABOUT, is_kernel=True):
            _loaded[device] = device.load(source(), KERNELS, ABOUT)
    return _loaded[device]


def source() -> str:
    """The text of the module."""
    return (Path(__file__).parent / "kernels.cuh").read_text()


def launch(device: Device, name: str, n_pieces: int, *args: int) -> None:
    """Run a kernel over so many pieces."""
    blocks = min(n_pieces, device.n_processors * BLOCKS)
    a, b, c, *_ = *args, 0, 0
    device.launch(load_kernels(device)[name], Launch(blocks, THREADS, 0, (a, b, c)))


def describe_gradient(entry: Any, grad: Lines, device: Device) -> None:
    """Write where a gradient lies to its entry, with as many numbers and as wide as it is."""
    array, _, width, step = grad
    entry["gradient"], entry["gradient_step"] = device.address(array), step
    entry["size"], entry["width"] = array.size, array.size if step == width else width
    entry["is_wide"] = array.itemsize == 8


def count_pieces(entries: NDArray[Any]) -> int:
    """Write where the pieces of each entry end; return how many there are."""
    np.cumsum(-(-entries["size"] // PIECE), out=entries["end"])
    return int(entries["end"][-1]) if len(entries) else 0


class Upload:
    """Memory of the host, to write what launches read, and its copy on the device.

    There are two of each, used in turn: one is written and copied while launches may still read the other.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._current, self._other = _Part(device), _Part(device)

    def borrow(self, n_words: int) -> tuple[LongArray, int]:
        """Memory to write to, and the address that it will have on the device once it is sent."""
        device = self._device
        self._current.used = device.mark()
        self._current, self._other = part, _ = self._other, self._current
        part.wait()
        if part.pinned.size < n_words:
            size = n_words * 5 // 4
            part.pinned, part.held = device.pinned(8 * size).view(np.int64), device.empty(size, np.dtype(np.int64))
            part.used = device.mark()
        return part.pinned[:n_words], device.address(part.held)

    def send(self, words: LongArray) -> None:
        """Begin to copy what was borrowed to the device."""
        part = self._current
        part.wait = self._device.copy_in(words.view(np.uint8), part.held[: words.size], part.used)


class _Part:
    """Pinned memory of the host and its copy; `wait` waits for the last copy, and `used` marks who reads it."""

    def __init__(self, device: Device) -> None:
        self.pinned: LongArray = np.empty(0, np.int64)
        self.held = device.empty(0, np.dtype(np.int64))
        self.wait: Callable[[], None] = lambda: None
        self.used: Any = None
