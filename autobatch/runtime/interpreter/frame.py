"""The rows of a batch, and the values of its nodes while they are computed."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autobatch.ir.layout import Layout
from autobatch.ir.program import NODE, SHARED, Var
from autobatch.ops.variadic import Segments
from autobatch.params.rows import Gradient, Rows
from autobatch.plan.plan import Batch, Plan

Array: TypeAlias = NDArray[Any]
Env: TypeAlias = dict[int, Any]


class Frame:
    """A run of a stage of a cell over some rows.

    Attributes:
        env: the values that are known, `(rows, *shape)`.
        targets: where values that have a place go.
        wholes: the memory of joins.
    """

    def __init__(self, rows: RowRange, layout: Layout, vars: tuple[Var, ...], env: Env, targets: Env) -> None:
        self.rows, self.layout, self.vars, self.env, self.targets = rows, layout, vars, env, targets
        self.wholes: Env = {}

    def n_rows(self, domain: int) -> int:
        """Rows of a value of this domain."""
        return 1 if domain == SHARED else self.rows.count(domain)


class RowRange:
    """The rows of a batch, or all rows of a type."""

    def __init__(self, plan: Plan, batch: Batch) -> None:
        self.plan, (self.kind, self.start, self.end, self.bases) = plan, batch
        self.n = self.end - self.start
        self.block = plan.first_block(self.kind)

    def of(self, domain: int) -> tuple[int, int]:
        """First and end row in the block of a domain."""
        if domain == NODE:
            return self.start, self.end
        ptr = self.plan.segment_ptr[self.block + 1 + domain]
        return int(ptr[self.start]), int(ptr[self.end])

    def count(self, domain: int) -> int:
        """Rows in the block of a domain."""
        start, end = self.of(domain)
        return end - start

    def segments(self, domain: int) -> Segments:
        """The edges of each node."""
        ptr = self.plan.segment_ptr[self.block + 1 + domain][self.start : self.end + 1]
        return Segments(np, ptr - ptr[0])

    def spread(self, per_node: Array, domain: int) -> Array:
        """A flag per node as one per row of a domain."""
        return per_node if domain == NODE else per_node[self.segments(domain).rows]

    def destinations(self, number: int) -> tuple[Array, Array, Array]:
        """Pointers to the destinations of each row of an output, these, and whether it is added to what is there."""
        base = self.plan.dest_base[self.plan.tables.out_ptr[self.kind] + number]
        ptr = self.plan.dest_ptr[base + self.start : base + self.end + 1]
        return ptr, self.plan.dest[ptr[0] : ptr[-1]], self.plan.adds[ptr[0] : ptr[-1]]


def add_at(window: Array, places: Array, values: Array) -> None:
    """Add values to rows of `window`, which may come several times, in order."""
    while places.size:
        _, first = np.unique(places, return_index=True)
        window[places[first]] += values[first]
        places, values = np.delete(places, first), np.delete(values, first, axis=0)


def dense(gradient: Gradient) -> Array:
    """A gradient that is an array, as one whose parameter is not read by lookup alone must be."""
    assert not isinstance(gradient, Rows), "only the parameters in row_parameters have Rows"
    return gradient
