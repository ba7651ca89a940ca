"""Lay out a cell: decide which instructions run as one, the order of values in memory, and the copies.

Instructions are grouped (`grouping`), the groups become constraints on the order of items, and as many of these as
possible are met (`constraints`). Where an op needs blocks, an unmet constraint becomes an explicit copy with its
reason. An element-wise op reads its operands in place; only a backend that runs op by op copies them. This module only
decides; backends execute. Layouts are cached in memory; cells that differ only in parameters share one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

from autobatch.ir.program import Attribute, CellProgram, Constant, Instruction, Port, Var
from autobatch.keywords import checked
from autobatch.memplan.cell.aligned import Work
from autobatch.memplan.cell.constraints import (
    FLOAT_BYTES,
    MAX_WORK,
    RESULT,
    ROWS,
    Fit,
    Key,
    Pattern,
    Run,
    fit_runs,
    n_rows,
    operands_of,
    pattern_of,
    starting_orders,
)
from autobatch.memplan.cell.grouping import Batch, choose_batches, is_product, make_steps
from autobatch.memplan.cell.memory import SHARED_VALUES, Item, ProgramMemory, is_number, literal
from autobatch.ops.define import static_key

UNTRIED = "the search for orders ended before it was tried"


class Copy(NamedTuple):
    """Values that are copied, or read in place, because they do not lie as a batch or join requires.

    Attributes:
        what: the reader and its operand, as text.
        values: the values moved.
        area: the area of the values.
        elements: moved per row of the area.
        reason: the reason, as text.
    """

    what: str
    values: tuple[int, ...]
    area: str
    elements: int
    reason: str

    def moved_bytes(self, rows: int) -> int:
        """Return the bytes moved for a batch of this many nodes; for shared values, once per step."""
        return FLOAT_BYTES * self.elements * n_rows(self.area, rows)


class InnerBatch(NamedTuple):
    """Instructions that run as one.

    Attributes:
        values: the computed values, in the order of memory.
        is_product: whether its op needs blocks.
        views: the pattern of each operand (-1 is the result) that lies as the batch requires; a product copies the
            others, and other ops read them in place.
    """

    values: tuple[int, ...]
    is_product: bool
    views: dict[int, Pattern]


@dataclass(frozen=True, eq=False)
class CellLayout:
    """A cell laid out.

    Attributes:
        memory: its values.
        batches: in an order in which they can run.
        areas: the items of each area, in order: columns of nodes and edges, rows of stacked parameters.
        joins: the concats that are views.
        copies: the copies for products and concats.
        apart: the operands of other batches that are not adjacent, and are read in place.
        work: the search effort spent, see `Work`.
    """

    memory: ProgramMemory
    batches: tuple[InnerBatch, ...]
    areas: dict[str, tuple[Item, ...]]
    joins: frozenset[int]
    copies: tuple[Copy, ...]
    apart: tuple[Copy, ...]
    work: int

    def copied_bytes(self, rows: int = ROWS) -> int:
        return sum(copy.moved_bytes(rows) for copy in self.copies)

    def apart_bytes(self, rows: int = ROWS) -> int:
        """Return the bytes that element-wise batches would copy as well if they ran op by op."""
        return sum(copy.moved_bytes(rows) for copy in self.apart)

    @property
    def untried(self) -> tuple[Copy, ...]:
        """Return the operands read in place because the work budget ended before they were tried."""
        return tuple(copy for copy in self.apart if copy.reason == UNTRIED)

    @property
    def parameter_copies(self) -> int:
        """Count the copies of values that all nodes share."""
        return sum(copy.area == SHARED_VALUES for copy in self.copies)

    def offset(self, value: int) -> int:
        """Return the offset of a value: a column of its row, or an element of the shared values."""
        first = self.span(value)[0]
        items = self.areas[self.memory.area_of(first.value)]
        return sum(item.size for item in items[: items.index(first)])

    def span(self, value: int) -> tuple[Item, ...]:
        """Return the items of a value; none for a number."""
        return self.memory.span(value, frozenset(self.memory.joins) - self.joins)

    def __str__(self) -> str:
        return show_layout(self)


@checked()
def plan_cell(program: CellProgram, rows: int = ROWS) -> CellLayout:
    """Lay out a cell with few launches of batches and copies, and few copied bytes.

    Args:
        program: the program of the cell.
        rows: nodes per batch, to weigh shared values against values per node.

    Cost: once per cell; about 10 ms for a Tree-LSTM. The operands of element-wise ops are tried last, and only until
        `MAX_WORK` is used up: about 50 ms. The budget counts work instead of reading a clock, so a cell has the same
        layout in every process. The operands of products are always tried.
    Source: ED-Batch (arXiv:2302.03851), section 3: operands of batches as constraints on a PQ-tree.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> from autobatch.ir.arguments import Key
    >>> from autobatch.trace.tracer import Tracer
    >>> a, b = ab.Parameter(np.zeros((2, 2))), ab.Parameter(np.zeros((2, 2)))
    >>> tracer, key = Tracer("both", {id(a): "a", id(b): "b"}), Key("value", (2,))
    >>> program, _ = tracer.trace(lambda given: b @ given["x"] + a @ given["x"], {"x": key})
    >>> print(plan_cell(program))
    both: 3 instructions in 2 batches; 0 copies, 0 bytes for 32 nodes
      node, 8 elements
        before: x %2 %4 %5
        after:  x %5 %2 %4
      shared, 8 elements
        before: b a
        after:  b a
      batches
        1: matmul x 2: result = %2 %4, x = b a, y = x
        2: add x 1: result = %5, x = %2, y = %4
    """
    memory, work = ProgramMemory(program), Work(MAX_WORK)
    batches = choose_batches(make_steps(memory))
    fit = fit_runs(memory, batches, rows, work)
    joins = frozenset(memory.joins) - fit.copied_joins(memory)
    frontiers = zip(memory.areas, fit.orders.frontiers(), strict=True)
    # A join has items in case it is copied; one that is a view lies in the items of its parts.
    areas = {
        area: tuple(item for item in cast(list[Item], order) if item.value not in joins) for area, order in frontiers
    }
    always = [(value, memory.why_copied(value)) for value in memory.copying if value not in memory.joins]
    copies = [_copy_of_value(memory, value, reason) for value, reason in always if reason is not None]
    dropped = [(run, _copy_of_run(memory, batches, run, fit)) for run in fit.dropped.values()]
    return CellLayout(
        memory,
        tuple(_to_batch(memory, batch, fit, areas) for batch in batches),
        {area: items for area, items in areas.items() if items},
        joins,
        (*copies, *(copy for run, copy in dropped if run.copied)),
        tuple(copy for run, copy in dropped if not run.copied),
        MAX_WORK - work.left,
    )


def _to_batch(memory: ProgramMemory, batch: Batch, fit: Fit, areas: dict[str, tuple[Item, ...]]) -> InnerBatch:
    """Sort the members of a batch into the order in which its views lie."""
    views: dict[int, Pattern] = {}
    for operand, values in operands_of(memory, batch).items():
        pattern = pattern_of([memory.reads[v] for v in values])
        if pattern is not None and ("batch", batch[0], operand) not in fit.dropped:
            views[operand] = pattern
    # The runs of a batch have one order, so any kept one gives the order of the members.
    line = next((run.line for key, run in fit.kept.items() if key[:2] == ("batch", batch[0])), None)
    members = batch
    if line is not None:
        position = {item: at for items in areas.values() for at, item in enumerate(items)}
        places = [position[cast(Item, span[0])] for span in line.spans]
        members = tuple(value for _, value in sorted(zip(places, batch, strict=True)))
    return InnerBatch(members, is_product(memory, batch), views)


def _copy_of_run(memory: ProgramMemory, batches: Sequence[Batch], run: Run, fit: Fit) -> Copy:
    if run.line is None:
        reason = "some of its values repeat"
    elif run.key in fit.untried:
        reason = UNTRIED
    elif starting_orders(memory).add([run.line]):
        reason = "it does not fit beside the views chosen before"
    else:
        reason = "no order of the items makes it a view"
    return Copy(_reader_name(memory, batches, run.key), run.values, run.area, run.elements, reason)


def _copy_of_value(memory: ProgramMemory, value: int, reason: str) -> Copy:
    size = memory.program.vars[value].size
    return Copy(_reader_name(memory, (), ("join", value)), (value,), memory.area_of(value), size, reason)


def _reader_name(memory: ProgramMemory, batches: Sequence[Batch], key: Key) -> str:
    """Name the reader of a run: `matmul of 5, argument 1`, `result of matmul of 5`, `concat %7`."""
    batch = next((batch for batch in batches if batch[0] == key[1]), (cast(int, key[1]),))
    source = memory.program.vars[batch[0]].source
    assert isinstance(source, Instruction)
    if key[0] == "join":
        return f"{source.op.name} {memory.name(batch[0])}"
    what = f"{source.op.name} of {memory.name(batch[0])}"
    what += f" and {len(batch) - 1} more" if len(batch) > 1 else ""
    if key[2] == RESULT:
        return f"result of {what}"
    names, number = source.op.names, cast(int, key[2])
    return f"{names[number] if names else f'argument {number + 1}'} of {what}"


def show_layout(layout: CellLayout, rows: int = ROWS) -> str:
    """Format the order of items before and after, and a line per inner batch and copy, with bytes for `rows` nodes."""
    return "\n".join([_head(layout, rows), *_areas(layout), *_batches(layout), *_copies(layout, rows)])


def _head(layout: CellLayout, rows: int) -> str:
    n_steps = sum(len(batch.values) for batch in layout.batches)
    return (
        f"{layout.memory.program.name}: {n_steps} instructions in {len(layout.batches)} batches; "
        f"{len(layout.copies)} copies, {layout.copied_bytes(rows):,} bytes for {rows} nodes"
    )


def _areas(layout: CellLayout) -> Iterator[str]:
    for area, items in layout.areas.items():
        before = [item for item in layout.memory.areas[area] if item.value not in layout.joins]
        yield f"  {area}, {sum(item.size for item in items)} elements"
        yield f"    before: {_names(layout, before)}"
        yield f"    after:  {_names(layout, items)}"


def _names(layout: CellLayout, items: Sequence[Item]) -> str:
    return " ".join(layout.memory.item_name(item) for item in items)


def _batches(layout: CellLayout) -> Iterator[str]:
    yield "  batches"
    for number, batch in enumerate(layout.batches, start=1):
        operands = ", ".join(_operands(layout, batch))
        yield f"    {number}: {_source(layout, batch).op.name} x {len(batch.values)}: {operands}"


def _operands(layout: CellLayout, batch: InnerBatch) -> Iterator[str]:
    """Yield each operand: `x = a b` for a view, else with how it is read."""
    for operand, values in operands_of(layout.memory, batch.values).items():
        name = "result" if operand == RESULT else _source(layout, batch).op.names[operand]
        names = " ".join(layout.memory.name(value) for value in dict.fromkeys(values))
        how = "" if operand in batch.views else " copied" if batch.is_product else " apart"
        yield f"{name} = {names}{how}"


def _copies(layout: CellLayout, rows: int) -> Iterator[str]:
    for title, copies in (("copies", layout.copies), ("read in place by element-wise ops", layout.apart)):
        if copies:
            yield f"  {title}"
            yield from (f"    {_copy(copy, rows)}" for copy in copies if copy.reason != UNTRIED)
    if layout.untried:
        moved = sum(copy.moved_bytes(rows) for copy in layout.untried)
        yield f"    and {len(layout.untried)} operands, {moved:,} bytes: {UNTRIED}"


def _copy(copy: Copy, rows: int) -> str:
    return f"{copy.what}: {copy.moved_bytes(rows):,} bytes; {copy.reason}"


def _source(layout: CellLayout, batch: InnerBatch) -> Instruction:
    source = layout.memory.program.vars[batch.values[0]].source
    assert isinstance(source, Instruction)
    return source


_NO_PROGRAM = ProgramMemory(CellProgram("", (), ()))  # cached layouts hold no parameters
_known: dict[Hashable, CellLayout] = {}


def lay_out(program: CellProgram, rows: int = ROWS) -> CellLayout:
    """Return the layout of a program, shared by programs that differ only in parameters and names.

    A layout refers to values by number, so it holds for every program with the same ops, arguments and shapes. The
    reasons of copies name values, so for a layout with copies the names must match too.

    Cost: that of `plan_cell` for a new form of program, else linear in its values.
    """
    form = (rows, program.outputs, program.ties, *(_form(var) for var in program.vars))
    named = (program.name, form, *(getattr(var.source, "name", None) for var in program.vars))
    layout = _known.get(form) or _known.get(named)
    if layout is None:
        layout = plan_cell(program, rows)
        _known[named if layout.copies or layout.apart else form] = replace(layout, memory=_NO_PROGRAM)
    return replace(layout, memory=ProgramMemory(program))


def _form(var: Var) -> Hashable:
    """Return a key of everything about a value that a layout depends on."""
    match var.source:
        case Instruction(op, args, static):
            source: Hashable = op, args, static_key(static)
        case Port(number=number):
            source = number
        case Attribute(is_float=is_float, column=column):
            source = is_float, column
        case Constant() if is_number(var):
            source = literal(var)
        # Parameters and constant arrays matter by their shape and domain only.
        case _:
            source = None
    return type(var.source), source, var.shape, var.domain
