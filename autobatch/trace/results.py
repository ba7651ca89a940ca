"""Results: recording of a function's result as a structure over output slots, and filling it with computed rows.

A *slot* is one place in the returned structure; all instances' values for it are stacked in one array, in instance
order. Outside lists, every instance has exactly one value per slot. A list has a variable length, so its elements share
slots by shape and come back per instance.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import islice, repeat
from typing import Any

import numpy as np

from autobatch.errors import GraphError, ShapeError
from autobatch.ir.arguments import Key, Static, is_structure, parts_of
from autobatch.ops.define import Shape
from autobatch.trace.awaiting import close
from autobatch.trace.handles import Rows, Value

NUMBERS = (int, float, bool)
REF = operator.attrgetter("ref")
INT = "int64"
MOST_PARTS = 1 << 16
"""Maximum number of parts of the structures that a cache keeps, which take about 1 MB."""


class Known(dict[Any, Any]):
    """A bounded cache of structures; it is emptied when they have too many parts in total."""

    n_parts = 0

    def keep(self, key: Any, found: Any, n_parts: int) -> bool:
        """Cache a result for a structure with this many parts; return whether all others were dropped."""
        self.n_parts += 1 + n_parts
        is_full = self.n_parts > MOST_PARTS
        if is_full:
            self.clear()
            self.n_parts = 1 + n_parts
        self[key] = found
        return is_full


@dataclass(frozen=True)
class Slot:
    """A leaf of a structure: a computed value.

    Attributes:
        number: number of the slot.
        path: the position of the value in the result.
        shape: shape of the value.
        dtype: the type of the numbers, which are stored as floats: "" for floats, "int64" for ints; see
            `autobatch.ir.program.dtype_of`.
    """

    number: int
    path: str
    shape: Shape
    dtype: str = ""


@dataclass
class SlotTable:
    """The slots of the results of one function so far.

    Attributes:
        shapes: the shape of the values of each slot.
        dtypes: the dtype of each slot.
        of_class: the slots met so far, by path and class of values.
    """

    shapes: list[Shape] = field(default_factory=list)
    of_class: dict[tuple[str, type[Value]], Slot] = field(default_factory=dict)
    dtypes: list[str] = field(default_factory=list)
    _slots: dict[tuple[str, Shape, str], Slot] = field(default_factory=dict)
    _structures: Known = field(default_factory=Known)
    _shared: set[int] = field(default_factory=set)

    def slot(self, path: str, shape: Shape, dtype: str) -> Slot:
        """Return the slot for values of this shape and kind at this path."""
        key = (path, shape, dtype)
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = Slot(len(self.shapes), *key)
            self.dtypes.append(dtype)
            self.shapes.append(shape)
            self._shared.add(id(slot))
        return slot

    def rows(self) -> list[tuple[str, Shape, str]]:
        """List the arguments of `slot` for all slots, in order of their numbers."""
        return [*self._slots]

    def numbered(self, number: int) -> Slot:
        return next(islice(self._slots.values(), number, None))

    def typed(self, columns: Sequence[Any]) -> list[Any]:
        """Convert the rows of all slots to the dtypes of the slots."""
        if not any(self.dtypes):
            return list(columns)
        return [x.astype(dtype) if dtype else x for x, dtype in zip(columns, self.dtypes, strict=False)]

    def list_of(self, slot: Slot, n: int) -> Key:
        """Return the structure of a list of n values of one slot."""
        found: Key | None = self._structures.get((slot.number, n))
        if found is None:
            found = self.share(Key("list", None, (slot,) * n))  # type: ignore[arg-type]
            self._structures[slot.number, n] = found
        return found

    def share(self, structure: Key) -> Key:
        """Return the same object for equal structures of slots only, so that they can be compared by identity."""
        children = tuple(map(id, structure.children))
        if not self._shared.issuperset(children):
            return structure
        key = (structure.kind, structure.detail, children)
        found: Key | None = self._structures.get(key)
        if found is None:
            found = structure
            if self._structures.keep(key, structure, len(children)):
                # The forgotten structures may be freed, and their ids reused.
                self._shared = {*map(id, self._slots.values())}
            self._shared.add(id(structure))
        return found


def read_result(result: Any, slots: SlotTable, refs: list[int], numbers: list[int], path: str = "result") -> Any:
    """Append the handles in `result` to `refs` and their slots to `numbers`; return the structure."""
    if type(result) in NUMBERS:
        return Static(result)
    if isinstance(result, Rows):
        slot = slots.slot(f"{path}[]", result.row.key.detail, _dtype_of(result.row))
        refs += result.refs
        numbers += [slot.number] * len(result)
        return Key("rows", len(result), (slot,))  # type: ignore[arg-type]
    if isinstance(result, Value):
        found = slots.of_class.get((path, type(result)))
        if found is None:
            found = slots.slot(path, result.key.detail, _dtype_of(result))
            slots.of_class[path, type(result)] = found
        refs.append(result.ref)
        numbers.append(found.number)
        return found
    if type(result) is tuple:  # the most frequent container
        children = [read_result(x, slots, refs, numbers, f"{path}[{i}]") for i, x in enumerate(result)]
        return slots.share(Key("tuple", None, tuple(children)))
    if not is_structure(result):
        _refuse_awaitable(result, path)
        return Static(result)
    if type(result) is list and len({*map(type, result)}) == 1:
        slot_of_all = slots.of_class.get((f"{path}[]", type(result[0])))
        if slot_of_all is not None:
            refs += map(REF, result)
            numbers += [slot_of_all.number] * len(result)
            return slots.list_of(slot_of_all, len(result))
    parts = zip(parts_of(result), _labels(result), strict=True)
    children = [
        Static(x) if type(x) in NUMBERS else read_result(x, slots, refs, numbers, path + label) for x, label in parts
    ]
    return slots.share(Key.of_structure(result, children))


def _dtype_of(value: Value | type[Value]) -> str:
    return INT if value.key.below else value.key.dtype


def _refuse_awaitable(result: Any, path: str) -> None:
    """Raise a GraphError for a coroutine or another object that should have been awaited."""
    if not hasattr(type(result), "__await__") and not hasattr(type(result), "__aiter__"):
        return
    close([result])
    raise GraphError(
        f"results of the function must be awaited, got {result!r} as its {path}; pass ab.batched an async function "
        f"that awaits it."
    )


def _labels(structure: Any) -> list[str]:
    """Return the names of a structure's parts in messages; the elements of a list share one name."""
    if isinstance(structure, dict):
        return [f" {key!r}" for key in structure]
    if is_dataclass(structure):
        return [f".{f.name}" for f in fields(structure)]
    return ["[]" if isinstance(structure, list) else f"[{i}]" for i in range(len(structure))]


