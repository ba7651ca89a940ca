"""Choose greedily which operands and joins of a cell become views of memory; the others are copied or read in place.

Joins and the runs of products are added to PQ-trees, one per area of memory. In most cells all of them fit. If not,
they are added one by one: joins first, because other runs read them, then products by size, largest first. A run that
does not fit is copied. The runs of element-wise batches follow, as far as they fit beside the others and the work
budget of the cell lasts.

A search for the set of runs with the fewest copied bytes (hitting sets of conflicts) found nothing better in any cell
of the zoo, the models, the literature and 60 random programs. The search for orders in `aligned` pays: with only the
first order of each group of lines, 4% more products run in the zoo.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from autobatch.memplan.cell.aligned import AlignedOrders, Work
from autobatch.memplan.cell.constraints import Key, Run, batch_runs, join_run
from autobatch.memplan.cell.grouping import Batch, is_product
from autobatch.memplan.cell.memory import ProgramMemory

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
