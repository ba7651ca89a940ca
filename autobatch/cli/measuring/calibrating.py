"""Measure what batches cost on a backend of this machine: a launch, a row, and how many rows take no longer than one.

A schedule of some mini-batch is cut into batches of at most 1, 2, 4, ... rows; each is run forward and backward, and
the time of every batch is read from a profile. The cost model is fitted to typical times per type and number of rows.
Gradients of weights are left out, because they are computed once per type, whatever the schedule.

On a GPU a profile reads a clock inside the one launch that runs all batches (`autobatch.backends.cuda`), so a batch
costs what it costs there: barriers, latency, and rows once they fill the device, but no launch of its own. Least
squares over the times of whole launches would need no clock in the kernel, but could not tell types apart: trees have
as many leaves as inner nodes and one more, however many they are.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from autobatch import policies
from autobatch.backends.base import Backend
from autobatch.cli.workload import Workload, record
from autobatch.graph.graph import Graph
from autobatch.inspect.profiling import Profile
from autobatch.jit.arrays import FloatArray
from autobatch.plan.plan import PlannedCell
from autobatch.policies.cost import MeasuredCosts, TypeCost
from autobatch.schedule.schedule import Schedule

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096)  # rows
MIN_INSTANCES, MAX_INSTANCES = 8, 256
REPEATS = 3
MIN_LAPS = 3  # of a type and a number of rows, for their times to count
OUTLIERS = 0.1  # the share of times, at either end, that is left out of a mean
SIMPLER = 1.1  # a fit with fewer efficient rows may be so many times worse


class Chopped:
    """The schedule of `score`, with its batches cut into batches of at most `n_rows` rows."""

    name = "chopped"

    def __init__(self, n_rows: int) -> None:
        self.n_rows = n_rows
        self._policy = policies.get("score")

    def schedule(self, graph: Graph) -> Schedule:
        """Schedule, and cut."""
        whole = self._policy.schedule(graph)
        kinds, ends = [], [0]
        for kind, first, end in zip(whole.batch_type, whole.batch_ptr, whole.batch_ptr[1:], strict=False):
            cuts = [*range(first + self.n_rows, end, self.n_rows), int(end)]
            kinds += [kind] * len(cuts)
            ends += cuts
        return Schedule(np.array(kinds, np.int32), np.array(ends, np.int32), whole.order)


class Laps:
    """How long batches took.

    Attributes:
        us: microseconds, by stage, type and number of rows.
    """

    def __init__(self) -> None:
        self.us: dict[tuple[str, int, int], list[float]] = defaultdict(list)

    def add(self, profile: Profile) -> None:
        """Take in the batches of all calls of a profile."""
        for call in profile.calls:
            for span in call.batches:
                self.us[span.stage, span.kind, span.rows].append(1e3 * span.ms)

    def kinds(self) -> list[int]:
        """List the types that ran."""
        return sorted({kind for _, kind, _ in self.us})

    def typical(self, kind: int) -> tuple[FloatArray, FloatArray]:
        """List the numbers of rows that a type ran with often enough, each with microseconds, forward plus backward."""
        sizes = sorted(
            n for way, k, n in self.us if (way, k) == ("forward", kind) and len(self.us[way, k, n]) >= MIN_LAPS
        )
        sizes = sizes or [n for way, k, n in self.us if (way, k) == ("forward", kind)]
        us = [sum(trimmed_mean(self.us[way, kind, n]) for way in ("forward", "backward")) for n in sizes]
        return np.array(sizes, np.float64), np.array(us)


def trimmed_mean(times: Sequence[float]) -> float:
    """Average times without the smallest and the largest.

    A median would be one of the times, and the clock of a GPU may move in steps of a microsecond; a mean is between.

    >>> trimmed_mean([3.0, 4.0, 4.0, 3.0, 3.0, 90.0])
    3.5
    """
    n_left_out = math.ceil(OUTLIERS * len(times)) if len(times) > 2 else 0
    return float(np.mean(np.sort(times)[n_left_out : len(times) - n_left_out]))


def count_elements(cell: PlannedCell) -> int:
    """Count what a row holds in training: inputs and their gradients, and saved values, with an edge for each group."""
    return 2 * sum(cell.layout.input_width) + sum(cell.layout.saved_width)


def calibrate(
    workload: Workload,
    backend: str | Backend,
    sizes: Sequence[int] = SIZES,
    advance: Callable[[str], None] = lambda what: None,
) -> MeasuredCosts:
    """Measure the types of a model in training.

    A type that never runs, because rewriting folds all its nodes into others, costs the median of the other types.

    Args:
        workload: the model and its data.
        backend: what runs it.
        sizes: the most rows of a batch, one number after the other.
        advance: called after each of the `len(sizes) * REPEATS` runs.

    Raises:
        DataError: there are fewer than `MIN_INSTANCES` instances.
        BackendError: the backend cannot run here.
    """
    loss = workload.batched("loss", "score", backend)
    laps = Laps()
    n_instances = max(MIN_INSTANCES, min(MAX_INSTANCES, max(sizes), len(workload.dataset.items)))
    graphs = record(loss, workload.first(n_instances))
    loss.value_and_grad(graphs)
    for n_rows in sizes:
        loss.policy = Chopped(n_rows)
        with loss.profile(n_calls=REPEATS) as profile:
            for _ in range(REPEATS):
                loss.value_and_grad(graphs[: max(MIN_INSTANCES, n_rows)])
                advance(f"batches of {n_rows} rows")
        laps.add(profile)
    types, itemsize = loss.last.graph.types, workload.model.dtype.itemsize
    cells = loss.prepare(graphs, training=True).cells.cells
    fits = {kind: fit_cost(*laps.typical(kind)) for kind in laps.kinds()}
    typical = np.median([*fits.values()], axis=0).tolist()
    costs = []
    for kind, (name, outline) in enumerate(zip(types.names, types.outlines, strict=True)):
        launch_us, row_us, efficient_rows = fits.get(kind, typical)
        row_bytes = count_elements(cells[kind]) * itemsize
        costs.append(TypeCost(name, outline, launch_us, row_us, efficient_rows, float(row_bytes)))
    return MeasuredCosts(loss.backend.name, workload.dim, "train", tuple(costs))


def fit_cost(rows: FloatArray, us: FloatArray) -> tuple[float, float, float]:
    """Fit launch + row * max(rows, efficient) to times, by least squares of relative errors; no number is negative.

    Of numbers of efficient rows that fit about as well, the smallest.

    >>> rows = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    >>> fit_cost(rows, 20 + 3 * np.maximum(rows, 4.0))
    (20.0, 3.0, 4.0)
    """
    fits = []
    for efficient in rows:
        padded = np.maximum(rows, efficient)
        columns = np.stack([np.ones_like(rows), padded], axis=1) / us[:, None]
        (launch, row), *_ = np.linalg.lstsq(columns, np.ones_like(us))
        if row < 0 or not np.ptp(padded):
            launch, row = 1 / np.mean(1 / us), 0.0
        elif launch < 0:
            launch, row = 0.0, float((columns[:, 1].sum()) / (columns[:, 1] ** 2).sum())
        error = float(((columns @ [launch, row] - 1) ** 2).mean())
        fits.append((error, float(efficient), float(launch), float(row)))
    least = min(fits)[0]
    _, efficient, launch, row = min((f for f in fits if f[0] <= SIMPLER * least + 1e-12), key=lambda f: f[1])
    return round(launch, 3), round(row, 4), efficient
