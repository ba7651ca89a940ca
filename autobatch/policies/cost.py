"""Predict the time of a batch: a launch, plus its rows, with a minimum of rows below which it gets no faster.

Where launches dominate, the number of batches is the right quantity to minimise. Elsewhere a batch of type a with n
rows is predicted to take launch[a] + row[a] * max(n, efficient[a]) microseconds. `autobatch doctor --calibrate`
measures these numbers for the types of a model on a backend, and keeps them in the user's cache
(`autobatch.policies.store`). Those of one backend say nothing about another: each finds its own, or none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.errors import PolicyError
from autobatch.jit.arrays import IntArray
from autobatch.jit.loops import compiled
from autobatch.policies.store import find_entry, keep_entry, sign
from autobatch.schedule.schedule import Schedule
from autobatch.system.cache import UNREADABLE
from autobatch.system.files import write_whole

FORMAT = "autobatch costs"
LAUNCH, ROW, EFFICIENT = range(3)  # the rows of an array of costs


@dataclass(frozen=True, eq=False)
class CostModel:
    """Predicted time of batches, by type.

    Args:
        launch_us: float[T], microseconds of a launch, independent of its rows.
        row_us: float[T], microseconds of a row.
        efficient_rows: float[T], a batch with fewer rows takes as long as with this many.

    Raises:
        PolicyError: lengths differ, or a number is negative or not finite.

    >>> costs = CostModel([5.0, 5.0], [1.0, 2.0], [1.0, 4.0])
    >>> costs.batch_us(0, 3), costs.batch_us(1, 3)
    (8.0, 13.0)
    """

    launch_us: NDArray[np.float64]
    row_us: NDArray[np.float64]
    efficient_rows: NDArray[np.float64]

    def __post_init__(self) -> None:
        for name in ("launch_us", "row_us", "efficient_rows"):
            numbers = np.asarray(getattr(self, name), np.float64)
            if numbers.shape != np.shape(self.launch_us) or not np.isfinite(numbers).all() or (numbers < 0).any():
                raise PolicyError(f"making a cost model: {name}={numbers} must hold a number of at least 0 per type.")
            object.__setattr__(self, name, numbers)

    @classmethod
    def counting(cls, n_types: int, batch_us: float = 1.0) -> CostModel:
        """Make the model in which every batch costs the same, so that costs count batches."""
        return cls(np.full(n_types, batch_us), np.zeros(n_types), np.zeros(n_types))

    def array(self) -> NDArray[np.float64]:
        """Give float64[3, T] for compiled loops."""
        return np.stack([self.launch_us, self.row_us, self.efficient_rows])

    def batch_us(self, kind: int, n_rows: int) -> float:
        """Predict the time of one batch, in microseconds."""
        return float(batch_cost(self.array(), kind, n_rows))

    def schedule_us(self, schedule: Schedule) -> float:
        """Predict the time of a schedule, in microseconds."""
        rows = np.maximum(np.diff(schedule.batch_ptr), self.efficient_rows[schedule.batch_type])
        return float((self.launch_us[schedule.batch_type] + self.row_us[schedule.batch_type] * rows).sum())

    def least_us(self, lengths: IntArray, counts: NDArray[np.integer[Any]]) -> float:
        """Predict a time that no schedule of a graph goes below: the chain bound, in time.

        Args:
            lengths: int[T], per type, the most nodes of that type on any one path.
            counts: int[T], per type, all its nodes.

        A type needs a batch for each node of its longest path, and rows for all of its nodes.

        >>> costs = CostModel([5.0, 5.0], [1.0, 2.0], [1.0, 4.0])
        >>> costs.least_us(np.array([2, 1]), np.array([6, 3]))
        29.0
        """
        rows = np.maximum(counts, self.efficient_rows * lengths)
        return float((self.launch_us * lengths + self.row_us * rows).sum())


@dataclass(frozen=True)
class TypeCost:
    """The measured cost of one type.

    Attributes:
        name, outline: of the type.
        launch_us, row_us, efficient_rows: see `CostModel`.
        row_bytes: bytes of inputs and saved values, per row.
    """

    name: str
    outline: str
    launch_us: float
    row_us: float
    efficient_rows: float
    row_bytes: float


@dataclass(frozen=True)
class MeasuredCosts:
    """Measured costs of a model's types on one machine, one backend, and at one width.

    Attributes:
        backend: its name. Costs that were measured on another one are not found for it.
        dim: the width of the model's states.
        mode: "train", forward and backward together, or "infer".
        types: those of the model.

    Raises:
        PolicyError: there are no types.
    """

    backend: str
    dim: int
    mode: str
    types: tuple[TypeCost, ...]

    def __post_init__(self) -> None:
        if not self.types:
            raise PolicyError("making measured costs: no types; give those of a model.")

    def of(self, outlines: Sequence[str]) -> CostModel:
        """Give the costs of types, by outline; a type that was not measured gets the median of the others.

        >>> measured = MeasuredCosts("reference", 8, "train", (TypeCost("a", "a(value)", 9.0, 0.5, 1.0, 32.0),))
        >>> measured.of(["b(value)", "a(value)"]).batch_us(1, 4)
        11.0
        """
        known = {t.outline: (t.launch_us, t.row_us, t.efficient_rows) for t in self.types}
        typical = tuple(np.median([*known.values()], axis=0).tolist())
        columns = np.array([known.get(outline, typical) for outline in outlines], np.float64).reshape(-1, 3)
        return CostModel(*columns.T)

    def keep(self) -> Path | None:
        """Write the costs to the user's cache, for all models of these types on this backend; None if it cannot."""
        content = json.dumps({"format": FORMAT, **asdict(self)}, indent=1, allow_nan=False) + "\n"
        signature = _sign([t.outline for t in self.types], self.backend)
        return keep_entry("costs", signature, lambda path: write_whole(path, content.encode()))


