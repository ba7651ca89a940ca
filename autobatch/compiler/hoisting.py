"""Hoist products out of the batches of a stage, to run once for all rows of a type, because larger products are faster.

*Before* the batches, products run whose rows depend on the node's data alone, such as word embeddings times their
weights; the other products of a sum add to the result later, per batch. *After* the batches, products run that nothing
in the stage reads, such as the gradients of embeddings, which are needed only for the gradients of parameters.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from autobatch.compiler.lowered import STORED, Area, Lowered
from autobatch.compiler.statement import EdgeCount, Loop, Product, Statement
from autobatch.compiler.uses import Uses, target_of, writes_over
from autobatch.ir.program import NODE, SHARED

DATA = (Area.INTS, Area.FLOATS)
# Batches may overwrite columns of residuals (buffer reuse), but only those that no product reads.
ROWS_THAT_STAY = (Area.SAVED, Area.INPUTS)


class Parts(NamedTuple):
    """The statements of a stage, divided by the time at which they run."""

    before: list[Statement]
    per_batch: list[Statement]
    after: list[Statement]


def hoist(lowered: Lowered) -> Parts:
    """Divide the statements of a stage into those before, in and after the batches. Cost: linear in the statements."""
    uses = Uses(lowered, lowered.statements)
    after = [s for s in lowered.statements if _can_wait(lowered, uses, s)]
    rest = [s for s in lowered.statements if s not in after]
    known = _known_from_data(lowered, rest)
    before: list[Statement] = []
    per_batch: list[Statement] = []
    for statement in rest:
        early = [t for t in statement.terms if t.rows.value in known] if isinstance(statement, Product) else []
        if not early or not isinstance(statement, Product) or not _can_be_early(lowered, statement.target):
            per_batch.append(statement)
            continue
        before.append(replace(statement, terms=tuple(early)))
        late = tuple(term for term in statement.terms if term.rows.value not in known)
        if late:
            per_batch.append(replace(statement, terms=late, adds=True))
    needed = _made_for(lowered, before, rest)
    return Parts([*needed, *before], [s for s in per_batch if s not in needed], after)


def _known_from_data(lowered: Lowered, statements: list[Statement]) -> set[int]:
    """Return the values, one per node, that loops compute from data and from values shared by all rows."""
    uses = Uses(lowered, statements)
    known: set[int] = set()
    for statement in statements:
        value = target_of(statement)
        if value == STORED or value in known or not _can_be_early(lowered, value):
            continue
        makers = [statements[k] for k in uses.makers(value)]
        if all(isinstance(m, Loop) and m.domain == NODE and _reads_known(lowered, m, known) for m in makers):
            known.add(value)
    return known


def _reads_known(lowered: Lowered, loop: Loop, known: set[int]) -> bool:
    """Return whether a loop reads only data, values shared by all rows, and values computed from these."""
    if not loop.operands or loop.reads(EdgeCount):
        return False
    for operand in loop.operands:
        value = operand.view.value
        location = lowered.locations.get(value)
        is_shared = lowered.domains[value] == SHARED
        if not (is_shared or value in known or (location is not None and location.area in DATA)):
            return False
    return True


def _can_be_early(lowered: Lowered, value: int) -> bool:
    """Return whether a value may be made before the batches, because no other value ever uses its place."""
    return _is_kept_apart(lowered, value) and not writes_over(lowered, value)


def _is_kept_apart(lowered: Lowered, value: int) -> bool:
    """Return whether a value has a row per node, in residuals or scratch, and only its own statements make it."""
    location = lowered.locations.get(value)
    alone = value not in lowered.aliases and not lowered.parts.get(value)
    return alone and lowered.domains[value] == NODE and (location is None or location.area is Area.SAVED)


def _made_for(lowered: Lowered, before: list[Statement], statements: list[Statement]) -> list[Statement]:
    """Return the loops that make the values which the statements `before` read, directly or not, in order."""
    wanted = {value for statement in before for value in lowered.values_read(statement)}
    found: list[Statement] = []
    for statement in reversed(statements):
        if isinstance(statement, Loop) and statement.target.value in wanted:
            found.insert(0, statement)
            wanted |= lowered.values_read(statement)
    return found


def _can_wait(lowered: Lowered, uses: Uses, statement: Statement) -> bool:
    """Return whether a backward product can run after all batches.

    This requires that its result is a residual that nothing in the stage reads, and that its rows stay unchanged.
    """
    if not isinstance(statement, Product) or statement.domain != NODE or lowered.stage != "backward":
        return False
    location = lowered.locations.get(statement.target)
    if location is None or location.area is not Area.SAVED or not _is_kept_apart(lowered, statement.target):
        return False
    rows = [lowered.locations.get(term.rows.value) for term in statement.terms]
    return not uses.readers(statement.target) and all(r is not None and r.area in ROWS_THAT_STAY for r in rows)
