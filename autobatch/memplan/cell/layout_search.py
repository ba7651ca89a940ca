"""Which runs of a cell can be views at once, and what has to be dropped: fewest bytes first.

The runs of hard batches, and joins, are put into PQ-trees, one per area of memory. Where they do not fit, a minimal set
of runs that conflict is found, and dropping each of its members is tried, fewest dropped bytes first (hitting sets,
best first): so the bytes dropped are the fewest, unless a limit is met. Then the runs of soft batches are added,
largest first, as far as they fit beside the others, until what the search may cost is used up.
Source: Reiter 1987, A theory of diagnosis from first principles, Artificial Intelligence 32, for the hitting sets.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import TypeAlias

from autobatch.memplan.cell.aligned import AlignedOrders, Work
from autobatch.memplan.cell.constraints import Grid, Run, batch_runs, join_run, make_grids, operands_of
from autobatch.memplan.cell.memory import SHARED_VALUES, Memory

MAX_EFFORT = 3_000  # runs added to orders, for a cell; beyond, only the cheapest set of dropped runs is followed
MAX_GRIDS = 64  # choices of grids for the hard batches of a cell
MAX_WORK = 400_000  # of a cell, see `Work`: about a second

Key: TypeAlias = tuple[Hashable, ...]
Batch: TypeAlias = tuple[int, ...]


@dataclass
class Effort:
    """What a search may still cost, and whether a limit was met.

    Attributes:
        left: runs added to orders, before it follows only the cheapest set of dropped runs.
        work: of all orders, before no more soft runs are tried.
        gave_up: whether there may be better.
    """

    left: int = MAX_EFFORT
    work: Work = field(default_factory=lambda: Work(MAX_WORK))
    gave_up: bool = False


@dataclass(frozen=True, eq=False)
class Fit:
    """Runs that are views at once, and the orders that make them so.

    Attributes:
        orders: of the items of each area of the memory, in its order of areas.
        grids: of each batch, by its first member.
        kept: the runs that are views.
        dropped: the runs that are not, with the keys of those that they conflict with: () if no order serves a run at
            all, None if that was not asked.
        moved: the bytes of the hard runs dropped.
        untried: the soft runs among `dropped` that nobody tried to keep.
    """

    orders: AlignedOrders
    grids: dict[int, Grid]
    kept: dict[Key, Run]
    dropped: dict[Key, tuple[Run, tuple[Key, ...] | None]]
    moved: int
    untried: frozenset[Key] = frozenset()

    @property
    def n_copies(self) -> int:
        """The hard runs dropped, without those of parameters, which are copied once per step and not per batch."""
        return sum(run.hard and run.area != SHARED_VALUES for run, _ in self.dropped.values())


def fit_hard(memory: Memory, batches: Sequence[Batch], rows: int, effort: Effort) -> Fit:
    """Fit joins and the runs of hard batches; choose grids and runs to drop so that the fewest bytes are moved.

    Args:
        memory: of the cell.
        batches: the hard ones.
        rows: nodes of a batch, to weigh what they share against what each has.
        effort: what the search may cost; it is used up. If no limit was met, no other grids and orders move fewer
            bytes.
    """
    choices = [_grids(memory, batch) for batch in batches]
    combinations = list(islice(product(*choices), MAX_GRIDS + 1))
    effort.gave_up |= len(combinations) > MAX_GRIDS
    systems = [_System(memory, batches, grids, rows, effort) for grids in combinations[:MAX_GRIDS]]
    best: Fit | None = None
    for system in sorted(systems, key=lambda s: s.least):
        if best is None or system.least < best.moved:
            fit = system.fit(best.moved if best is not None else None)
            best = fit if fit is not None else best
    assert best is not None
    return best


def fit_soft(memory: Memory, fit: Fit, batches: Sequence[Batch], rows: int, effort: Effort) -> Fit:
    """Add the runs of soft batches, those of many bytes first, as far as they fit beside what is kept.

    Args:
        memory: of the cell.
        fit: of its hard runs.
        batches: the soft ones.
        rows: nodes of a batch.
        effort: its work is used up; what is left to be tried then is dropped.
    """
    apart = _apart(memory, fit.kept)
    orders, grids, kept, dropped = fit.orders.copy(effort.work), {**fit.grids}, {**fit.kept}, {**fit.dropped}
    untried: set[Key] = set()
    size = {batch: sum(memory.program.vars[v].size for v in batch) for batch in batches}
    for batch in sorted(batches, key=lambda batch: (-size[batch], batch)):
        options = _grids(memory, batch, tiled=True)[: 1 if effort.work.is_used_up else None]
        tried = [_add_soft(orders, batch_runs(memory, batch, grid, apart), rows, effort.work) for grid in options]
        at = min(range(len(tried)), key=lambda k: sum(run.moved_bytes(rows) for run in tried[k][2]))
        orders, fitting, others, late = tried[at]
        grids[batch[0]] = options[at]
        kept |= {run.key: run for run in fitting}
        dropped |= {run.key: (run, None) for run in others}
        untried |= late
    return replace(fit, orders=orders, grids=grids, kept=kept, dropped=dropped, untried=frozenset(untried))


def with_reasons(memory: Memory, fit: Fit, effort: Effort) -> Fit:
    """The same fit, with what each soft run that was dropped conflicts with, as far as the effort allows."""
    dropped = {**fit.dropped}
    for key, (run, _) in fit.dropped.items():
        if not run.hard and run.lines is not None and key not in fit.untried and effort.left > 0:
            _, conflict = find_conflict(memory, {**fit.kept, key: run}, effort)
            dropped[key] = (run, tuple(other for other in conflict if other != key))
    return replace(fit, dropped=dropped)


def _add_soft(
    orders: AlignedOrders, runs: Sequence[Run], rows: int, work: Work
) -> tuple[AlignedOrders, list[Run], list[Run], set[Key]]:
    """Add runs to a copy of the orders; those that fit, those that do not, and which of these were not tried."""
    trial = orders.copy()
    fitting: list[Run] = []
    others: list[Run] = []
    untried: set[Key] = set()
    for run in sorted(runs, key=lambda run: -run.moved_bytes(rows)):
        if run.lines is not None and work.is_used_up:
            untried.add(run.key)
        fits = run.lines is not None and not work.is_used_up and trial.add(run.lines)
        (fitting if fits else others).append(run)
    return trial, fitting, others, untried


def _grids(memory: Memory, batch: Batch, tiled: bool = False) -> list[Grid]:
    """Grids for a batch; first those with a row per input, each of which then meets one stack of weights."""
    operands = [[memory.reads[v] for v in values] for values in operands_of(memory, batch).values()]
    operands.sort(key=lambda reads: memory.area_of(reads[0].value) == SHARED_VALUES)
    return make_grids(operands or [batch], tiled)


def _apart(memory: Memory, kept: Mapping[Key, Run]) -> frozenset[int]:
    """The joins that are not kept, and so are copied to memory of their own."""
    return frozenset(value for value in memory.joins if ("join", value) not in kept)


@dataclass(eq=False)
class _System:
    """The hard runs of a cell with a grid for each batch."""

    memory: Memory
    batches: Sequence[Batch]
    grids: Sequence[Grid]
    rows: int
    effort: Effort
    _conflicts: list[tuple[frozenset[int], tuple[Key, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._bytes = {key: run.moved_bytes(self.rows) for key, run in self._runs(frozenset()).items()}
        self._hopeless = {key: () for key, run in self._runs(frozenset()).items() if run.lines is None}
        self.least = sum(self._bytes[key] for key in self._hopeless)

    def fit(self, below: int | None) -> Fit | None:
        """The fit that drops the fewest bytes, if these are fewer than `below`."""
        heap: list[tuple[int, int, dict[Key, tuple[Key, ...]]]] = [(self.least, 0, dict(self._hopeless))]
        seen: set[frozenset[Key]] = set()
        n_made = 0
        while heap:
            moved, _, dropped = heapq.heappop(heap)
            if below is not None and moved >= below:
                return None
            if frozenset(dropped) in seen:
                continue
            seen.add(frozenset(dropped))
            if self.effort.left <= 0:
                self.effort.gave_up = True
                heap.clear()
            apart = frozenset(value for value in self.memory.joins if ("join", value) in dropped)
            runs = self._runs(apart)
            kept = {key: run for key, run in runs.items() if key not in dropped}
            conflict = self._known_conflict(apart, kept)
            if conflict is None:
                orders, conflict = find_conflict(self.memory, kept, self.effort)
                if not conflict:
                    reasons: dict[Key, tuple[Run, tuple[Key, ...] | None]] = {}
                    reasons |= {key: (runs[key], others) for key, others in dropped.items()}
                    grids = {batch[0]: grid for batch, grid in zip(self.batches, self.grids, strict=True)}
                    return Fit(orders, grids, kept, reasons, moved)
                self._conflicts.append((apart, conflict))
            for key in conflict:
                n_made += 1
                others = tuple(other for other in conflict if other != key)
                heapq.heappush(heap, (moved + self._bytes[key], n_made, {**dropped, key: others}))
        return None

    def _runs(self, apart: frozenset[int]) -> dict[Key, Run]:
        """All runs, joins first: they are what others read."""
        runs = [join_run(self.memory, value, apart) for value in self.memory.joins]
        for batch, grid in zip(self.batches, self.grids, strict=True):
            runs += batch_runs(self.memory, batch, grid, apart)
        return {run.key: run for run in runs}

    def _known_conflict(self, apart: frozenset[int], kept: Mapping[Key, Run]) -> tuple[Key, ...] | None:
        """A conflict met before, among the same spans, none of whose members is dropped."""
        return next((found for at, found in self._conflicts if at == apart and all(k in kept for k in found)), None)


def find_conflict(memory: Memory, runs: Mapping[Key, Run], effort: Effort) -> tuple[AlignedOrders, tuple[Key, ...]]:
    """Orders that keep all runs, or a minimal set of runs that none keeps; found as by `PQTree.conflict`."""
    core = AlignedOrders(memory.areas.values(), effort.work)
    core.add(memory.fixed_lines())
    trial = core.copy()
    if trial.add(line for run in runs.values() for line in run.lines or ()):
        return trial, ()
    candidates = list(runs)
    conflict: list[Key] = []
    while True:
        trial = core.copy()
        effort.left -= len(candidates)
        refused = next((at for at, key in enumerate(candidates) if not trial.add(runs[key].lines or ())), None)
        effort.gave_up |= trial.gave_up
        if refused is None:
            return trial, tuple(conflict)
        conflict.insert(0, candidates[refused])
        if not core.add(runs[candidates[refused]].lines or ()):
            effort.gave_up |= core.gave_up
            return core, tuple(conflict)
        del candidates[refused:]
