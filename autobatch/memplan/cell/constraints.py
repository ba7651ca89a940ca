"""Turn inner batches and joins into constraints on the order of items in memory, and choose greedily which are met.

The result of a batch, and each operand, should be one view of memory. Its pattern is

- `same` if all members have the same value: no constraint;
- `full` if all values are different: they are consecutive, in one order for all operands of the batch.

An operand with other repetitions cannot be a view in any order.

The operands and joins whose constraints are met become views of memory; the others are copied or read in place.

Joins and the runs of products are added to PQ-trees, one per area of memory. In most cells all of them fit. If not,
they are added one by one: joins first, because other runs read them, then products by size, largest first. A run that
does not fit is copied. The runs of element-wise batches follow, as far as they fit beside the others and the work
budget of the cell lasts.

A search for the set of runs with the fewest copied bytes (hitting sets of conflicts) found nothing better in any cell
of the zoo, the models, the literature and 60 random programs. The search for orders in `aligned` pays: with only the
first order of each group of lines, 4% more products run in the zoo.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from autobatch.ir.program import Instruction
from autobatch.memplan.cell.aligned import AlignedOrders, Line, Work
from autobatch.memplan.cell.grouping import Batch, is_product
from autobatch.memplan.cell.memory import SHARED_VALUES, ProgramMemory

RESULT = -1  # the operand number of a result
EDGES_PER_NODE = 2  # an assumption for variadic ports, to weigh bytes
FLOAT_BYTES = 4
Pattern: TypeAlias = Literal["same", "full"]
Key: TypeAlias = tuple[Hashable, ...]


@dataclass(frozen=True)
class Run:
    """Values that should be consecutive: an operand or the result of a batch, or the parts of a join.

    Attributes:
        key: ("batch", first member, operand) or ("join", value).
        values: as the batch lists them.
        line: the constraint on orders that makes it a view; None if no order does.
        area: the area of the values.
        elements: elements moved per row of the area if the constraint is not met.
        copied: whether it is then copied. If not, it is read in place; only a backend that runs op by op copies it.
    """

    key: Key
    values: tuple[int, ...]
    line: Line | None
    area: str
    elements: int
    copied: bool

    def moved_bytes(self, rows: int) -> int:
        return FLOAT_BYTES * self.elements * n_rows(self.area, rows)


def n_rows(area: str, rows: int) -> int:
    """Return the rows of an area for a batch of `rows` nodes: one if shared, `EDGES_PER_NODE` per node for edges."""
    if area == SHARED_VALUES:
        return 1
    return rows if not area.startswith("edge") else EDGES_PER_NODE * rows


def pattern_of(values: Sequence[Hashable]) -> Pattern | None:
    """Return the pattern of an operand with these values; None if it cannot be a view.

    >>> pattern_of("xxxx"), pattern_of("abcd"), pattern_of("xxhh")
    ('same', 'full', None)
    """
    n_values = len(set(values))
    return "same" if n_values == 1 else "full" if n_values == len(values) else None


def operands_of(memory: ProgramMemory, batch: Batch) -> dict[int, tuple[int, ...]]:
    """Return the values of the result and of each operand of a batch, one per member, without literal numbers."""
    sources = [memory.program.vars[value].source for value in batch]
    arguments = [source.args for source in sources if isinstance(source, Instruction)]
    found = {RESULT: tuple(batch), **dict(enumerate(zip(*arguments, strict=True)))}
    # The operands of all members are alike (`signature`), so the first tells whether they have memory.
    return {number: values for number, values in found.items() if memory.span(values[0])}


def batch_runs(memory: ProgramMemory, batch: Batch, copied_joins: frozenset[int] = frozenset()) -> list[Run]:
    """Return the runs of a batch, except operands that are the same for all members."""
    runs = []
    for operand, values in operands_of(memory, batch).items():
        pattern = pattern_of([memory.reads[v] for v in values])
        if pattern != "same":
            spans = tuple(memory.span(v, copied_joins) for v in values)
            line = None if pattern is None else Line(batch[0], spans)
            runs.append(_make_run(memory, ("batch", batch[0], operand), values, line, is_product(memory, batch)))
    return runs


def join_run(memory: ProgramMemory, value: int, copied_joins: frozenset[int] = frozenset()) -> Run:
    """Return the run of a join's parts, in the order of the program."""
    spans = (memory.span(part, copied_joins) for part in memory.joins[value])
    line = Line(None, tuple(span for span in spans if span))  # empty parts have no items
    return _make_run(memory, ("join", value), memory.joins[value], line, copied=True)


