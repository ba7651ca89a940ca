"""Buffer assignment: assign columns to the values of a cell, and choose which are computed in place.

- Ports, and values computed for joins with ports, have columns in the inputs (`inputs`).
- A value computed for another join is written directly to its place in the join; if both are saved, they share columns.
- After its last read, a residual passes its columns on to a value of the backward stage (buffer reuse).
- A backward value that consists of the gradients of adjacent ports is computed in their columns.

The layout lists the remaining copies.

Joins: a part, of values or of gradients, that is computed at its place in the join needs no copy. Neither does a part
that lies in the inputs if the join lies there around it.

Buffer reuse: backward computes the gradients of a cell's gates from the gates, and the weight stage reads these
gradients but not the gates. Stored over the gates, they take no columns of their own, and go to cache lines that the
kernel has just read. Backends that reorder instructions keep each read of a value before the write that takes its
columns (`autobatch.compiler.fusion`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from autobatch.ir.derivative import Derivative
from autobatch.ir.layout import Index, Join, Layout, Place
from autobatch.ir.program import NODE, CellProgram, Incoming, Instruction, Port, Var
from autobatch.memplan.cell.inputs import Columns, side_by_side
from autobatch.memplan.cell.memory import Read, reads_of
from autobatch.ops.define import Op
from autobatch.ops.elementwise import add
from autobatch.ops.shaping import assemble


class Piece(NamedTuple):
    """Elements of a value from `offset` on that are computed together, at instruction `time` or later."""

    value: int
    offset: int
    size: int
    time: float


Offsets = Callable[[int], list[tuple[int, int | None]]]  # the parts of a join, with the offset of each that is a range


def find_heirs(derivative: Derivative, excluded: set[int], parts_of: Offsets) -> dict[int, tuple[int, int]]:
    """Find saved values of the program whose columns a saved value of the backward stage may take.

    Args:
        derivative: the derivative of a cell.
        excluded: values that share their columns already.
        parts_of: returns the parts of a join.

    Returns:
        For each such value, the value that takes its columns, and the first element of that value to lie there.

    Cost: linear in the instructions and their arguments, except for sorting.
    """
    finder = _Finder(derivative, parts_of)
    n_forward = len(derivative.program.vars)
    pieces: defaultdict[tuple[int, int], list[Piece]] = defaultdict(list)
    ending: defaultdict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)
    for index in derivative.saved:
        var = derivative.vars[index]
        if index in excluded or not var.size:
            continue
        if index >= n_forward:
            for piece in finder.pieces(index):
                pieces[var.domain, piece.size].append(piece)
        elif finder.last_read(index) < math.inf:
            ending[var.domain, var.size].append((finder.last_read(index), index))
    found: dict[int, tuple[int, int]] = {}
    for group, values in ending.items():
        # Greedy, in order of time: the value with the earliest last read takes the first piece written after it.
        free = sorted(pieces[group], key=lambda piece: piece.time)
        for last, index in sorted(values):
            later = next((piece for piece in free if piece.time > last), None)
            if later is not None:
                free.remove(later)
                found[index] = later.value, later.offset
    return found


class _Finder:
    """Find when backward reads and writes values; times are instruction numbers."""

    def __init__(self, derivative: Derivative, parts_of: Offsets) -> None:
        self.derivative, self.vars, self.parts_of = derivative, derivative.vars, parts_of
        self.made = frozenset(derivative.backward)
        self.last: dict[int, float] = {}
        self.from_gradients: set[int] = set()
        sums: dict[int, float] = {}
        for index in reversed(derivative.backward):
            source = self.vars[index].source
            assert isinstance(source, Instruction), "stages run instructions"
            if source.op.view:
                continue
            time = sums.get(index, index) if source.op is add else index
            for arg in source.args:
                if source.op is add:  # a sum of several terms may be computed when the last of them is known
                    sums[arg] = max(sums.get(arg, 0), time)
                # Only a loop over elements can read each element just before another loop overwrites it.
                self._read(arg, time if _is_simple(source) else math.inf)
        # Values that the weight stage reads, and results of the stages, outlive backward and are not overwritten.
        for index in (*self._read_by_weights(), *derivative.roots):
            self._read(index, math.inf)
        for index in (*derivative.incoming, *derivative.backward):
            source = self.vars[index].source
            if isinstance(source, Incoming) or self.from_gradients.intersection(source_args(source)):
                self.from_gradients.add(index)

    def last_read(self, index: int) -> float:
        """Return the last instruction that reads a value; infinity if that instruction is not element-wise."""
        return self.last.get(index, math.inf)

    def pieces(self, index: int) -> list[Piece]:
        """Return the pieces of a value; none if its parts leave gaps of zeros, or if it is not a gradient."""
        var = self.vars[index]
        if index not in self.from_gradients or not isinstance(var.source, Instruction):
            return []
        parts = self.parts_of(index)
        if not parts:
            return [Piece(index, 0, var.size, index)]
        if sum(self.vars[part].size for part, _ in parts) < var.size:
            return []
        return [
            Piece(index, offset, self.vars[part].size, self._made(part, index))
            for part, offset in parts
            if offset is not None
        ]

    def _made(self, index: int, reader: int) -> float:
        """Return the first instruction that may write a part of a join to its place.

        A view of a backward value may be made there too. The join copies views of element-wise results and of other
        values.
        """
        seen = self._seen(index)
        source = self.vars[seen].source
        if seen != index and (seen not in self.made or not isinstance(source, Instruction) or _is_simple(source)):
            return reader
        if not isinstance(source, Instruction):
            return -1
        parts = self.parts_of(seen)
        return min((self._made(part, seen) for part, _ in parts), default=seen)

    def _read(self, index: int, time: float) -> None:
        index = self._seen(index)
        self.last[index] = max(self.last.get(index, -1), time)

    def _seen(self, index: int) -> int:
        source = self.vars[index].source
        while isinstance(source, Instruction) and source.op.view:
            index = source.args[0]
            source = self.vars[index].source
        return index

    def _read_by_weights(self) -> list[int]:
        return [arg for index in self.derivative.weights for arg in source_args(self.vars[index].source)]


def _is_simple(source: Instruction) -> bool:
    """Return whether an instruction runs as a loop over elements."""
    return source.op.scalar is not None and not source.op.random


def source_args(source: object) -> tuple[int, ...]:
    """Return the values that a source reads."""
    return source.args if isinstance(source, Instruction) else ()


def make_joins(
    vars: Sequence[Var],
    stages: Sequence[frozenset[int]],
    columns: Columns,
    gradients: set[int],
    saved: dict[int, Place],
) -> tuple[dict[int, Join], dict[int, tuple[int, Index]]]:
    """Find the parts of each join that are computed in place.

    Args:
        vars: the values.
        stages: the values that each stage computes.
        columns: the places of the values that lie in the inputs.
        gradients: the values that are computed in the columns of port gradients.
        saved: the places of saved values.
    """
    reads = reads_of(vars)
    joins: dict[int, Join] = {}
    within: dict[int, tuple[int, Index]] = {}
    for value in sorted(set().union(*stages)):
        source = vars[value].source
        if not isinstance(source, Instruction) or not is_join(source.op):
            continue
        indices = part_indices(vars, value)
        copied = []
        for number, (part, index) in enumerate(zip(source.args, indices, strict=True)):
            if _lies_in_inputs(vars, columns, reads[part], value, index):
                continue
            # A part has one place: it cannot also lie in the inputs, in a port's gradient, or saved elsewhere.
            free = (
                part not in columns.inner
                and part not in gradients
                and (part not in saved or _lies_in(vars, saved, part, value, index))
            )
            if free and part not in within and can_be_made_in(vars, stages, part, value):
                within[part] = value, index
            else:
                copied.append(number)
        covered = sum(vars[part].size for part in source.args) == vars[value].size
        joins[value] = Join(indices, tuple(copied), covered)
    return joins, within


def _lies_in_inputs(vars: Sequence[Var], columns: Columns, part: Read, whole: int, index: Index) -> bool:
    """Return whether a part lies in the inputs at its position inside `whole`."""
    source, around, offset = vars[part.value].source, columns.inner.get(whole), offset_of(vars[whole], index)
    place = columns.ports[source.number] if isinstance(source, Port) else columns.inner.get(part.value)
    if place is None or around is None or offset is None or part.strided:
        return False
    return (place.domain, place.column + part.start) == (around.domain, around.column + offset)


def _lies_in(vars: Sequence[Var], saved: dict[int, Place], part: int, whole: int, index: Index) -> bool:
    """Return whether a saved part lies at its position inside a saved `whole`."""
    place, around, offset = saved[part], saved.get(whole), offset_of(vars[whole], index)
    if around is None or offset is None:
        return False
    return place == Place(around.domain, around.column + offset, vars[part].size)


def is_join(op: Op) -> bool:
    """Return whether an op concatenates values, or the gradients of slices into the gradient of the whole."""
    return op is assemble or op.name == "concat"


def part_indices(vars: Sequence[Var], value: int) -> tuple[Index, ...]:
    """Return the index of each argument of a join in its result."""
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


def can_be_made_in(vars: Sequence[Var], stages: Sequence[frozenset[int]], part: int, whole: int) -> bool:
    """Return whether the stages that make `whole` also compute a part of it, per row and not as a view."""
    source = vars[part].source
    if vars[part].domain != vars[whole].domain or any((part in s) != (whole in s) for s in stages):
        return False
    if isinstance(source, Incoming):
        return True
    return isinstance(source, Instruction) and not source.op.view and not source.op.sums_rows


def offset_of(whole: Var, index: Index) -> int | None:
    """Return the offset of a part that is a range of rows of a value; None for other parts."""
    if len(index) == 1 + len(whole.shape) and index[0] is Ellipsis:
        index = index[1:]
    if len(index) != 1 or not isinstance(index[0], slice) or index[0].step not in (None, 1):
        return None
    start: int = index[0].indices(whole.shape[0])[0]
    return start * math.prod(whole.shape[1:])


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
    # Parts and joins of the program that share columns with each other cannot pass them on. A join of the backward
    # stage is not excluded: it may still take columns, piece by piece.
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
            # Where the value must begin so that its part, the port's gradient, lies in the columns of the port.
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
