"""Optimizer steps on a device: one small upload and one launch for all parameters, and the host does not wait.

The kernel in `kernels.cuh` is bit-identical to `native/run/optimizer.cpp`. Its entries are kept between steps; only the
constants and the rows of sparse gradients change. The kernel updates all rows where the host skips rows that never had
a gradient, because the rule does not change these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch._native import changes_all
from autobatch.devices.device import Device
from autobatch.devices.staging import Staging
from autobatch.optim.change import Change, to_lines
from autobatch.optim.entries import (
    ALL,
    ENTRY,
    GIVEN,
    N_WORDS,
    SPARSE,
    borrow,
    count_pieces,
    describe_gradient,
    launch,
    load_kernels,
)
from autobatch.params.parameter import FloatArray
from autobatch.params.sparse_rows import Rows


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
        entry["constants"].view(dtype)[:: 8 // dtype.itemsize] = change.constants
        grad, known = change.grad, self._described[at]
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
        words, address = borrow(self._staging, first + sum(own.size for _, own in ids), self._device)
        for at, own in ids:
            self._entries[at]["ids"] = address + 8 * first
            words[first : first + own.size] = own
            first += own.size
        words[: N_WORDS * len(grads)] = self._entries.view(np.int64)
        self._staging.send(0, words.nbytes)
        return address


def _which_rows(change: Change, lazy: bool) -> int:
    """Select the rows that a sparse gradient updates."""
    if lazy:
        return GIVEN
    is_plain = change.state[0] is None
    return GIVEN if is_plain and not changes_all(change.constants) else SPARSE
