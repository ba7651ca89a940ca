"""Results of batched functions as tensors.

At each place of a result, an instance may return a computed value, a value with any number of rows, or an unrecorded
tensor such as a constant. If those of all instances have the same shape and dtype they are stacked; otherwise the
result is a list with one tensor per instance.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autobatch.ir.arguments import Static
from autobatch.torch.memory import to_tensor
from autobatch.trace.results import Slot, check_outlines, per_instance, stack_constants


def stack_tensors(structures: Sequence[Any], columns: Sequence[Any]) -> Any:
    """Combine the results of all instances into one structure of tensors; lists stay per instance.

    Args:
        structures: the structure of each instance, see `autobatch.trace.results.read_result`.
        columns: for each slot, its rows in the order of instances.
    """
    are_same = all(map(operator.is_, structures, repeat(structures[0])))
    return _stack(structures, are_same, list(map(to_tensors, columns)), rest={})


def to_tensors(x: Any) -> Any:
    """Convert the arrays in a structure of results to tensors."""
    if hasattr(x, "__dlpack__") and not isinstance(x, Tensor):
        return to_tensor(x)
    if isinstance(x, (list, tuple)):
        parts: Sequence[Any] = [to_tensors(part) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    return {key: to_tensors(part) for key, part in x.items()} if isinstance(x, dict) else x


def _stack(structures: Sequence[Any], are_same: bool, columns: Sequence[Any], rest: dict[int, Any]) -> Any:
    """Stack the results of the instances at one place; `rest` holds the remaining rows by slot."""
    first = structures[0]
    if are_same and type(first) is Slot:
        return columns[first.number]
    if any(map(_is_tensor, structures)) and all(_is_tensor(s) or _is_number(s) for s in structures):
        return _join([per_instance(structure, columns, rest) for structure in structures])
    if not are_same:
        check_outlines(structures)
    if type(first) is Static:
        return to_tensors(stack_constants([s.value for s in structures]))
    if first.kind == "list":
        return [to_tensors(per_instance(s, columns, rest)) for s in structures]
    parts = zip(*[s.children for s in structures], strict=True)
    return first.build([_stack(children, are_same, columns, rest) for children in parts])


def _is_tensor(structure: Any) -> bool:
    """Return whether an instance has one tensor at a place."""
    if type(structure) is Static:
        return isinstance(structure.value, Tensor)
    return type(structure) is Slot or structure.kind == "rows"


def _is_number(structure: Any) -> bool:
    return type(structure) is Static and isinstance(structure.value, (int, float, np.number))


def _join(found: list[Any]) -> Any:
    """Stack tensors of one shape and dtype; convert numbers, such as the 0 of an empty sum, to their dtype."""
    like: Tensor = next(x for x in found if isinstance(x, Tensor))
    tensors = [x if isinstance(x, Tensor) else like.new_tensor(x) for x in found]
    kinds = {(x.shape, x.dtype, x.device) for x in tensors}
    return torch.stack(tensors) if len(kinds) == 1 else tensors
