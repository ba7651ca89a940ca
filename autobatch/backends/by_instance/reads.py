"""Find the types that contribute to the gradient of a parameter, and their temporary memory, before anything runs.

Instances are processed in chunks of bounded size, so that there are few calls of array functions, and temporary memory
does not grow with the number of instances.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from autobatch.arrays import LongArray
from autobatch.backends.options import ByInstance
from autobatch.backends.segments import AT_ONCE, InstanceRows, round_up
from autobatch.ir.derivative import Derivative, ScatteredRows
from autobatch.ir.program import NODE, SHARED, Instruction
from autobatch.params.parameter import Parameter
from autobatch.params.rectangles import Rectangle
from autobatch.params.stacks import Stack, parts_of
from autobatch.plan.plan import Plan, PlannedTypes

INTS = 4  # the memory of the int64s for a row of a table, in floats

CountsOf: TypeAlias = Callable[[int, int], LongArray]
"""A function that counts the rows of each instance, given a type and a domain."""


@dataclass(frozen=True, eq=False)
class Source:
    """A type that contributes to the gradient of a parameter.

    Attributes:
        derivative: the derivative of the type.
        gradient: the value that holds the contribution, a single row; None if the contribution is scattered rows.
        scatters: the rows that are added to the rows of a table.
        where: the part of the contribution that belongs to the parameter, if the type reads it in a stack.
    """

    type_id: int
    derivative: Derivative
    gradient: int | None
    scatters: tuple[ScatteredRows, ...]
    where: Rectangle | None = None

    @cached_property
    def factors(self) -> tuple[int, int] | None:
        """Return the operands of a contribution that is a sum of products, else None; see `Derivative.factors`."""
        return None if self.gradient is None else self.derivative.factors(self.gradient)

    @cached_property
    def stage(self) -> list[int]:
        """Return the instructions with a row per instance on which the contribution depends, in order."""
        roots = () if self.gradient is None else (self.gradient,)
        return [index for index in self.derivative.needed(roots) if index in self.derivative.by_segment]

    def domain(self, *values: int) -> int:
        """Return the domain of the rows of some operands; if several are groups, these have equally many rows."""
        return max(NODE, *(self.derivative.vars[value].domain for value in values))

    def n_products(self, counts_of: CountsOf) -> LongArray:
        """Count the products that are summed for each instance; the contribution must be a sum of products."""
        assert self.factors is not None
        inner = prod(self.derivative.vars[self.factors[0]].shape[1:])
        return inner * round_up(counts_of(self.type_id, self.domain(*self.factors)))

    def need(self, counts_of: CountsOf) -> LongArray:
        """Return the size of the temporary arrays for adding the contribution, in numbers per instance."""
        vars, found = self.derivative.vars, np.zeros_like(counts_of(self.type_id, NODE))
        for values, ids in self.scatters:
            per_row = 2 * vars[values].size + INTS * max(vars[ids].size, 1)
            found += counts_of(self.type_id, self.domain(values)) * per_row
        for index in self.stage:
            source = vars[index].source
            assert isinstance(source, Instruction)
            found += vars[index].size * (3 if self.factors is None else 1)
            if source.op.sums_rows:
                per_row = sum(vars[arg].size for arg in source.args if vars[arg].domain != SHARED)
                if source.op.name == "row_sum_matmul" and self.derivative.factors(index) is None:
                    per_row += vars[index].size  # the products are stored before they are added up
                found += round_up(counts_of(self.type_id, self.domain(*source.args))) * per_row
        return found


class Read(NamedTuple):
    """A parameter and all contributions to its gradient.

    Attributes:
        parameter: the parameter; or a stack, whose gradient contains those of several parameters.
        sources: the types that contribute.
    """

    parameter: Parameter
    sources: list[Source]

    @property
    def is_product(self) -> bool:
        """Return whether the gradient is a sum of products of rows."""
        return all(source.factors is not None for source in self.sources)

    @property
    def is_table(self) -> bool:
        """Return whether all contributions are scattered rows."""
        return all(source.gradient is None for source in self.sources)

    def need_of_norm(self, counts_of: CountsOf) -> LongArray:
        """Return the size of the temporary arrays for computing the norm, in numbers per instance."""
        size, need = prod(self.parameter.shape), np.array([source.need(counts_of) for source in self.sources])
        found: LongArray
        if self.is_table:
            found = need.sum(axis=0)
        elif not self.is_product:
            found = need.max(axis=0) + size
        else:
            m, *others = self.parameter.shape
            k = prod(others)
            rows = np.sum([source.n_products(counts_of) for source in self.sources], axis=0)
            found = (1 + (len(self.sources) > 1)) * rows * (m + k)
            found += np.where(by_rows(rows, m, k), 2 * rows * rows, size)
        return found


def by_rows(n: Any, m: int, k: int) -> Any:
    """Return whether to compute the norm of a sum of n products, an m by k matrix, from products of the n rows."""
    return n * (m + k) < m * k


def bytes_by_instance(plan: Plan, cells: PlannedTypes, asked: ByInstance, dtype: np.dtype[Any]) -> int:
    """Return the bytes that a run needs besides its values: for the results of the call, and temporary arrays."""

    @cache
    def counts_of(type_id: int, domain: int) -> LongArray:
        return InstanceRows(plan, type_id, domain).counts

    most = 0
    for read in reads_of(derivatives_of(plan, cells), asked.parameters, joined=asked.clips):
        needs = [read.need_of_norm(counts_of)] if asked.clips else [source.need(counts_of) for source in read.sources]
        # A chunk takes at most AT_ONCE numbers, or what its single instance needs.
        most = max(most, *(min(int(need.sum()), max(int(need.max(initial=0)), AT_ONCE)) for need in needs))
    return asked.result_bytes + most * dtype.itemsize


def derivatives_of(plan: Plan, cells: PlannedTypes) -> dict[int, Derivative]:
    """Return the derivatives of the types that have nodes in the mini-batch."""
    present = np.flatnonzero(np.diff(plan.type_ptr)).tolist()
    found = {type_id: cells.cells[type_id].derivative for type_id in present}
    return {type_id: derivative for type_id, derivative in found.items() if derivative is not None}


def reads_of(derivatives: dict[int, Derivative], wanted: Collection[int], joined: bool) -> list[Read]:
    """Find the sources of the gradients of parameters, in no particular order.

    Args:
        derivatives: the derivatives of the types.
        wanted: the `id`s of the parameters.
        joined: whether to return a stack in place of its parts if all parts are wanted and none is read elsewhere.
    """
    whole: dict[int, Read] = {}
    readers: dict[int, set[int]] = defaultdict(set)  # for each part, the `id`s of the stacks or parameters that hold it
    for type_id, derivative in derivatives.items():
        found = [(p, Source(type_id, derivative, g, ())) for p, g in derivative.parameters]
        found += [(p, Source(type_id, derivative, None, scatters)) for p, scatters in derivative.tables]
        for index, source in found:
            parameter = derivative.parameter(index)
            whole.setdefault(id(parameter), Read(parameter, [])).sources.append(source)
            for part in parts_of(parameter):
                readers[id(part)].add(id(parameter))
    reads: dict[int, Read] = {}
    for key, (parameter, sources) in whole.items():
        parts = parts_of(parameter)
        if joined and all(id(part) in wanted and len(readers[id(part)]) == 1 for part in parts):
            reads[key] = Read(parameter, sources)
            continue
        places = parameter.rectangles if isinstance(parameter, Stack) else (None,)
        for part, where in zip(parts, places, strict=True):
            if id(part) in wanted:
                read = reads.setdefault(id(part), Read(part, []))
                read.sources.extend(replace(source, where=where) for source in sources)
    return list(reads.values())
