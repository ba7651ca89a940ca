"""Order the columns of a cell's ports so that concatenations of ports are views.

Ports that a `concat` reads, and values computed for it, are adjacent in the inputs where the orders that different
joins require are compatible (`constraints`). Such a join is not copied, and is not saved, because the inputs are kept.
Where joins leave a choice, values that one node passes to another are adjacent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from autobatch.ir.layout import Place
from autobatch.ir.program import NODE, SHARED, CellProgram, Port, Var
from autobatch.memplan.cell.aligned import Line
from autobatch.memplan.cell.constraints import fit_runs
from autobatch.memplan.cell.memory import DATA, SHARED_VALUES, Item, ProgramMemory


class Columns(NamedTuple):
    """Places in the inputs: of ports by number, of joins and their parts by value; and the width per domain."""

    ports: tuple[Place, ...]
    inner: dict[int, Place]
    width: tuple[int, ...]


def place_columns(program: CellProgram, joined: bool = True) -> Columns:
    """Order the ports of a cell, and the values computed for joins with ports.

    Args:
        program: the program of the cell.
        joined: let joins decide the order; if not, ports are in numerical order.
    """
    memory = ProgramMemory(program)
    if not joined or not memory.joins:
        places, width = side_by_side(program.vars, program.ports, 1 + program.n_groups)
        return Columns(tuple(places[p] for p in program.ports), {}, width)
    fit = fit_runs(memory, ())
    copied_joins = fit.copied_joins(memory)
    chosen = _joins_in_inputs(memory, copied_joins)
    spans = {value: memory.span(value, copied_joins) for value in (*program.ports, *chosen)}
    wanted = {item for span in spans.values() for item in span}
    orders = fit.orders.copy()
    for line in _pairs(memory):
        orders.add([line])  # a pair that does not fit changes nothing
    offset: dict[Item, tuple[int, int]] = {}
    ends = [0] * (1 + program.n_groups)
    for area, order in zip(memory.areas, orders.frontiers(), strict=True):
        if area == SHARED_VALUES or area.startswith(DATA):
            continue
        for item in order:
            if item in wanted:
                domain = program.vars[item.value].domain
                offset[item] = domain, ends[domain - NODE]
                ends[domain - NODE] += item.size
    # The items of a span are consecutive and all wanted, so the place of the first is that of the value.
    places = {
        value: Place(*offset[span[0]], program.vars[value].size) if span else Place(program.vars[value].domain, 0, 0)
        for value, span in spans.items()
    }
    inner = {value: place for value, place in places.items() if value not in program.ports}
    return Columns(tuple(places[p] for p in program.ports), inner, tuple(ends))


def _pairs(memory: ProgramMemory) -> list[Line]:
    """Return lines for ports fed by one node, such as the h and c of a child: if adjacent, they are written as one."""
    arguments: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for port in memory.program.ports:
        var = memory.program.vars[port]
        assert isinstance(var.source, Port)
        arguments[var.domain, var.source.name.rpartition(".")[0]].append(port)
    lines = [tuple(span for port in ports if (span := memory.span(port))) for ports in arguments.values()]
    return [Line(("pair", number), spans) for number, spans in enumerate(lines) if len(spans) > 1]


def _joins_in_inputs(memory: ProgramMemory, copied_joins: frozenset[int]) -> set[int]:
    """Return the joins that lie in the inputs, and the values computed for them.

    These are the joins that contain a port, and those that share a part with another such join.
    """
    program = memory.program
    kept = {value: set(memory.span(value, copied_joins)) for value in memory.joins if value not in copied_joins}
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


def side_by_side(
    vars: Sequence[Var], chosen: Iterable[int], n_domains: int
) -> tuple[dict[int, Place], tuple[int, ...]]:
    """Assign consecutive columns to values, per domain; return the places, and the width of each domain."""
    places, width = {}, [0] * n_domains
    for index in chosen:
        domain = vars[index].domain
        places[index] = Place(domain, width[domain - NODE], vars[index].size)
        width[domain - NODE] += vars[index].size
    return places, tuple(width)
