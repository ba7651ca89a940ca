"""Predict a training step of several processes from measured costs.

    divide ─▶ compute a share each: fixed + per_work · work ─▶ wait for the slowest ─▶ exchange ─▶ optimizer

If there are more processes than cores, they share the cores evenly. Every process divides the whole mini-batch,
exchanges the same number of bytes, and takes the same step of the optimizer; only the shares differ. `Measured` is an
exchange on one machine, with costs fitted for a number of processes; `Network` is an exchange over an assumed network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Costs:
    """Costs of a model on one core: seconds, and bytes that are exchanged."""

    fixed_s: float
    """Seconds per share, whatever it contains."""
    per_work_s: float
    """Seconds per multiply-add of predicted work, everything included: planning, forward, backward."""
    optimizer_s: float
    divide_s: float
    """Seconds per instance of the mini-batch, in every process."""
    noise: float
    """The standard deviation of the logarithm of a share's time."""
    dense_bytes: float
    """Bytes of gradients that are arrays."""
    row_bytes: tuple[float, float]
    """(a, b): the rows of tables that n instances change take a·n^b bytes, ids included."""
    table_bytes: float
    """Bytes of the tables, an upper limit for their rows."""

    def compute_s(self, work: FloatArray) -> FloatArray:
        """Return the seconds of shares, each alone on a core; 0 for a share without work."""
        return np.where(work > 0, self.fixed_s + self.per_work_s * work, 0.0)

    def rows_of(self, n_instances: float) -> float:
        """Return the bytes of the rows that a number of instances change."""
        factor, power = self.row_bytes
        return min(factor * n_instances**power, self.table_bytes) if n_instances > 0 else 0.0


class Carrier(Protocol):
    """The transport of gradients."""

    def seconds(self, n: int, dense_bytes: float, row_bytes: float) -> dict[str, float]:
        """Return the seconds of an exchange among n processes, by part; `row_bytes` are those of one process."""


@dataclass(frozen=True)
class Measured:
    """An exchange on one machine, fitted for one number of processes."""

    fixed_s: float
    per_dense_byte_s: float
    per_row_byte_s: float

    def seconds(self, n: int, dense_bytes: float, row_bytes: float) -> dict[str, float]:
        """See `Carrier`; one process exchanges nothing."""
        if n == 1:
            return {"messages": 0.0, "arrays": 0.0, "rows": 0.0}
        arrays, rows = self.per_dense_byte_s * dense_bytes, self.per_row_byte_s * row_bytes
        return {"messages": self.fixed_s, "arrays": arrays, "rows": rows}


@dataclass(frozen=True)
class Network:
    """Processes on separate machines: arrays go around a ring, and each process sends its rows to all others."""

    bytes_per_s: float
    latency_s: float
    merge_s: float
    """Seconds per byte for adding rows of any process to the sum."""
    head_bytes: float = 536.0
    """Bytes that each process sends before the gradients."""

    def seconds(self, n: int, dense_bytes: float, row_bytes: float) -> dict[str, float]:
        """See `Carrier`.

        >>> Network(1e9, 0.0, 0.0, 0.0).seconds(2, 1e9, 1e9)
        {'messages': 0.0, 'arrays': 1.0, 'rows': 1.0, 'merging rows': 0.0}
        """
        latency = self.latency_s * math.log2(n)
        rows = latency + (n - 1) * row_bytes / self.bytes_per_s if row_bytes else 0.0
        merged = self.merge_s * n * row_bytes if n > 1 else 0.0
        return {
            "messages": latency + (n - 1) * self.head_bytes / self.bytes_per_s,
            "arrays": latency + 2 * (n - 1) / n * dense_bytes / self.bytes_per_s,
            "rows": rows, "merging rows": merged,
        }  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """The machine that the processes run on."""

    cores: float
    """The cores of all processes together; each process uses at most one."""
    slowed: float = 1.0
    """Times while the other processes compute too, relative to a process alone."""


def step_parts(
    costs: Costs,
    work: Sequence[float] | FloatArray,
    n_instances: int,
    carrier: Carrier,
    machine: Machine,
    factors: Sequence[float] | FloatArray | float = 1.0,
) -> dict[str, float]:
    """Predict the parts of a step in seconds; their sum is the step.

    Args:
        work: the work of each process's share.
        n_instances: the size of the mini-batch.
        factors: the relative slowness of each process.
    """
    alone = costs.compute_s(np.asarray(work, np.float64)) * np.asarray(factors) * machine.slowed
    n = len(alone)
    end, mean = float(finish_times(alone, machine.cores).max()), float(alone.mean()) * max(1.0, n / machine.cores)
    each = machine.slowed * max(1.0, n / machine.cores)
    exchanged = carrier.seconds(n, costs.dense_bytes, costs.rows_of(n_instances / n))
    return {
        "divide": costs.divide_s * n_instances * each,
        "compute": min(mean, end),
        "wait": max(end - mean, 0.0),
        **exchanged,
        "optimizer": costs.optimizer_s * each,
    }


def finish_times(seconds: Sequence[float] | FloatArray, cores: float) -> FloatArray:
    """Return when processes end that start together and share cores evenly, at most one each.

    >>> finish_times([1.0, 3.0, 2.0], 1)
    array([3., 6., 5.])
    >>> finish_times([1.0, 3.0, 2.0], 4)
    array([1., 3., 2.])
    """
    needs = np.asarray(seconds, np.float64)
    found, order = np.empty(len(needs)), np.argsort(needs, kind="stable")
    now = done = 0.0
    for k, process in enumerate(order.tolist()):
        now += (needs[process] - done) * max(1.0, (len(needs) - k) / cores)
        done = needs[process]
        found[process] = now
    return found


def fit_line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Fit y = a + b·x with non-negative a and b, minimizing the sum of squared relative errors.

    >>> [round(float(one), 6) for one in fit_line([1.0, 2.0, 4.0], [3.0, 5.0, 9.0])]
    [1.0, 2.0]
    """
    a, b = fit([[1.0, one] for one in x], y)
    return a, b


def fit(rows: Sequence[Sequence[float]], y: Sequence[float]) -> list[float]:
    """Fit y = Σ c·row with non-negative c, minimizing the sum of squared relative errors."""
    from scipy.optimize import nnls

    values = np.asarray(y, np.float64)
    columns = np.asarray(rows, np.float64) / values[:, None]
    scale = np.abs(columns).max(axis=0)
    found, _ = nnls(columns / scale, np.ones(len(values)))
    return [float(one) for one in found / scale]


def fit_power(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Fit y = a·x^b; return (0, 1) if any y is 0.

    >>> [round(float(one), 6) for one in fit_power([1.0, 2.0, 4.0], [3.0, 6.0, 12.0])]
    [3.0, 1.0]
    """
    if min(y) <= 0:
        return 0.0, 1.0
    power, factor = np.polyfit(np.log(x), np.log(y), 1)
    return float(np.exp(factor)), float(power)


def spread_by_speed(costs: FloatArray, speeds: FloatArray) -> FloatArray:
    """Return the loads of processes with given speeds, if each instance goes to the process that would finish it first.

    >>> spread_by_speed(np.ones(6), np.array([2.0, 1.0]))
    array([4., 2.])
    """
    busy = [(0.0, process) for process in range(len(speeds))]
    heapify(busy)
    loads = np.zeros(len(speeds))
    for cost in np.sort(costs)[::-1].tolist():
        _, process = busy[0]
        loads[process] += cost
        heapreplace(busy, (loads[process] / speeds[process], process))
    return loads
