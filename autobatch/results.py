"""What a function returned, as a structure over output slots, and the way back from computed rows.

A *slot* is one place in the returned structure; all instances' values for it are stacked in one array, in instance
order. Outside lists every instance has exactly one value per slot. A list is of variable length, so its elements
share slots by shape and come back per instance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

from autobatch.arguments import Key, Static
from autobatch.errors import ShapeError
from autobatch.handles import Value
from autobatch.ops.define import Shape


@dataclass(frozen=True)
class Slot:
    """A leaf of a structure: the number of its slot."""

    number: int


@dataclass
class SlotTable:
    """The slots that one function has returned so far."""

    shapes: list[Shape] = field(default_factory=list)
    _numbers: dict[tuple[str, Shape | None], int] = field(default_factory=dict)

    def slot(self, path: str, shape: Shape, in_list: bool) -> Slot:
        """The slot at this place; ShapeError if it has had values of another shape (lists may mix shapes)."""
        key = (path, shape if in_list else None)
        number = self._numbers.setdefault(key, len(self.shapes))
        if number == len(self.shapes):
            self.shapes.append(shape)
        elif self.shapes[number] != shape:
            raise ShapeError(
                f"the function returned its {path} in shape {self.shapes[number]} for one instance and {shape} for "
                f"another; return it in a list to get it per instance."
            )
        return Slot(number)


def read_result(result: Any, slots: SlotTable, refs: list[int], numbers: list[int], path: str = "result") -> Any:
    """Append the handles in `result` to `refs` and their slots to `numbers`; return the structure."""
    if isinstance(result, Value):
        slot = slots.slot(path, result.shape, "[]" in path)
        refs.append(result.ref)
        numbers.append(slot.number)
        return slot
    if isinstance(result, list):
        return Key.of_structure(result, [read_result(r, slots, refs, numbers, f"{path}[]") for r in result])
    if isinstance(result, tuple):
        parts = [read_result(r, slots, refs, numbers, f"{path}[{i}]") for i, r in enumerate(result)]
        return Key.of_structure(result, parts)
    if isinstance(result, dict):
        return Key.of_structure(
            result, [read_result(r, slots, refs, numbers, f"{path} {k!r}") for k, r in result.items()]
        )
    if is_dataclass(result) and not isinstance(result, type):
        return Key.of_structure(
            result,
            [read_result(getattr(result, f.name), slots, refs, numbers, f"{path}.{f.name}") for f in fields(result)],
        )
    return Static(result)


def stack_results(structures: Sequence[Any], columns: Sequence[Any]) -> Any:
    """All instances' results as one structure of arrays `(B, ...)`; lists, and what is in them, per instance.

    Args:
        structures: per instance, from `read_result`.
        columns: per slot, its rows in instance order, as an array.
    """
    return _stack(list(structures), [iter(column) for column in columns], columns)


def _stack(structures: list[Any], rows: list[Iterator[Any]], columns: Sequence[Any]) -> Any:
    first = structures[0]
    if isinstance(first, Slot):
        return columns[first.number]
    if isinstance(first, Static):
        return _stack_constants([s.value if isinstance(s, Static) else s for s in structures])
    if first.kind == "list":
        return [_per_instance(s, rows) for s in structures]
    shapes = {(s.kind, s.detail, len(s.children)) if isinstance(s, Key) else s for s in structures}
    if len(shapes) > 1:
        raise ShapeError(
            "the function returned structures that differ between instances; return lists for what varies."
        )
    return first.build([_stack([s.children[i] for s in structures], rows, columns) for i in range(len(first.children))])


def _per_instance(structure: Any, rows: list[Iterator[Any]]) -> Any:
    if isinstance(structure, Slot):
        return next(rows[structure.number])
    if isinstance(structure, Static):
        return structure.value
    return structure.build([_per_instance(child, rows) for child in structure.children])


def _stack_constants(values: list[Any]) -> Any:
    """Numbers and arrays that the function returned without computing them, stacked; anything else as a list."""
    if all(isinstance(v, (int, float, np.ndarray, np.number)) for v in values):
        return np.stack([np.asarray(v) for v in values])
    return values