def _make_run(memory: ProgramMemory, key: Key, values: tuple[int, ...], line: Line | None, copied: bool) -> Run:
    elements = sum(memory.program.vars[v].size for v in values)
    return Run(key, values, line, memory.area_of(memory.reads[values[0]].value), elements, copied)


ROWS = 32  # nodes per batch, to weigh bytes
MAX_WORK = 20_000  # of a cell, see `Work`: about 50 ms


@dataclass(eq=False)
class Fit:
    """Runs that are views simultaneously, and the orders that make them so.

    Attributes:
        orders: the orders of the items of each area.
        kept: the runs that are views.
        dropped: the runs that are not.
        untried: those among `dropped` that were not tried, for lack of work budget.
    """

    orders: AlignedOrders
    kept: dict[Key, Run] = field(default_factory=dict)
    dropped: dict[Key, Run] = field(default_factory=dict)
    untried: set[Key] = field(default_factory=set)

    def copied_joins(self, memory: ProgramMemory) -> frozenset[int]:
        """Return the joins that are copied to memory of their own."""
        return frozenset(value for value in memory.joins if ("join", value) in self.dropped)

    def add(self, run: Run) -> None:
        """Keep a run if it fits beside those kept already; otherwise drop it."""
        fits = run.line is not None and self.orders.add([run.line])
        (self.kept if fits else self.dropped)[run.key] = run


def fit_runs(memory: ProgramMemory, batches: Sequence[Batch], rows: int = ROWS, work: Work | None = None) -> Fit:
    """Choose which joins and runs of batches are views.

    Args:
        memory: the values of the cell.
        batches: any of its inner batches.
        rows: nodes per batch, to weigh shared values against values per node.
        work: a budget; once it is used up, the runs of element-wise batches are dropped untried. Unlimited by default.
    """
    products = [batch for batch in batches if is_product(memory, batch)]
    fit = _fit_copied(memory, products, rows, work)
    copied_joins = fit.copied_joins(memory)
    for batch in _by_size(memory, set(batches).difference(products)):
        for run in _by_bytes(batch_runs(memory, batch, copied_joins), rows):
            if run.line is not None and work is not None and work.is_used_up:
                fit.dropped[run.key] = run
                fit.untried.add(run.key)
            else:
                fit.add(run)
    return fit


def starting_orders(memory: ProgramMemory, work: Work | None = None) -> AlignedOrders:
    """Return all orders of a cell's items in which each value is in one piece."""
    orders = AlignedOrders(memory.areas.values(), work)
    orders.add(memory.fixed_lines())
    return orders


def _fit_copied(memory: ProgramMemory, products: Sequence[Batch], rows: int, work: Work | None) -> Fit:
    """Fit joins and the runs of products: all at once, or one by one."""
    fit = Fit(starting_orders(memory, work))
    runs = [join_run(memory, value) for value in memory.joins]
    runs += [run for batch in products for run in batch_runs(memory, batch)]
    if fit.orders.add(run.line for run in runs if run.line is not None):
        fit.kept = {run.key: run for run in runs if run.line is not None}
        fit.dropped = {run.key: run for run in runs if run.line is None}
        return fit
    # Joins are in program order: the span of a join depends on whether the joins inside it are copied.
    for value in memory.joins:
        fit.add(join_run(memory, value, fit.copied_joins(memory)))
    copied_joins = fit.copied_joins(memory)
    for batch in _by_size(memory, products):
        for run in _by_bytes(batch_runs(memory, batch, copied_joins), rows):
            fit.add(run)
    return fit


def _by_size(memory: ProgramMemory, batches: Iterable[Batch]) -> list[Batch]:
    return sorted(batches, key=lambda batch: (-sum(memory.program.vars[v].size for v in batch), batch))


def _by_bytes(runs: list[Run], rows: int) -> list[Run]:
    return sorted(runs, key=lambda run: -run.moved_bytes(rows))
