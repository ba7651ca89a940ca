"""The rows of a batch, and the values of its nodes during a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from autobatch.devices.store import Store
from autobatch.ir.layout import Layout
from autobatch.ir.program import NODE, SHARED, Instruction, Var
from autobatch.ops.randomness import Randomness
from autobatch.ops.variadic import Segments
from autobatch.plan.plan import Batch, Plan

Array: TypeAlias = Any  # an array of the device, or of NumPy
Env: TypeAlias = dict[int, Any]


class Frame:
    """A run of a stage of a cell over some rows.

    Attributes:
        env: the values known so far, `(rows, *shape)`.
        targets: the places of the values that have one.
        wholes: the memory of joins.
    """

    def __init__(self, rows: RowRange, layout: Layout, vars: tuple[Var, ...], env: Env, targets: Env) -> None:
        self.rows, self.layout, self.vars, self.env, self.targets = rows, layout, vars, env, targets
        self.wholes: Env = {}

    def n_rows(self, domain: int) -> int:
        """The number of rows of a value of this domain."""
        return 1 if domain == SHARED else self.rows.count(domain)


class RowRange:
    """The rows of a batch, or all rows of a type."""

    def __init__(self, plan: Plan, batch: Batch, store: Store) -> None:
        self.plan, (self.kind, self.start, self.end, self.bases), self.store = plan, batch, store
        self.n = self.end - self.start
        self.block = plan.first_block(self.kind)

    def of(self, domain: int) -> tuple[int, int]:
        """First and end row in the block of a domain."""
        if domain == NODE:
            return self.start, self.end
        ptr = self.plan.segments_of(self.kind, domain)
        return int(ptr[self.start]), int(ptr[self.end])

    def count(self, domain: int) -> int:
        """The number of rows in the block of a domain."""
        start, end = self.of(domain)
        return end - start

    def segments(self, domain: int) -> Segments:
        """The edges of each node."""
        ptr = self.plan.segments_of(self.kind, domain)[self.start : self.end + 1]
        return Segments(ptr - ptr[0], self.store.put)

    def _rows_of_argument(self, var: Var) -> Segments:
        """The edges of each node; of a value of the node, or one that all share, as many as its first axis is long."""
        if var.domain >= 0:
            return self.segments(var.domain)
        return Segments(np.arange(self.n + 1) * var.shape[0], self.store.put)

    def select(self, per_node: Array, domain: int) -> Array:
        """The numbers of the rows of a domain whose nodes have `per_node` set."""
        if domain != NODE:
            ptr = self.plan.segments_of(self.kind, domain)[self.start : self.end + 1]
            per_node = np.repeat(per_node, np.diff(ptr))
        return self.store.put(np.flatnonzero(per_node))

    def randomness(self, source: Randomness, owner: Any) -> Randomness:
        """The randomness for the nodes in these rows, keyed by their instances, as the caller numbers them.

        Args:
            source: the randomness of the mini-batch.
            owner: the module whose mode turns dropout on or off; None to take it from `source`.
        """
        first = self.plan.type_ptr[self.kind]
        nodes = self.plan.node_at[first + self.start : first + self.end]
        keys = np.broadcast_to(source.key, self.plan.graph.n_instances)[
            np.searchsorted(self.plan.graph.instance_ptr, nodes, side="right") - 1
        ]
        training = source.training if owner is None else owner.training
        return Randomness(source.seed, source.step, self.store.put(keys), training)

    def static(self, vars: Sequence[Var], index: int, source: Randomness, owner: Any) -> dict[str, Any]:
        """The static arguments of an instruction, with the edges or the randomness of these rows if its op needs them.

        Args:
            vars: the values of the cell.
            index: of the value that the instruction computes.
            source, owner: as for `randomness`.
        """
        instruction = vars[index].source
        assert isinstance(instruction, Instruction)
        op, static = instruction.op, dict(instruction.static)
        if op.segments == "move":
            static["segments"] = tuple(self._rows_of_argument(vars[arg]) for arg in instruction.args)
        elif op.segments is not None:
            static["segments"] = self.segments(vars[instruction.args[1 if op.segments == "spread" else 0]].domain)
        if op.random:
            static["random"] = self.randomness(source, owner)
            if vars[index].domain >= 0:
                static["random"].edges = self.segments(vars[index].domain)
        return static

    def destinations(self, number: int) -> tuple[Array, Array, Array]:
        """Pointers to the destinations of each row of an output; the destinations; whether each is added to."""
        first, end = self.plan.output_rows(self.kind, number, self.start, self.end)
        ptr = self.plan.dest_ptr[first : end + 1]
        return ptr, self.plan.dest[ptr[0] : ptr[-1]], self.plan.adds[ptr[0] : ptr[-1]]


def constant_row(data: Any, dtype: np.dtype[Any]) -> Any:
    """A constant as a single row, on the host; ints stay ints, because they may be ids; Python's numbers stay those."""
    if isinstance(data, (int, float)) and not isinstance(data, np.generic):
        return data
    return (data if data.dtype.kind in "iu" else data.astype(dtype, copy=False))[None]