def stack_results(structures: Sequence[Any], columns: Sequence[Any]) -> Any:
    """Return all instances' results as one structure of arrays `(B, ...)`; lists and their elements stay per instance.

    Args:
        structures: one per instance, from `read_result`.
        columns: for each slot, an array of its rows in instance order.
    """
    are_same = all(map(operator.is_, structures, repeat(structures[0])))
    return _stack(structures, are_same, columns, rest={})


def list_results(structures: Sequence[Any], columns: Sequence[Any]) -> list[Any]:
    """Return the results as a list, one per instance; arguments as for `stack_results`."""
    rest: dict[int, Any] = {}
    return [per_instance(structure, columns, rest) for structure in structures]


def _stack(structures: Sequence[Any], are_same: bool, columns: Sequence[Any], rest: dict[int, Any]) -> Any:
    """Stack the results at one place; `rest` holds, by slot, the rows that no list has taken yet."""
    first = structures[0]
    # With one structure for all instances, there is nothing to compare.
    if not are_same:
        check_outlines(structures)
    if type(first) is Slot:
        if not are_same:
            check_slots(structures)
        return columns[first.number]
    if type(first) is Static:
        return stack_constants([s.value for s in structures])
    if first.kind in ("list", "rows"):
        return [per_instance(s, columns, rest) for s in structures]
    parts = zip(*[s.children for s in structures], strict=True)
    return first.build([_stack(children, are_same, columns, rest) for children in parts])


def check_outlines(structures: Sequence[Any]) -> None:
    """Raise a ShapeError if the outermost levels of two structures differ."""
    first = _outline(structures[0])
    for i, structure in enumerate(structures):
        if _outline(structure) != first:
            raise ShapeError(
                f"the function must return equal structures for all instances, got {first} for instance 0 and "
                f"{_outline(structure)} for instance {i}; return parts that vary in lists."
            )


def check_slots(slots: Sequence[Slot]) -> None:
    """Raise a ShapeError if values to be stacked differ in shape or kind."""
    first = slots[0]
    for slot in slots:
        if slot.number != first.number:
            one, other = (f"shape {x.shape}{f' of {x.dtype}' if x.dtype else ''}" for x in (first, slot))
            raise ShapeError(
                f"the function must return its {first.path} in one shape and type, got {one} for one instance "
                f"and {other.removeprefix('shape ')} for another; return it in a list to get it per instance."
            )


def _outline(structure: Any) -> str:
    """Describe the outermost level of a structure; equal for structures that can be stacked."""
    if isinstance(structure, Slot):
        return "a computed value"
    if isinstance(structure, Static):
        return "a constant"
    if structure.kind in ("list", "rows"):
        return "a list" if structure.kind == "list" else "a value of any number of rows"
    detail = structure.detail.__name__ if isinstance(structure.detail, type) else structure.detail
    return f"a {structure.kind} of {detail or len(structure.children)}"


def per_instance(structure: Any, columns: Sequence[Any], rest: dict[int, Any]) -> Any:
    """Return the result of one instance at a place; `rest` holds the remaining rows by slot."""
    if isinstance(structure, Slot):
        return _take(structure, 1, columns, rest)[0]
    if isinstance(structure, Static):
        return structure.value
    if structure.kind == "rows":
        return _take(structure.children[0], structure.detail, columns, rest)
    children = structure.children
    if (
        structure.kind == "list"
        and children
        and type(children[0]) is Slot
        and all(map(operator.is_, children, repeat(children[0])))
    ):
        return list(_take(children[0], len(children), columns, rest))
    return structure.build([x.value if type(x) is Static else per_instance(x, columns, rest) for x in children])


def _take(slot: Slot, n: int, columns: Sequence[Any], rest: dict[int, Any]) -> Any:
    """Take the next `n` rows of a slot from `rest`."""
    left = rest.get(slot.number)
    left = columns[slot.number] if left is None else left
    rest[slot.number] = left[n:]
    return left[:n]


def stack_constants(values: list[Any]) -> Any:
    """Stack unrecorded numbers and arrays from results; anything else stays a list."""
    if all(isinstance(v, (int, float, np.ndarray, np.number)) for v in values):
        shapes = list(dict.fromkeys(np.shape(v) for v in values))
        if len(shapes) > 1:
            raise ShapeError(
                f"the function must return an array in one shape, got {shapes[0]} for one instance and {shapes[1]} for "
                f"another; return it in a list to get it per instance."
            )
        return np.stack([np.asarray(v) for v in values])
    return values
