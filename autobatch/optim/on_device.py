"""Optimizer steps and clipping on a device: a small upload and few launches, for which the host does not wait.

The kernels in `kernels.cuh` process entries, one per parameter. A step is one launch for all parameters, bit-identical
to `native/run/optimizer.cpp`. Its entries are kept between steps; only the constants and the rows of sparse gradients
change. Where the host skips rows that never had a gradient, the kernel updates all rows; the rule does not change those
rows, so the result is the same.

In clipping, one launch measures all gradients, and another scales them. Squares are summed in float64 in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autobatch._native import changes_all
from autobatch.devices.device import Device, Launch
from autobatch.devices.staging import Staging
from autobatch.optim.change import N_CONSTANTS, Change, Lines, to_lines
from autobatch.params.parameter import FloatArray
from autobatch.params.sparse_rows import Rows
from autobatch.system.background import compiling

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
    entry["size"], entry["width"] = array.size, array.size if step == width else width  # contiguous: one line
    entry["is_wide"] = array.itemsize == 8


def count_pieces(entries: NDArray[Any]) -> int:
    """Write the end of each entry's range of pieces; return the number of pieces."""
    np.cumsum(-(-entries["size"] // PIECE), out=entries["end"])
    return int(entries["end"][-1]) if len(entries) else 0


def borrow(staging: Staging, n_words: int) -> tuple[LongArray, int]:
    """Return host words for the arguments of launches, and their address on the device after `Staging.send`."""
    staging.turn(8 * n_words)
    return staging.pinned.view(np.int64), staging.address


class DeviceUpdates:
    """`autobatch.optim.change.Updates` on a device.

    Raises:
        BackendError: the kernels cannot be compiled.
    """

    def __init__(self, device: Device) -> None:
        load_kernels(device)
        self._device, self._staging = device, Staging(device)
        self._entries: NDArray[Any] = np.zeros(0, ENTRY)
        self._described: list[tuple[Any, ...]] = []  # the arrays that each entry describes

    def run(self, changes: Sequence[Change], lazy: bool, finite: Any) -> None:
        if len(changes) != len(self._described):
            self._entries, self._described = np.zeros(len(changes), ENTRY), [()] * len(changes)
        used = [self._describe(at, change, lazy) for at, change in enumerate(changes)]
        n_pieces = count_pieces(self._entries)
        if n_pieces == 0:
            return
        address = self._send([change.grad for change in changes])
        flag = 0 if finite is None else self._device.address(finite)
        launch(self._device, "update", n_pieces, address, len(changes), flag)
        for change, (data, _) in zip(changes, used, strict=True):
            if data is not change.data:
                change.data[...] = data

    def _describe(self, at: int, change: Change, lazy: bool) -> tuple[FloatArray, FloatArray]:
        """Write an entry; return the arrays of the parameter and the gradient that it refers to.

        These are copies if an array does not have the form of `Lines`, or the gradient has another dtype.
        """
        entry, dtype = self._entries[at], change.data.dtype
        # A constant is in the first bytes of a word of 8 bytes, so every other float32 is left out.
        entry["constants"].view(dtype)[:: 8 // dtype.itemsize] = change.constants
        grad, known = change.grad, self._described[at]
        # Entries of the same arrays are kept; copies and `Rows`, whose arrays change, are described in every step.
        if known and all(a is b for a, b in zip(known, (change.data, grad, *change.state), strict=True)):
            return change.data, known[1]
        device, given = self._device, grad.values if isinstance(grad, Rows) else grad
        data, lines = to_lines(change.data), to_lines(given.astype(dtype, copy=False))
        describe_gradient(entry, lines, device)
        entry["data"], entry["data_step"], entry["rows"] = device.address(data.array), data.step, ALL
        for name, array in zip(("first", "second"), change.state, strict=True):
            entry[name] = 0 if array is None else device.address(array)
        if isinstance(grad, Rows):
            entry["rows"], entry["n_ids"] = _which_rows(change, lazy), grad.ids.size
            entry["size"] = data.width * (grad.ids.size if entry["rows"] == GIVEN else data.n_rows)
        if isinstance(grad, Rows) or data.step != data.width:
            entry["width"] = data.width
        is_same = data.array is change.data and lines.array is grad
        self._described[at] = (change.data, grad, *change.state) if is_same else ()
        return data.array, lines.array

    def _send(self, grads: Sequence[Any]) -> int:
        """Start to upload the entries and the ids of sparse gradients; return the address of the entries."""
        ids = [(at, grad.ids) for at, grad in enumerate(grads) if isinstance(grad, Rows)]
        first = N_WORDS * len(grads)
        words, address = borrow(self._staging, first + sum(own.size for _, own in ids))
        for at, own in ids:
            # Ids follow the entries in the upload; entries are copied last, as they hold the addresses of ids.
            self._entries[at]["ids"] = address + 8 * first
            words[first : first + own.size] = own
            first += own.size
        words[: N_WORDS * len(grads)] = self._entries.view(np.int64)
        self._staging.send(0, words.nbytes)
        return address


def _which_rows(change: Change, lazy: bool) -> int:
    if lazy:
        return GIVEN
    is_plain = change.state[0] is None
    # Without state, decay and momentum, the rule leaves rows without a gradient as they are.
    return GIVEN if is_plain and not changes_all(change.constants) else SPARSE


Squares: TypeAlias = Callable[[], NDArray[Any]]
N_CLIPPING = 7  # words of `Clipping` in `kernels.cuh`


class DeviceClipping:
    """Clips gradients on a device, in memory that is reused."""

    def __init__(self, device: Device) -> None:
        self._device, self._staging = device, Staging(device)
        self._sums = device.empty(0, np.dtype(np.float64))
        self._n_done = device.put(np.zeros(1, np.int64))

    def clip(self, numbers: Mapping[str, FloatArray], max_norm: float, finite: Any) -> Squares:
        """Scale device arrays to a common norm of at most `max_norm`; see `autobatch.optim.clip`.

        Args:
            finite: an array of one bool to set to False if the norm is not finite, or None.

        Returns:
            A function that waits for the sums of squares, one per array, and returns them.
        """
        device, n = self._device, len(numbers)
        entries, lines = np.zeros(n, ENTRY), {name: to_lines(array) for name, array in numbers.items()}
        for entry, one in zip(entries, lines.values(), strict=True):
            describe_gradient(entry, one, device)
        n_pieces = count_pieces(entries)
        if n_pieces == 0:
            return lambda: np.zeros(n)
        if self._sums.size < n + n_pieces:
            self._sums = device.empty((n + n_pieces) * 5 // 4, np.dtype(np.float64))
        words, address = borrow(self._staging, n * N_WORDS + N_CLIPPING)
        squares, clipping = device.address(self._sums), n * N_WORDS
        words[:clipping] = entries.view(np.int64)
        flag = 0 if finite is None else device.address(finite)
        words[clipping:] = address, n, 0, squares + 8 * n, squares, device.address(self._n_done), flag
        words[clipping + 2 : clipping + 3].view(np.float64)[0] = max_norm  # as bits in a word
        self._staging.send(0, words.nbytes)
        launch(device, "measure", n_pieces, address + 8 * clipping)
        if max_norm < math.inf:
            launch(device, "scale", n_pieces, address + 8 * clipping)
        for name, one in lines.items():
            if one.array is not numbers[name]:
                numbers[name][...] = one.array
        return device.copy_out(self._sums[:n])
