"""The columns of a cell: ports in an order that makes joins views, and results made where they are wanted.

- Ports that a `concat` reads, and values computed for it, lie side by side in the inputs as far as the orders that
  joins want agree (`layout_search`); such a join is no copy, and nothing of it is saved, for the inputs stay. Where
  joins leave a choice, the values that one node gives to another lie side by side.
- A value computed for any other join is computed in its place there; if both are saved, they share their columns.
- A saved value that nothing reads any more leaves its columns to one that backward makes (`memplan.reusing`).
- A value of the backward stage whose pieces are the gradients of ports that lie like them is computed there.

What remains are copies, which the layout lists.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from autobatch.ir.derivative import Derivative
from autobatch.ir.layout import Index, Join, Layout, Place
from autobatch.ir.program import NODE, SHARED, CellProgram, Incoming, Instruction, Port, Var
from autobatch.memplan.cell.aligned import Line
from autobatch.memplan.cell.fitting import fit_runs
from autobatch.memplan.cell.memory import FLOAT_DATA, INT_DATA, SHARED_VALUES, Item, Memory, Read, reads_of
from autobatch.memplan.cell.reusing import find_heirs
from autobatch.ops.define import Op
from autobatch.ops.shaping import assemble


class Columns(NamedTuple):
    """Places in the inputs: of ports by number, of joins and their parts by value; and the width per domain."""

    ports: tuple[Place, ...]
    inner: dict[int, Place]
    width: tuple[int, ...]


def place_columns(program: CellProgram, joined: bool = True) -> Columns:
    """Order the ports of a cell, and what is computed for joins with them.

    Args:
        program: of the cell.
        joined: let joins decide the order; if not, ports come in the order of their numbers.
    """
    memory = Memory(program)
    if not joined or not memory.joins:
        places, width = side_by_side(program.vars, program.ports, 1 + program.n_groups)
        return Columns(tuple(places[p] for p in program.ports), {}, width)
    fit = fit_runs(memory, ())
    apart = fit.copied_joins(memory)
    chosen = _joins_in_inputs(memory, apart)
    spans = {value: memory.span(value, apart) for value in (*program.ports, *chosen)}
    wanted = {item for span in spans.values() for item in span}
    orders = fit.orders.copy()
    for line in _pairs(memory):
        orders.add([line])
    offset: dict[Item, tuple[int, int]] = {}
    ends = [0] * (1 + program.n_groups)
    for area, order in zip(memory.areas, orders.frontiers(), strict=True):
        if area in (SHARED_VALUES, INT_DATA, FLOAT_DATA):
            continue
        for item in order:
            if item in wanted:
                domain = program.vars[item.value].domain
                offset[item] = domain, ends[domain - NODE]
                ends[domain - NODE] += item.size
    places = {
        value: Place(*offset[span[0]], program.vars[value].size) if span else Place(program.vars[value].domain, 0, 0)
        for value, span in spans.items()
    }
    inner = {value: place for value, place in places.items() if value not in program.ports}
    return Columns(tuple(places[p] for p in program.ports), inner, tuple(ends))


def _pairs(memory: Memory) -> list[Line]:
    """Ports that come from one node, such as the h and c of a child: side by side, they are written in one piece."""
    arguments: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for port in memory.program.ports:
        var = memory.program.vars[port]
        assert isinstance(var.source, Port)
        arguments[var.domain, var.source.name.rpartition(".")[0]].append(port)
    lines = [tuple(span for port in ports if (span := memory.span(port))) for ports in arguments.values()]
    return [Line(("pair", number), spans) for number, spans in enumerate(lines) if len(spans) > 1]


def _joins_in_inputs(memory: Memory, apart: frozenset[int]) -> set[int]:
    """The joins that lie in the inputs, and the values computed for them.

    These are the joins that have a port in them, and those that share a part with another such join.
    """
    program = memory.program
    kept = {value: set(memory.span(value, apart)) for value in memory.joins if value not in apart}
    held = {item for port in program.ports for item in memory.span(port)}
    chosen: set[int] = set()
    while True:
        more = {value for value, items in kept.items() if value not in chosen and items & held}
        if not more:
            break
        chosen |= more
        held |= {item for value in more for item in kept[value]}
    found = {v for v in chosen if program.vars[v].domain != SHARED}
    ports = {item.value for port in program.ports for item in memory.span(port)}
    return found | {item.value for value in found for item in kept[value] if item.value not in ports}


def make_layout(program: CellProgram, columns: Columns, derivative: Derivative | None, reuses: bool = True) -> Layout:
    """Give all values of a cell their places; if it `reuses` columns, some of them one after the other."""
    n_domains = 1 + program.n_groups
    vars: Sequence[Var] = program.vars
    stages: tuple[frozenset[int], ...] = (frozenset(program.instructions),)
    saved: dict[int, Place] = {}
    saved_width = (0,) * n_domains
    gradients: dict[int, Place] = {}
    settled: frozenset[int] = frozenset()
    taken: frozenset[int] = frozenset()
    if derivative is not None:
        vars = derivative.vars
        stages += (frozenset((*derivative.backward, *derivative.incoming)), frozenset(derivative.weights))
        saved, saved_width, taken = _place_saved(derivative, stages, n_domains, reuses)
        gradients, settled = _gradients_in_place(derivative, columns, saved)
    joins, within = _make_joins(vars, stages, columns, set(gradients), saved)
    return Layout(
        columns.ports, saved, columns.width, saved_width, columns.inner, gradients, settled, joins, within, taken
    )  # fmt: skip


def side_by_side(
    vars: Sequence[Var], chosen: Iterable[int], n_domains: int
) -> tuple[dict[int, Place], tuple[int, ...]]:
    """Give values columns one after the other, per domain; and the width of each."""
    places, width = {}, [0] * n_domains
    for index in chosen:
        domain = vars[index].domain
        places[index] = Place(domain, width[domain - NODE], vars[index].size)
        width[domain - NODE] += vars[index].size
    return places, tuple(width)


def _place_saved(
    derivative: Derivative, stages: Sequence[frozenset[int]], n_domains: int, reuses: bool
) -> tuple[dict[int, Place], tuple[int, ...], frozenset[int]]:
    """Give saved values columns; those that are part of a saved join, of one made in the same stages, lie in it.

    Returns:
        the places, the width per domain, and the values that leave their columns to others.
    """
    vars, inside = derivative.vars, dict[int, tuple[int, int]]()
    for whole in derivative.saved:
        source = vars[whole].source
        if isinstance(source, Instruction) and _is_join(source.op):
            for part, index in zip(source.args, _part_indices(vars, whole), strict=True):
                offset = _offset(vars[whole], index)
                if offset is not None and part in derivative.saved and _can_be_made_in(vars, stages, part, whole):
                    inside.setdefault(part, (whole, offset))
    shared = {*inside, *(whole for whole, _ in inside.values() if whole < len(derivative.program.vars))}
    heirs = find_heirs(derivative, shared, lambda index: _ranges(vars, index)) if reuses else {}
    inside |= heirs
    places, width = side_by_side(vars, (value for value in derivative.saved if value not in inside), n_domains)
    for part in sorted(inside, reverse=True):  # a join has a higher number than its parts
        whole, offset = inside[part]
        places[part] = Place(places[whole].domain, places[whole].column + offset, vars[part].size)
    return places, width, frozenset(heirs)


def _ranges(vars: Sequence[Var], index: int) -> list[tuple[int, int | None]]:
    """The parts of a join, and where each begins in it, if it is a range of it; nothing for other values."""
    source = vars[index].source
    if not isinstance(source, Instruction) or not _is_join(source.op):
        return []
    return [
        (part, _offset(vars[index], where)) for part, where in zip(source.args, _part_indices(vars, index), strict=True)
    ]


def _offset(whole: Var, index: Index) -> int | None:
    """The first element of a part that is some rows of a value; None for other parts."""
    if len(index) == 1 + len(whole.shape) and index[0] is Ellipsis:
        index = index[1:]
    if len(index) != 1 or not isinstance(index[0], slice) or index[0].step not in (None, 1):
        return None
    start: int = index[0].indices(whole.shape[0])[0]
    return start * math.prod(whole.shape[1:])


def _gradients_in_place(
    derivative: Derivative, columns: Columns, saved: dict[int, Place]
) -> tuple[dict[int, Place], frozenset[int]]:
    """Find values whose pieces, gradients of ports, can be made where these ports' gradients lie.

    Returns:
        the place of each such value, and the ports whose gradients are made in place.
    """
    reads, vars = reads_of(derivative.vars), derivative.vars
    computed = {*derivative.backward, *derivative.incoming} - {*saved, *columns.inner}
    wanted: defaultdict[tuple[int, Place], set[int]] = defaultdict(set)
    for port, gradient in enumerate(derivative.ports):
        read = Read(-1, 0, 0) if gradient is None else reads[gradient]
        place = columns.ports[port]
        if read.value in computed and not read.strided and vars[read.value].domain == place.domain:
            home = Place(place.domain, place.column - read.start, vars[read.value].size)
            wanted[read.value, home].add(port)
    places: dict[int, Place] = {}
    settled: set[int] = set()
    taken: set[tuple[int, int]] = set()
    for (value, home), ports in sorted(wanted.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        range_ = {(home.domain, home.column + k) for k in range(home.width)}
        others = _columns(p for number, p in enumerate(columns.ports) if number not in ports)
        inside = home.column >= 0 and home.column + home.width <= columns.width[home.domain - NODE]
        if value not in places and inside and not range_ & (others | taken):
            places[value] = home
            settled |= ports
            taken |= range_
    return places, frozenset(settled)


def _columns(places: Iterable[Place]) -> set[tuple[int, int]]:
    return {(place.domain, place.column + k) for place in places for k in range(place.width)}


def _make_joins(
    vars: Sequence[Var],
    stages: Sequence[frozenset[int]],
    columns: Columns,
    gradients: set[int],
    saved: dict[int, Place],
) -> tuple[dict[int, Join], dict[int, tuple[int, Index]]]:
    """For each join, find which of its parts are made in their place in it.

    Args:
        vars: the values.
        stages: what each stage makes.
        columns: the places of the values that lie in the inputs.
        gradients: the values that are made where gradients of ports lie.
        saved: the places of saved values.
    """
    reads = reads_of(vars)
    joins: dict[int, Join] = {}
    within: dict[int, tuple[int, Index]] = {}
    for value in sorted(set().union(*stages)):
        source = vars[value].source
        if not isinstance(source, Instruction) or not _is_join(source.op):
            continue
        indices = _part_indices(vars, value)
        copied = []
        for number, (part, index) in enumerate(zip(source.args, indices, strict=True)):
            if _lies_in_inputs(vars, columns, reads[part], value, index):
                continue
            free = (
                part not in columns.inner
                and part not in gradients
                and (part not in saved or _lies_in(vars, saved, part, value, index))
            )
            if free and part not in within and _can_be_made_in(vars, stages, part, value):
                within[part] = value, index
            else:
                copied.append(number)
        covered = sum(vars[part].size for part in source.args) == vars[value].size
        joins[value] = Join(indices, tuple(copied), covered)
    return joins, within


def _lies_in_inputs(vars: Sequence[Var], columns: Columns, part: Read, whole: int, index: Index) -> bool:
    """Whether what a value refers to lies in the inputs, and there in a whole."""
    source, around, offset = vars[part.value].source, columns.inner.get(whole), _offset(vars[whole], index)
    place = columns.ports[source.number] if isinstance(source, Port) else columns.inner.get(part.value)
    if place is None or around is None or offset is None or part.strided:
        return False
    return (place.domain, place.column + part.start) == (around.domain, around.column + offset)


def _lies_in(vars: Sequence[Var], saved: dict[int, Place], part: int, whole: int, index: Index) -> bool:
    """Whether the place of a saved value is where it lies in a saved whole."""
    place, around, offset = saved[part], saved.get(whole), _offset(vars[whole], index)
    if around is None or offset is None:
        return False
    return place == Place(around.domain, around.column + offset, vars[part].size)


def _is_join(op: Op) -> bool:
    return op is assemble or op.name == "concat"


def _part_indices(vars: Sequence[Var], value: int) -> tuple[Index, ...]:
    """Where each argument of a join lies in it."""
    source = vars[value].source
    assert isinstance(source, Instruction)
    if source.op is assemble:
        return tuple(index if isinstance(index, tuple) else (index,) for index in source.static["indices"])
    axis = source.static["axis"] % len(vars[value].shape)
    ends, indices = 0, []
    for part in source.args:
        size = vars[part].shape[axis]
        indices.append((*(slice(None),) * axis, slice(ends, ends + size)))
        ends += size
    return tuple(indices)


def _can_be_made_in(vars: Sequence[Var], stages: Sequence[frozenset[int]], part: int, whole: int) -> bool:
    """Whether a value is made, once and by no view, in the stages that make the whole, with as many rows."""
    source = vars[part].source
    if vars[part].domain != vars[whole].domain or any((part in s) != (whole in s) for s in stages):
        return False
    if isinstance(source, Incoming):
        return True
    return isinstance(source, Instruction) and not source.op.view and not source.op.sums_rows
