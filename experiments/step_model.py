"""A model of a training step of several processes, made of measured costs.

    divide ─▶ compute a share each: fixed + per_work · work ─▶ wait for the slowest ─▶ exchange ─▶ optimizer

Processes beyond the cores share these evenly. Every process divides the whole mini-batch, exchanges as many bytes as
the others, and takes the same step of the optimizer; only the shares differ. `Measured` is an exchange on one machine,
whose costs were fitted at a number of processes; `Network` one over a network that is only assumed.
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
    """What a model costs on one core: seconds, and bytes that are exchanged."""

    fixed_s: float
    """Of a share, whatever is in it."""
    per_work_s: float
    """Of a multiply-add of predicted work, all that it takes included: planning, forward, backward."""
    optimizer_s: float
    divide_s: float
    """Of an instance of the mini-batch, in every process."""
    noise: float
    """The standard deviation of the logarithm of the time of one share."""
    dense_bytes: float
    """Of gradients that are arrays."""
    row_bytes: tuple[float, float]
    """The rows of tables that n instances change are a·n^b bytes, ids included."""
    table_bytes: float
    """Of the tables; rows are no more."""

    def compute_s(self, work: FloatArray) -> FloatArray:
        """Seconds of shares of some work, each alone on a core; none where there is no work."""
        return np.where(work > 0, self.fixed_s + self.per_work_s * work, 0.0)

    def rows_of(self, n_instances: float) -> float:
        """Bytes of the rows that so many instances change."""
        factor, power = self.row_bytes
        return min(factor * n_instances**power, self.table_bytes) if n_instances > 0 else 0.0


class Carrier(Protocol):
    """What gradients travel over."""

    def seconds(self, n: int, dense_bytes: float, row_bytes: float) -> dict[str, float]:
        """Seconds of an exchange among n processes, by part; `row_bytes` are those that one process has."""


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
    """Processes of machines of their own: arrays go around a ring, rows of every process go to every other one."""

    bytes_per_s: float
    latency_s: float
    merge_s: float
    """Of a byte of rows, from any process, that is added to those of the others."""
    head_bytes: float = 536.0
    """What each process says before the gradients."""

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
    """Where the processes run."""

    cores: float
    """Of all processes together; each has at most one."""
    slowed: float = 1.0
    """Times of a core while the others compute too, over that of a core alone."""


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
        work: of each process's share.
        n_instances: of the mini-batch.
        factors: how much longer each process takes than it should.
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
    """When processes end that begin together and share cores evenly, at most one each.

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
    """Fit y = a + b·x, neither negative, with the least sum of squares of relative errors.

    >>> [round(float(one), 6) for one in fit_line([1.0, 2.0, 4.0], [3.0, 5.0, 9.0])]
    [1.0, 2.0]
    """
    a, b = fit([[1.0, one] for one in x], y)
    return a, b


def fit(rows: Sequence[Sequence[float]], y: Sequence[float]) -> list[float]:
    """Fit y = Σ c·row, no c negative, with the least sum of squares of relative errors."""
    from scipy.optimize import nnls

    values = np.asarray(y, np.float64)
    columns = np.asarray(rows, np.float64) / values[:, None]
    scale = np.abs(columns).max(axis=0)
    found, _ = nnls(columns / scale, np.ones(len(values)))
    return [float(one) for one in found / scale]


def fit_power(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Fit y = a·x^b; 0 where y is.

    >>> [round(float(one), 6) for one in fit_power([1.0, 2.0, 4.0], [3.0, 6.0, 12.0])]
    [3.0, 1.0]
    """
    if min(y) <= 0:
        return 0.0, 1.0
    power, factor = np.polyfit(np.log(x), np.log(y), 1)
    return float(np.exp(factor)), float(power)


def spread_by_speed(costs: FloatArray, speeds: FloatArray) -> FloatArray:
    """Loads of processes of some speeds, where each instance goes to the one that would end first with it.

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
