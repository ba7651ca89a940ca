"""Concatenations without copies: find the parts, of values or of gradients, that are computed in place.

A part that is computed at its place in the join needs no copy. Neither does a part that lies in the inputs if the join
lies there around it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autobatch.ir.layout import Index, Join, Place
from autobatch.ir.program import Incoming, Instruction, Port, Var
from autobatch.memplan.cell.inputs import Columns
from autobatch.memplan.cell.memory import Read, reads_of
from autobatch.ops.define import Op
from autobatch.ops.shaping import assemble


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
