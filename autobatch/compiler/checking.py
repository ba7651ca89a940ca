"""Check a compiled stage from its definition: every value is made once, and before it is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from autobatch.compiler.assignment import Storage
from autobatch.compiler.fusion import Kernel, Step, is_made_at_once
from autobatch.compiler.lowered import STORED, Area, Lowered
from autobatch.compiler.neighbours import Neighbours
from autobatch.compiler.printing import name_of, show_statements
from autobatch.compiler.statement import Interpreted, Loop, Product, Statement
from autobatch.compiler.uses import Range, Uses, overwritings, read_of_taken, target_of, written
from autobatch.compiler.view import View
from autobatch.errors import PlanError
from autobatch.ir.program import SHARED, Incoming, Instruction


def check_statements(lowered: Lowered, statements: Sequence[Statement]) -> None:
    """Check that statements read only values that are known or were made before, and only elements that exist.

    Args:
        lowered: the stage.
        statements: all statements of the stage, in the order in which they run.

    Raises:
        PlanError: names the first statement that violates this.
    """
    made: set[int] = set()
    gone: list[Range] = []
    uses = Uses(lowered, statements)
    for k, statement in enumerate(statements):
        if any(columns.meets(other) for columns in read_of_taken(lowered, statement) for other in gone):
            raise _broken(lowered, statement, "an overwritten value is read")
        gone += [columns] if lowered.taken and (columns := written(lowered, statement)) is not None else []
        for value in lowered.values_read(statement):
            if not _is_known(lowered, value, made):
                raise _broken(lowered, statement, f"%{value} is neither known nor made before")
            # Lists are compared, because a known value may have no makers.
            if uses.makers(value)[-1:] > [k]:
                raise _broken(lowered, statement, f"%{value} is read before all of it is made")
        for view in _views(statement):
            _check_inside(lowered, statement, view)
        made.add(target_of(statement))


def check_steps(lowered: Lowered, statements: Sequence[Statement], steps: Sequence[Step]) -> None:
    """Check that steps run each statement once and after those that it needs, and that loops in a nest may share it.

    Raises:
        PlanError: names the first statement that violates this.
    """
    neighbours = Neighbours(lowered, steps)
    if Counter(map(id, neighbours.statements)) != Counter(map(id, statements)):
        raise PlanError(
            f"checking {lowered.name!r}: its steps must run every statement once; this is a bug in autobatch; please "
            f"report it."
        )
    check_statements(lowered, neighbours.statements)
    for step in steps:
        for block in step.blocks if isinstance(step, Kernel) else ():
            for loop in block.loops:
                if (loop.domain, loop.axes) != (block.domain, block.axes):
                    raise _broken(lowered, loop, "its block runs over other rows or axes")
    for reader, makers in enumerate(neighbours.read):
        for maker in makers:
            if neighbours.place[maker] == neighbours.place[reader]:
                _check_in_step(neighbours, maker, reader)
    for writer, readers in overwritings(lowered, neighbours.statements).items():
        for reader, alike in readers.items():
            if neighbours.place[reader] == neighbours.place[writer] and not alike:
                raise _broken(lowered, neighbours.statements[writer], "other elements are overwritten than are read")


def check_storage(lowered: Lowered, steps: Sequence[Step], storage: Storage) -> None:
    """Check that a value which is read outside the loop nest that makes it is in memory, or is one number per node.

    Also check that memory that rows of a kernel use in turn holds only values that no other step reads.

    Raises:
        PlanError: names the first value that violates this.
    """
    neighbours = Neighbours(lowered, steps)
    for maker, reader, *_ in neighbours.apart():
        value = target_of(neighbours.statements[maker])
        here, there = neighbours.place[maker], neighbours.place[reader]
        if storage.has_memory(value):
            location, _ = storage.locate(View(value, 0, (), ()))
            if location.area is Area.ROW and here.step != there.step:
                raise _broken(lowered, neighbours.statements[reader], f"%{value} lies in memory that each row reuses")
        elif lowered.sizes[value] > 1 or here.step != there.step:
            raise _broken(lowered, neighbours.statements[reader], f"%{value} has no memory")


def _check_in_step(neighbours: Neighbours, maker: int, reader: int) -> None:
    made, reads = neighbours.statements[maker], neighbours.statements[reader]
    assert isinstance(made, Loop)
    assert isinstance(reads, Loop)
    value = made.target.value
    in_step = all(
        o.view.value == value and o.moved is None and o.view.is_whole(made.size)
        for o in neighbours.uses.operands(reads, value)
    )
    right = in_step and is_made_at_once(neighbours.lowered, made)
    if maker > reader or not right:
        raise _broken(neighbours.lowered, reads, f"{name_of(made)} is read before it is made, in one loop nest")


def _is_known(lowered: Lowered, value: int, made: set[int]) -> bool:
    if value in made or any(_is_known(lowered, part, made) for part in lowered.parts.get(value, ())):
        return True
    location = lowered.locations.get(value)
    if location is not None and location.area in (Area.GATHER, Area.INTS, Area.FLOATS):
        return True
    if lowered.domains[value] == SHARED:
        return True
    if value >= len(lowered.vars):
        return False
    source = lowered.vars[value].source
    if isinstance(source, Instruction):  # backward can read what forward left in memory
        return lowered.stage == "backward" and location is not None and location.area in (Area.SAVED, Area.INPUTS)
    return not isinstance(source, Incoming)


def _views(statement: Statement) -> list[View]:
    match statement:
        case Loop(target=target):
            own = [] if target.value == STORED else [target]
            return [*own, *(operand.view for operand in statement.operands if operand.moved is None)]
        case Product(terms=terms):
            return [term.rows for term in terms]
        case Interpreted():
            return []


def _check_inside(lowered: Lowered, statement: Statement, view: View) -> None:
    first, end = view.bounds
    if view.size and (first < 0 or end > lowered.sizes[view.value]):
        raise _broken(
            lowered, statement, f"it accesses elements {first} to {end - 1} of %{view.value}, which has fewer"
        )


def _broken(lowered: Lowered, statement: Statement, claim: str) -> PlanError:
    (line,) = show_statements(lowered, [statement])
    return PlanError(
        f"checking the {lowered.stage} stage of {lowered.name!r}: in the line {line!r} {claim}; this is a bug in "
        f"autobatch; please report it."
    )
