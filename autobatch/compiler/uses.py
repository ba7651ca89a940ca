"""Find the statements that make, read and overwrite the elements of a value, even if it is made in parts or is part of
another.

Joins and loop splitting let statements make values in place, as parts of others (`Lowered.parts`). A statement that
makes a part makes elements of the whole, and a reader of one of the two reads elements of the other. All passes look up
uses here.

A statement that overwrites a value must run after those that read it (buffer reuse).

Values that backward makes may take the columns of residuals (`autobatch.memplan.cell.buffer_assignment`). A loop that
reads columns and a loop that overwrites them can share a loop nest if they access the same element at every index.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from autobatch.compiler.lowered import STORED, Area, Lowered
from autobatch.compiler.statement import Interpreted, Loop, Operand, Product, Statement
from autobatch.compiler.view import View, steps


class Uses:
    """The uses of the values of a stage, as positions in a sequence of statements.

    Attributes:
        made: for each value that statements target, the positions of these statements.
    """

    def __init__(self, lowered: Lowered, statements: Sequence[Statement]) -> None:
        self.made: defaultdict[int, list[int]] = defaultdict(list)
        self._read: defaultdict[int, list[int]] = defaultdict(list)
        self._parts: Mapping[int, Sequence[int]] = lowered.parts
        self._wholes: defaultdict[int, list[int]] = defaultdict(list)
        for whole, parts in lowered.parts.items():
            for part in parts:
                self._wholes[part].append(whole)
        for k, statement in enumerate(statements):
            for value in lowered.values_read(statement):
                self._read[value].append(k)
            if target_of(statement) != STORED:
                self.made[target_of(statement)].append(k)

    def makers(self, value: int) -> list[int]:
        """Return the statements that make elements of a value, whose targets are the value or parts of it."""
        return sorted({k for part in _closure(value, self._parts) for k in self.made.get(part, ())})

    def readers(self, value: int) -> list[int]:
        """Return the statements that read elements of a value, of parts of it, or of values that contain it."""
        return sorted({k for other in self._related(value) for k in self._read.get(other, ())})

    def operands(self, statement: Statement, value: int) -> list[Operand]:
        """Return the operands by which a loop reads a value, parts of it, or values that contain it."""
        related = self._related(value)
        operands = statement.operands if isinstance(statement, Loop) else ()
        return [operand for operand in operands if operand.view.value in related]

    def _related(self, value: int) -> set[int]:
        return _closure(value, self._parts) | _closure(value, self._wholes)


def target_of(statement: Statement) -> int:
    """Return the value that a statement makes; `STORED` if it writes to destinations or to a port's gradient."""
    return statement.target.value if isinstance(statement, Loop) else statement.target


def _closure(value: int, related: Mapping[int, Sequence[int]]) -> set[int]:
    """Return the transitive closure of a relation, from a value."""
    found, left = {value}, [value]
    while left:
        new = set(related.get(left.pop(), ())) - found
        found |= new
        left += new
    return found


class Range(NamedTuple):
    """Columns first:end of the residuals of a domain; `strides` are along the axes of the loop that accesses them."""

    domain: int
    first: int
    end: int
    strides: tuple[int, ...] | None

    def meets(self, other: Range) -> bool:
        """Return whether two ranges have common columns."""
        return self.domain == other.domain and self.first < other.end and other.first < self.end


def written(lowered: Lowered, statement: Statement) -> Range | None:
    """Return the columns of residuals that a statement writes; None if it writes elsewhere."""
    if isinstance(statement, Loop):
        target = statement.target
        if target.value == STORED:
            return None
        if not statement.combine:
            return _range(lowered, target, statement.nest[1][0])
        # A reduction initializes its whole target before the loop, which may have no indices.
        shape = tuple(1 if step == 0 else size for size, step in zip(target.shape, target.strides, strict=True))
        return _range(lowered, target._replace(shape=shape), None)
    return _range(lowered, _whole(lowered, statement.target), None)


def read_of_taken(lowered: Lowered, statement: Statement) -> list[Range]:
    """Return the columns that a statement reads of values that are overwritten later.

    These values are made by the forward stage, never by the backward stage. They are therefore not divided
    into pieces or made as parts of other values, so their readers name them by their own numbers.
    """
    ranges: list[Range | None] = []
    match statement:
        case Loop():
            for operand, strides in zip(statement.operands, statement.nest[1][1:], strict=True):
                if operand.view.value in lowered.taken:
                    moved = operand.moved is not None
                    view = _whole(lowered, operand.view.value) if moved else operand.view
                    ranges.append(_range(lowered, view, None if moved else strides))
        case Product(terms=terms):
            ranges = [_range(lowered, term.rows, None) for term in terms if term.rows.value in lowered.taken]
        case Interpreted(args=args):
            views = [lowered.views[arg] for arg in args]
            ranges = [_range(lowered, view, None) for view in views if view.value in lowered.taken]
    return [found for found in ranges if found is not None]


def writes_over(lowered: Lowered, value: int) -> bool:
    """Return whether a value overwrites another one."""
    own = _range(lowered, _whole(lowered, value), None)
    others = (_range(lowered, _whole(lowered, taken), None) for taken in lowered.taken)
    return own is not None and any(other is not None and own.meets(other) for other in others)


def overwritings(lowered: Lowered, statements: Sequence[Statement]) -> dict[int, dict[int, bool]]:
    """Return, for each statement that overwrites a value, its earlier readers, and whether both can share a nest."""
    found: defaultdict[int, dict[int, bool]] = defaultdict(dict)
    if not lowered.taken:
        return found
    readers: list[tuple[int, Range]] = []
    for k, statement in enumerate(statements):
        target = written(lowered, statement)
        for reader, columns in readers if target is not None else ():
            if target is not None and columns.meets(target):
                alike = columns == target and target.strides is not None
                found[k][reader] = alike and found[k].get(reader, True)
        readers += [(k, columns) for columns in read_of_taken(lowered, statement)]
    return found


def _range(lowered: Lowered, view: View, strides: tuple[int, ...] | None) -> Range | None:
    view = view.within(lowered.aliases)
    location = lowered.locations.get(view.value)
    if location is None or location.area is not Area.SAVED or not view.size:
        return None
    first, end = view.bounds
    return Range(location.domain, location.column + first, location.column + end, strides)


def _whole(lowered: Lowered, value: int) -> View:
    size = lowered.sizes[value]
    return View(value, 0, (size,), steps((size,)))
