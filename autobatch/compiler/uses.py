"""Find the statements that make and read the elements of a value, even if it is made in parts or is a part itself.

Joins and loop splitting let statements make values in place, as parts of others (`Lowered.parts`). A statement that
makes a part makes elements of the whole, and a reader of one of the two reads elements of the other. All passes look up
uses here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from autobatch.compiler.lowered import STORED, Lowered
from autobatch.compiler.statement import Loop, Operand, Statement


class Uses:
    """The uses of the values of a stage, as positions in a sequence of statements.

    Attributes:
        made: the values that are targets of statements, in order, and these statements.
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
