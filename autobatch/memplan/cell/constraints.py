"""Turn inner batches and joins into constraints on the order of items in memory.

The result of a batch, and each operand, should be one view of memory. Its pattern is

- `same` if all members have the same value: no constraint;
- `full` if all values are different: they are consecutive, in one order for all operands of the batch.

An operand with other repetitions cannot be a view in any order.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from autobatch.ir.program import Instruction
from autobatch.memplan.cell.aligned import Line
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
    line = Line(None, tuple(span for span in spans if span))
    return _make_run(memory, ("join", value), memory.joins[value], line, copied=True)


def _make_run(memory: ProgramMemory, key: Key, values: tuple[int, ...], line: Line | None, copied: bool) -> Run:
    elements = sum(memory.program.vars[v].size for v in values)
    return Run(key, values, line, memory.area_of(memory.reads[values[0]].value), elements, copied)
