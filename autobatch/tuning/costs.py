"""A small model of what a mini-batch takes, which says what is worth trying; measuring decides.

    seconds = a * (seconds of its products, by the speeds of this machine's libraries)
            + b * launches + c * elements written or moved

Speeds are the table that matrix products are chosen by (`autobatch.blas.choosing`), so small batches are slow in it as
they are here. a, b and c start from what was measured on one machine for each backend, and are fitted to all that is
measured here. Products are divided by the threads, and each pays for waking them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autobatch.ir.program import NODE, SHARED, Instruction, Var
from autobatch.plan.plan import Plan, PlannedCell, PlannedTypes

Speed: TypeAlias = Callable[[int, int, int], float]  # of products (m, k) by (k, n), in GFLOP/s on one thread
Rows: TypeAlias = Mapping[int, Sequence[int]]  # of a type's batches, by domain

STARTS = {"reference": (1.0, 1.5e-5, 1.8e-9), "cpu": (1.0, 5e-7, 3e-10)}  # a, b, c: python experiments/tuning.py
WAKE_S = 5e-6  # to wake the threads of a product, and to wait for them
TRUST = 0.05  # in the starting numbers, against that in one measurement
LEAST = 0.05  # of a starting number that fitting leaves
PRODUCTS = ("matmul", "affine")
OUTER = "row_sum_outer"


class Work(NamedTuple):
    """What a mini-batch has to do; does not depend on how fast the rest of the machine is.

    Attributes:
        product_s: seconds of its matrix products on one thread, by the table.
        products, launches: how many there are; launches of other steps.
        elements: written or moved by these.
    """

    product_s: float
    products: int
    launches: int
    elements: int

    def features(self, threads: int = 1) -> tuple[float, float, float]:
        """What a, b and c multiply."""
        waking = WAKE_S * self.products if threads > 1 else 0.0
        return self.product_s / threads + waking, float(self.products + self.launches), float(self.elements)


@dataclass(frozen=True)
class CostModel:
    """Seconds of mini-batches on one backend.

    Args:
        weights: a, b and c, see the module.

    >>> CostModel((1.0, 1e-6, 1e-9)).seconds(Work(0.002, 10, 90, 500_000), threads=2)
    0.00165
    """

    weights: tuple[float, float, float]

    @classmethod
    def of(cls, backend: str, measured: Iterable[tuple[Sequence[float], float]] = ()) -> CostModel:
        """Fit the model of a backend to pairs of features and seconds; relative errors count."""
        start = np.array(STARTS.get(backend, STARTS["reference"]))
        pairs = [(np.array(features) * start / seconds, 1.0) for features, seconds in measured if seconds > 0]
        pairs += [(np.sqrt(TRUST) * np.eye(3)[i], float(np.sqrt(TRUST))) for i in range(3)]
        left, right = np.array([row for row, _ in pairs]), np.array([value for _, value in pairs])
        scale: NDArray[np.float64] = np.linalg.lstsq(left, right, rcond=None)[0]
        a, b, c = (start * np.maximum(scale, LEAST)).tolist()
        return cls((a, b, c))

    def seconds(self, work: Work, threads: int = 1) -> float:
        """Predict the time of a mini-batch."""
        return float(sum(w * x for w, x in zip(self.weights, work.features(threads), strict=True)))


def measure_work(plan: Plan, cells: PlannedTypes, speed: Speed) -> Work:
    """Count what running a plan takes: forward, and in training backward and the gradients of parameters.

    Cost: linear in batches times instructions, in Python; a few milliseconds.
    """
    total = _Total(speed)
    batches: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for batch in plan.batches:
        rows, first = batches[batch.kind], plan.first_block(batch.kind)
        rows[NODE].append(batch.end - batch.start)
        rows[SHARED].append(1)
        for block in range(first + 1, int(plan.tables.block_ptr[batch.kind + 1])):
            ptr = plan.segment_ptr[block]
            rows[block - first - 1].append(int(ptr[batch.end] - ptr[batch.start]))
    for kind, rows in batches.items():
        cell, derivative = cells.cells[kind], cells.cells[kind].derivative
        total.add_stage(cell, cell.program.vars, cell.program.instructions, rows)
        if derivative is not None:
            total.add_stage(cell, derivative.vars, derivative.backward, rows)
            whole = {domain: [sum(counts)] for domain, counts in rows.items()} | {SHARED: [1]}
            total.add_stage(cell, derivative.vars, derivative.weights, whole)
        for number, output in enumerate(cell.program.outputs):
            base = plan.dest_base[plan.tables.out_ptr[kind] + number]
            moved = int(plan.dest_ptr[base + sum(rows[NODE])] - plan.dest_ptr[base])
            total.elements += moved * cell.program.vars[output].size * (1 if derivative is None else 2)
    return Work(total.product_s, total.products, total.launches, total.elements)


class _Total:
    """Adds up work."""

    def __init__(self, speed: Speed) -> None:
        self._speed = speed
        self.product_s = 0.0
        self.products = self.launches = self.elements = 0

    def add_stage(self, cell: PlannedCell, vars: Sequence[Var], indices: Iterable[int], rows: Rows) -> None:
        """Add the instructions of a stage, for batches with so many rows."""
        for index in indices:
            var = vars[index]
            source = var.source
            assert isinstance(source, Instruction), "stages run instructions"
            args = [vars[arg] for arg in source.args]
            matrices = [arg for arg in args if arg.domain == SHARED and len(arg.shape) == 2]
            if source.op.view:
                continue
            if index in cell.layout.joins:
                copied = sum(args[number].size for number in cell.layout.joins[index].copied)
                self._add_steps(copied, rows[var.domain] if copied else ())
            elif source.op.name == OUTER:
                for n_rows in rows[args[0].domain]:
                    self._add_product(args[0].size, args[1].size, n_rows)
            elif source.op.name in PRODUCTS and matrices and var.domain != SHARED:
                for n_rows in rows[var.domain]:
                    self._add_product(n_rows, var.size, max(1, matrices[0].size // max(1, var.size)))
            else:
                domains = [arg.domain for arg in args if arg.domain != SHARED] or [var.domain]
                size = max([var.size, *(arg.size for arg in args if arg.domain != SHARED)])
                self._add_steps(size, rows[var.domain if var.domain != SHARED else domains[0]])

    def _add_steps(self, size: int, rows: Sequence[int]) -> None:
        self.launches += len(rows)
        self.elements += size * sum(rows)

    def _add_product(self, m: int, n: int, k: int) -> None:
        if m and n and k:
            self.products += 1
            self.product_s += 2e-9 * m * n * k / self._speed(m, n, k)
