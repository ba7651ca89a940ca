"""What inner batches and joins want of the orders of items.

A batch is laid out on a *grid*: its members in rows (index i) and columns (index j), one after the other. Its result,
and each operand, should be a view of memory along that grid. That holds for an operand which is

- the same for all members (one input, many weights): nothing is wanted;
- different for all (`full`): all consecutive, each row of the grid too;
- different per row only (`row`) or per column only (`column`): these values consecutive.

The wanted order is the same for all operands of a batch. A single row needs no grid: operands are equal or all
different. An operand that repeats in any other way is copied whatever the order.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from autobatch.ir.program import Instruction
from autobatch.memplan.cell.aligned import Line
from autobatch.memplan.cell.inner import HARD_OPS
from autobatch.memplan.cell.memory import SHARED_VALUES, Item, Memory

RESULT = -1  # the operand number of a result
EDGES_PER_NODE = 2  # at a variadic port, when bytes are weighed
FLOAT_BYTES = 4
Pattern: TypeAlias = Literal["same", "full", "row", "column"]


class Grid(NamedTuple):
    """A row and a column for each member of a batch, in the order in which the batch lists them.

    `tied` says that columns mean something: the members of a column share an operand. If not, each row may have its
    own order.
    """

    row: tuple[int, ...]
    column: tuple[int, ...]
    tied: bool = False


@dataclass(frozen=True)
class Run:
    """Values that should lie one after the other: an operand or the result of a batch, or the parts of a join.

    Attributes:
        key: ("batch", first member, operand) or ("join", value).
        values: the different ones, as the batch lists them.
        lines: what it wants of the orders; None if no order makes it a view.
        area: where the values lie.
        elements: what is moved, per row of the area, where it does not get it.
        hard: whether it is then copied; if not, it is read in place, and only an op-by-op backend would copy.
    """

    key: tuple[Hashable, ...]
    values: tuple[int, ...]
    lines: tuple[Line, ...] | None
    area: str
    elements: int
    hard: bool

    def moved_bytes(self, rows: int) -> int:
        """Bytes to be copied for a batch of this many nodes."""
        return FLOAT_BYTES * self.elements * n_rows(self.area, rows)


def n_rows(area: str, rows: int) -> int:
    """The rows of an area when a batch of `rows` nodes runs: one of what they share, some per node of edges."""
    if area == SHARED_VALUES:
        return 1
    return rows if not area.startswith("edge") else EDGES_PER_NODE * rows


def make_grids(operands: Sequence[Sequence[Hashable]], tiled: bool = False) -> list[Grid]:
    """All grids that suit some operand: a single row, and one whose rows each share one of its values.

    Args:
        operands: per operand, one hashable value for each member.
        tiled: also give a grid whose columns, and not rows, share a value where nothing says what its rows share:
            the first members with each value are the first row, and so on.

    >>> for grid in make_grids(["xxhh", "abcd"]):
    ...     print(grid.row, grid.column, grid.tied)
    (0, 0, 0, 0) (0, 1, 2, 3) False
    (0, 0, 1, 1) (0, 1, 0, 1) False
    >>> make_grids(["xyxy", "ccdd"])[1]
    Grid(row=(0, 1, 0, 1), column=(0, 0, 1, 1), tied=True)
    """
    n = len(operands[0])
    numbered = [tuple(_numbered(values)) for values in operands]
    grids = {Grid((0,) * n, tuple(range(n))): None}
    for row in numbered:
        if not _is_even(row):
            continue
        columns = [other for other in numbered if _crosses(row, other)]
        for column in columns:
            grids[Grid(row, column, tied=True)] = None
        if not columns:
            times = tuple(row[:k].count(row[k]) for k in range(n))
            grids[Grid(row, times)] = None
            grids |= {Grid(times, row, tied=True): None} if tiled else {}
    return list(grids)


def pattern_of(grid: Grid, values: Sequence[Hashable]) -> Pattern | None:
    """How an operand can be a view along a grid; None if it cannot.

    >>> grid = make_grids(["xxhh", "abcd"])[1]
    >>> pattern_of(grid, "xxhh"), pattern_of(grid, "abcd"), pattern_of(grid, "vvvv"), pattern_of(grid, "xhxh")
    ('row', 'full', 'same', None)
    """
    n_values = len(set(values))
    if n_values == 1:
        return "same"
    if n_values == len(values):
        return "full"
    if _is_function(grid.row, values) and n_values == len(set(grid.row)):
        return "row"
    if grid.tied and _is_function(grid.column, values) and n_values == len(set(grid.column)):
        return "column"
    return None


def make_lines(name: Hashable, grid: Grid, pattern: Pattern, spans: Sequence[tuple[Item, ...]]) -> tuple[Line, ...]:
    """What a view along a grid wants of the orders of the values' spans, one for each member."""
    rows: dict[int, dict[int, tuple[Item, ...]]] = {}
    for row, column, span in zip(grid.row, grid.column, spans, strict=True):
        rows.setdefault(row, {})[column] = span
    across = [tuple(of_row[j] for j in sorted(of_row)) for _, of_row in sorted(rows.items())]
    if pattern == "same":
        return ()
    if pattern == "row":
        return (Line((name, "row"), tuple(of_row[0] for of_row in across)),)
    if pattern == "column":
        return (Line((name, "column"), across[0]),)
    orders = [(name, "column") if grid.tied else (name, "column", i) for i in range(len(across))]
    lines = [Line(order, of_row) for order, of_row in zip(orders, across, strict=True)]
    if len(across) > 1:
        lines.append(Line((name, "row"), tuple(tuple(item for span in of_row for item in span) for of_row in across)))
    return tuple(lines)