def look_up_costs(outlines: Sequence[str], backend: str) -> MeasuredCosts | None:
    """Read the measured costs of a model on a backend from the user's cache; None if there are none."""
    return find_entry("costs", _sign(outlines, backend), load_costs)


def find_costs(outlines: Sequence[str], backend: str = "reference") -> MeasuredCosts:
    """Read the measured costs of a model on a backend from the user's cache.

    Raises:
        PolicyError: nothing was measured on this backend, or the file cannot be read.
    """
    found = look_up_costs(outlines, backend)
    if found is None:
        raise PolicyError(
            f"predicting times: nothing was measured on this machine for the types {', '.join(outlines)} on the "
            f"{backend} backend; run autobatch doctor --calibrate MODEL --backend {backend} first, or give costs=, a "
            f"CostModel."
        )
    return found


def _sign(outlines: Sequence[str], backend: str) -> str:
    """The key of costs; those of the reference backend have the one that all had when no other was measured."""
    return sign(outlines) if backend == "reference" else sign(outlines, backend)


def load_costs(path: Path) -> MeasuredCosts:
    """Read a file that `MeasuredCosts.keep` wrote.

    Raises:
        PolicyError: it is unreadable, truncated or not a file of costs.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("format", None) != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        types = tuple(TypeCost(**kind) for kind in content.pop("types"))
        measured = MeasuredCosts(**content, types=types)
        measured.of([kind.outline for kind in types])
    except (*UNREADABLE, PolicyError) as error:
        raise PolicyError(f"cannot load costs {str(path)!r}: {error}; measure them again.") from error
    return measured


@compiled
def batch_cost(costs: NDArray[np.float64], kind: int, n_rows: int) -> float:
    """Predict the time of one batch from the array of a `CostModel`."""
    return float(costs[LAUNCH, kind] + costs[ROW, kind] * max(float(n_rows), costs[EFFICIENT, kind]))
