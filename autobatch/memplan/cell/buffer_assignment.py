"""Buffer assignment: assign columns to the values of a cell, and choose which are computed in place.

- Ports, and values computed for joins with ports, have columns in the inputs (`inputs`).
- A value computed for another join is written directly to its place in the join (`concats`); if both are saved, they
  share columns.
- After its last read, a residual passes its columns on to a value of the backward stage (`buffer_reuse`).
- A backward value that consists of the gradients of adjacent ports is computed in their columns.

The layout lists the remaining copies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from autobatch.ir.derivative import Derivative
from autobatch.ir.layout import Layout, Place
from autobatch.ir.program import NODE, CellProgram, Instruction, Var
from autobatch.memplan.cell.buffer_reuse import find_heirs
from autobatch.memplan.cell.concats import can_be_made_in, is_join, make_joins, offset_of, part_indices
from autobatch.memplan.cell.inputs import Columns, side_by_side
from autobatch.memplan.cell.memory import Read, reads_of


def make_layout(program: CellProgram, columns: Columns, derivative: Derivative | None, reuses: bool = True) -> Layout:
    """Lay out all values of a cell; with `reuses`, values with disjoint lifetimes may share columns."""
    n_domains = 1 + program.n_groups
    vars: Sequence[Var] = program.vars
    stages: tuple[frozenset[int], ...] = (frozenset(program.instructions),)
    saved: dict[int, Place] = {}
    saved_width = (0,) * n_domains
    gradients: dict[int, Place] = {}
    aliased: frozenset[int] = frozenset()
    overwritten: frozenset[int] = frozenset()
    if derivative is not None:
        vars = derivative.vars
        stages += (frozenset((*derivative.backward, *derivative.incoming)), frozenset(derivative.weights))
        saved, saved_width, overwritten = _place_saved(derivative, stages, n_domains, reuses)
        gradients, aliased = _gradients_in_place(derivative, columns, saved)
    joins, within = make_joins(vars, stages, columns, set(gradients), saved)
    return Layout(
        columns.ports, saved, columns.width, saved_width, columns.inner, gradients, aliased, joins, within, overwritten
    )  # fmt: skip


def _place_saved(
    derivative: Derivative, stages: Sequence[frozenset[int]], n_domains: int, reuses: bool
) -> tuple[dict[int, Place], tuple[int, ...], frozenset[int]]:
    """Assign columns to saved values; a part of a saved join that is made in the same stages lies inside it.

    Returns:
        The places, the width per domain, and the values whose columns are reused.
    """
    vars, inside = derivative.vars, dict[int, tuple[int, int]]()
    for whole in derivative.saved:
        source = vars[whole].source
        if isinstance(source, Instruction) and is_join(source.op):
            for part, index in zip(source.args, part_indices(vars, whole), strict=True):
                offset = offset_of(vars[whole], index)
                if offset is not None and part in derivative.saved and can_be_made_in(vars, stages, part, whole):
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
    """Return the parts of a join with their offsets, None for a part that is not a range; empty for other values."""
    source = vars[index].source
    if not isinstance(source, Instruction) or not is_join(source.op):
        return []
    return [
        (part, offset_of(vars[index], where))
        for part, where in zip(source.args, part_indices(vars, index), strict=True)
    ]


def _gradients_in_place(
    derivative: Derivative, columns: Columns, saved: dict[int, Place]
) -> tuple[dict[int, Place], frozenset[int]]:
    """Find values made up of port gradients that can be computed in the columns of these gradients.

    Returns:
        The place of each such value, and the ports whose gradients are computed in place.
    """
    reads, vars = reads_of(derivative.vars), derivative.vars
    computed = {*derivative.backward, *derivative.incoming} - {*saved, *columns.inner}
    wanted: defaultdict[tuple[int, Place], set[int]] = defaultdict(set)
    for port, gradient in enumerate(derivative.ports):
        read = Read(-1, 0, 0) if gradient is None else reads[gradient]
        place = columns.ports[port]
        if read.value in computed and not read.strided and vars[read.value].domain == place.domain:
            whole = Place(place.domain, place.column - read.start, vars[read.value].size)
            wanted[read.value, whole].add(port)
    places: dict[int, Place] = {}
    aliased: set[int] = set()
    used: set[tuple[int, int]] = set()
    for (value, whole), ports in sorted(wanted.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        range_ = {(whole.domain, whole.column + k) for k in range(whole.width)}
        others = _columns(p for number, p in enumerate(columns.ports) if number not in ports)
        inside = whole.column >= 0 and whole.column + whole.width <= columns.width[whole.domain - NODE]
        if value not in places and inside and not range_ & (others | used):
            places[value] = whole
            aliased |= ports
            used |= range_
    return places, frozenset(aliased)


def _columns(places: Iterable[Place]) -> set[tuple[int, int]]:
    return {(place.domain, place.column + k) for place in places for k in range(place.width)}