def operands_of(memory: Memory, batch: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """The values of the result and of each operand of a batch, one for each member; numbers are no operands."""
    sources = [memory.program.vars[value].source for value in batch]
    arguments = [source.args for source in sources if isinstance(source, Instruction)]
    found = {RESULT: tuple(batch), **dict(enumerate(zip(*arguments, strict=True)))}
    return {number: values for number, values in found.items() if memory.span(values[0])}


def batch_runs(memory: Memory, batch: Sequence[int], grid: Grid, apart: frozenset[int] = frozenset()) -> list[Run]:
    """The runs of a batch on a grid, without operands that are the same for all members."""
    runs = []
    for operand, values in operands_of(memory, batch).items():
        pattern = pattern_of(grid, [memory.reads[v] for v in values])
        if pattern == "same":
            continue
        moved = values if pattern is None else tuple({memory.reads[v]: v for v in values}.values())
        spans = [memory.span(v, apart) for v in values]
        lines = None if pattern is None else make_lines(batch[0], grid, pattern, spans)
        runs.append(_make_run(memory, ("batch", batch[0], operand), moved, lines, is_hard(memory, batch)))
    return runs


def join_run(memory: Memory, value: int, apart: frozenset[int] = frozenset()) -> Run:
    """The run of a join's parts, in the order of the program."""
    spans = (memory.span(part, apart) for part in memory.joins[value])
    line = Line(None, tuple(span for span in spans if span))
    return _make_run(memory, ("join", value), memory.joins[value], (line,), hard=True)


def is_hard(memory: Memory, batch: Sequence[int]) -> bool:
    """Whether the op of a batch wants its operands as blocks: a matrix product."""
    source = memory.program.vars[batch[0]].source
    return isinstance(source, Instruction) and source.op in HARD_OPS


def _make_run(
    memory: Memory, key: tuple[Hashable, ...], values: tuple[int, ...], lines: tuple[Line, ...] | None, hard: bool
) -> Run:
    elements = sum(memory.program.vars[v].size for v in values)
    return Run(key, values, lines, memory.area_of(memory.reads[values[0]].value), elements, hard)


def _numbered(values: Sequence[Hashable]) -> list[int]:
    """Equal values as equal numbers, in order of appearance."""
    number: dict[Hashable, int] = {}
    return [number.setdefault(value, len(number)) for value in values]


def _is_even(row: Sequence[int]) -> bool:
    """Whether each of several rows has the same number of members, more than one."""
    sizes = {row.count(i) for i in row}
    return len(sizes) == 1 and 1 < min(sizes) < len(row)


def _crosses(row: Sequence[int], other: Sequence[int]) -> bool:
    """Whether every value of `other` is once in each row."""
    return len(set(zip(row, other, strict=True))) == len(row) == len(set(row)) * len(set(other))


def _is_function(of: Sequence[int], values: Sequence[Hashable]) -> bool:
    """Whether members with equal `of` have equal values."""
    return len(set(zip(of, values, strict=True))) == len(set(of))
