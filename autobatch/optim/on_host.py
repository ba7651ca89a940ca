"""Optimizer steps on the host: one native pass over each parameter, its state and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch._native import update_dense, update_rows
from autobatch.optim.change import Change, Lines, Placed, to_lines
from autobatch.params.parameter import FloatArray
from autobatch.params.sparse_rows import Rows


@dataclass
class Job:
    """The memory that passes over a parameter read and write, cached between steps.

    Attributes:
        placed: the arrays that this job was prepared for.
        data, grad: the parameter and the gradient as lines.
        flat, flat_grad: their memory from the first number to the last, as flat arrays.
        state: the state arrays, flat.
        touched: whether each row ever had a gradient; None until a gradient is `Rows`.
    """

    placed: Placed
    data: Lines
    flat: FloatArray
    state: tuple[FloatArray | None, FloatArray | None]
    grad: Lines | None = None
    flat_grad: FloatArray | None = None
    touched: NDArray[np.bool_] | None = None


class HostUpdates:
    """`autobatch.optim.change.Updates` on the host, without allocation after the first step."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []

    def run(self, changes: Sequence[Change], lazy: bool, finite: Any) -> None:
        assert finite is None, "the host checks losses before it computes gradients"
        if len(changes) != len(self._jobs):
            self._jobs = [_prepare(change) for change in changes]
        for at, change in enumerate(changes):
            job = self._jobs[at]
            if not _is_for(job, change):
                job = self._jobs[at] = _prepare(change)
            if isinstance(change.grad, Rows):
                self._change_rows(job, change.grad, change, lazy)
            else:
                _change_all(job, change.grad, change)
            if job.data.array is not change.data:
                change.data[...] = job.data.array

    def _change_rows(self, job: Job, grad: Rows, change: Change, lazy: bool) -> None:
        _, n_rows, width, step = job.data
        if job.touched is None:
            job.touched = _touched_rows(change, n_rows, width)  # found from the state, because it is not stored
        ids, values = np.asarray(grad.ids, np.int64), np.asarray(grad.values, change.data.dtype, order="C").reshape(-1)
        rows = n_rows, width, step
        update_rows(rows, job.flat, *job.state, ids, values, job.touched, change.constants, lazy)


def _change_all(job: Job, grad: FloatArray, change: Change) -> None:
    if job.touched is not None:
        job.touched.fill(True)  # a dense gradient reaches every row
    if job.grad is None or job.grad.array is not grad:
        job.grad = _readable(np.asarray(grad, change.data.dtype))
        job.flat_grad = _flat(job.grad)
    assert job.flat_grad is not None
    update_dense(job.data[1:], job.flat, *job.state, job.flat_grad, job.grad.step, change.constants)


def _prepare(change: Change) -> Job:
    data = _readable(change.data)
    first, second = (None if array is None else array.reshape(-1) for array in change.state)
    return Job(Placed(change.data, change.state), data, _flat(data), (first, second))


def _is_for(job: Job, change: Change) -> bool:
    """Return whether a job is for this parameter and state; always False for data that needs a copy."""
    first, second = job.placed.state
    return job.data.array is change.data and first is change.state[0] and second is change.state[1]


def _readable(array: FloatArray) -> Lines:
    """Convert an array to writable, aligned lines, with a copy only if necessary."""
    return to_lines(array if array.flags.writeable and array.flags.aligned else array.copy())


def _flat(lines: Lines) -> FloatArray:
    """Return the memory of lines, from the first number to the last, as a flat view."""
    array, n_rows, width, step = lines
    if array.flags.c_contiguous:
        return array.reshape(-1)
    return np.lib.stride_tricks.as_strided(array, ((n_rows - 1) * step + width,), (array.itemsize,))


def _touched_rows(change: Change, n_rows: int, width: int) -> NDArray[np.bool_]:
    """Return whether each row ever had a gradient, bool (n_rows,): whether its state is not all zero."""
    touched = np.zeros(n_rows, bool)
    for array in change.state:
        if array is not None:
            touched |= array.reshape(n_rows, width).any(axis=1)
    return touched
