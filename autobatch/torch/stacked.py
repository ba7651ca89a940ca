"""Results of `torch.stack`: values whose rows are recorded values, so stacking needs no node.

Reductions over the rows, single rows, slices, results of the program and awaited values read the rows directly. All
other uses join the rows first, by one node of `torch.stack`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from autobatch import ops
from autobatch.ir.arguments import Key
from autobatch.ops.operators import STAGE
from autobatch.torch import aten
from autobatch.torch.cells import cell_of_function
from autobatch.trace.handles import Rows, Value

STACK = "stack"  # part of the key that distinguishes stacks from rows returned by autobatch cells
REDUCTIONS: dict[str, Callable[..., Any]] = {"sum": ops.sum_n, "mean": ops.mean_n, "amax": ops.max_n}


def stack_values(values: Sequence[Any], to_array: Callable[[Any], Any]) -> Rows | None:
    """Stack values along a new first axis; None if they differ in shape or dtype.

    Args:
        to_array: converts tensors among them.
    """
    stacked = _stack(values)
    return stacked if stacked is not None else _stack([STAGE.current.wrapping.wrap(to_array(x)) for x in values])


def _stack(values: Sequence[Any]) -> Rows | None:
    kind = type(values[0]) if values else None
    if kind is None or not issubclass(kind, Value) or issubclass(kind, Rows):
        return None
    rows = STAGE.current.handles.class_of(Key("rows", STACK, (kind.key,)))
    return cast("Rows | None", STAGE.current.log.stack(rows, [*values]))


def join_rows(rows: Rows) -> Any:
    """Record the rows as one value, which represents the stack from then on."""
    is_stack = rows.key.detail is STACK
    if is_stack and rows.whole is not None:
        return rows.whole
    if len(rows):
        whole = STAGE.current.call_cell(cell_of_function(torch.stack), None, ([*rows],), {})
    else:
        whole = STAGE.current.zeros(rows.shape)
    if is_stack:
        rows.whole = whole
    return whole


def reduce_rows(name: str, rows: Any, dim: Any = None, keepdim: bool = False, **options: Any) -> Any:
    """Reduce a stack over its rows without joining them; None if that is impossible."""
    reduce = REDUCTIONS.get(name)
    if reduce is None or keepdim or options or dim not in (None, 0, (0,), [0]) or not len(rows):
        return None
    if rows.dtype.is_complex or rows.row.key.dtype or rows.row.key.below:
        return None
    found = reduce([*rows])
    return aten.OPS[name].function(found) if dim is None and found.shape else found
