"""Handles: what the user's program holds in place of a node's outputs while it is recorded.

A handle is a small immutable object with a number, `ref = id << 8 | output`. Making one costs more than the rest
of a recorded call, so each `Kind` (one structure of output shapes) hands out pooled ones and takes them back
once enough have been used and nobody holds them any more, by their reference counts. A handle that somebody
still holds is never handed out again, so a value kept from an earlier recording is told by its id.
"""

from __future__ import annotations

import gc
import operator
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Protocol

from autobatch.arguments import Key, Static
from autobatch.errors import GraphError
from autobatch.ops.define import Op, Shape
from autobatch.ops.operators import STAGE, Symbol
from autobatch.typetable import NodeType

OUTPUT_BITS = 8
MAX_OUTPUTS = 2**OUTPUT_BITS  # values that a node can return
CHUNK = 64
RECYCLE = 512  # handles of a kind in use before they are taken back: few enough to stay in cache (8192: a fifth slower)


class Recording(Protocol):
    """What records the ops that handles meet outside cells."""

    def apply(self, op: Op, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """Record one op as a cell of its own."""

    def apply_function(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a function made of ops as a cell of its own."""


class Value(Symbol):
    """One output of a recorded node. Subclasses, one per shape, belong to one recorder."""

    __slots__ = ("ref",)
    shape: Shape
    kind: Kind

    def __init__(self, ref: int) -> None:
        self.ref = ref

    def apply(self, op: Op, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """Record an op outside any cell, as a cell of its own."""
        return self._current().apply(op, args, static)

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a function made of ops as a cell of its own."""
        return self._current().apply_function(function, args, kwargs)

    def _current(self) -> Recording:
        recording: Recording = self.kind.handles.recording
        active = STAGE.current is recording
        if not active:
            raise GraphError(
                f"{self!r} is used outside the recording that made it; a recorded value means something only while "
                f"its instance is recorded. Return it from the function to get its number."
            )
        return recording

    def __repr__(self) -> str:
        return f"<recorded value of shape {self.shape}>"


class Bundle(tuple[Any, ...]):
    """The outputs of a recorded node that returns a tuple. Subclasses, one per structure, belong to one recorder."""

    ref: int
    kind: Kind


class Kind:
    """The pool of handles for one structure of outputs.

    Attributes:
        handles: the registry that the kind belongs to, which numbers handles.
        structure: a value key, or a tuple key of such.
        cls: the class of the handles; generated code knows them by it.
        pool: the handles to give out; parts: the values and tuples in bundles, as many for each.
        idle: the reference counts of a handle, and of a part, that nobody holds.
    """

    def __init__(self, handles: Handles, number: int, structure: Key) -> None:
        self.handles, self.number, self.structure = handles, number, structure
        self.is_bundle = structure.kind == "tuple"
        base, detail = (Bundle, {}) if self.is_bundle else (Value, {"shape": structure.detail, "__slots__": ()})
        self.cls: Any = type(base.__name__, (base,), {**detail, "kind": self})
        self.pool: list[Any] = []
        self.parts: list[Any] = []
        self.idle = (0, 0)
        self._restart(0)

    @property
    def used(self) -> int:
        """Handles taken since the pool was last recycled."""
        return len(self.pool) - operator.length_hint(self._iterator)

    def grow(self) -> Any:
        """Add a chunk of handles and take the first of them."""
        start = len(self.pool)
        for place in range(start, start + CHUNK):
            self._put(place, self._make())
        if not start:
            own, inner = (list(map(sys.getrefcount, objects)) for objects in (self.pool, self.parts))
            self.idle = (min(own), min(inner, default=0))
        self._restart(start)
        return next(self._iterator)

    def recycle(self) -> None:
        """Start again from the first handle if many are used, replacing those that somebody still holds.

        A recursive inner function is a cycle, so what it held waits for the garbage collector: a young collection
        frees the programs of the last instances, and what is held after it is really held.
        """
        if self.used >= RECYCLE:
            gc.collect(1)
            for place in self._held():
                self._put(place, self._make())
            self._restart(0)

    def _held(self) -> set[int]:
        """The places of the used handles that somebody holds, as a whole or in part.

        Mostly none, and then two sums tell: no count can be below that of an idle handle or part.
        """
        used, width = self.used, len(self.parts) // len(self.pool)
        own = list(map(sys.getrefcount, islice(self.pool, used)))
        inner = list(map(sys.getrefcount, islice(self.parts, used * width)))
        if sum(own) == self.idle[0] * len(own) and sum(inner) == self.idle[1] * len(inner):
            return set()
        held = {place for place, count in enumerate(own) if count > self.idle[0]}
        return held.union(k // width for k, count in enumerate(inner) if count > self.idle[1])

    def _put(self, place: int, handle: Any) -> None:
        """Put a handle at this place of the pool."""
        parts = self._parts_of(handle)
        self.parts[place * len(parts) : (place + 1) * len(parts)] = parts
        self.pool[place : place + 1] = [handle]

    def _make(self) -> Any:
        """Make a handle, with a new id."""
        ref = self.handles.new_id() << OUTPUT_BITS
        if not self.is_bundle:
            return self.cls(ref)
        bundle = self.cls(_make_parts(self.handles, self.structure, iter(range(ref, ref + MAX_OUTPUTS))))
        bundle.ref = ref
        return bundle

    def _parts_of(self, handle: Any) -> list[Any]:
        return _parts_in(handle) if self.is_bundle else []

    def _restart(self, place: int) -> None:
        self._iterator: Iterator[Any] = iter(self.pool)
        self._iterator.__setstate__(place)  # type: ignore[attr-defined]
        self.handles.namespace[f"take_{self.number}"] = self._iterator.__next__


def _make_parts(handles: Handles, key: Key, refs: Iterator[int]) -> Iterator[Any]:
    """What a bundle of this structure holds: values, and tuples of them."""
    for child in key.children:
        if child.kind == "value":
            yield handles.kind(child).cls(next(refs))
        else:
            yield tuple(_make_parts(handles, child, refs))


def _parts_in(bundle: tuple[Any, ...]) -> list[Any]:
    """Every value and tuple in a bundle."""
    inner = [part for child in bundle if type(child) is tuple for part in _parts_in(child)]
    return [*inner, *bundle]


class Handles:
    """All kinds of handles of one recording.

    Attributes:
        recording: records the ops that the handles meet outside cells.
        namespace: the globals of the generated functions, told what takes and grows the handles of each kind.
        n_ids: handles made so far.
    """

    def __init__(self, recording: Recording, namespace: dict[str, Any]) -> None:
        self.recording, self.namespace = recording, namespace
        self.n_ids = 0
        self._kinds: dict[Key, Kind] = {}

    def new_id(self) -> int:
        """A number that no handle has had."""
        self.n_ids += 1
        return self.n_ids - 1

    def recycle(self) -> None:
        """Take back handles that nobody holds, between instances."""
        for kind in self._kinds.values():
            kind.recycle()

    def kind(self, structure: Key) -> Kind:
        """The handles for outputs of this structure."""
        if structure not in self._kinds:
            kind = self._kinds[structure] = Kind(self, len(self._kinds), structure)
            self.namespace[f"Kind_{kind.number}"] = kind.cls
            self.namespace[f"grow_{kind.number}"] = kind.grow
        return self._kinds[structure]

    def kind_of(self, handle: Value | Bundle) -> Kind:
        """The kind of a handle of this recording; GraphError if another one made it."""
        if handle.kind.handles is not self:
            raise GraphError("a value from another recording is used here; a recorded value belongs to one function.")
        return handle.kind

    def of_type(self, node_type: NodeType) -> tuple[Kind, Callable[[Any], Any] | None]:
        """The handles of a type's outputs and, unless these are plain tuples, what puts them together."""
        program, structure = node_type.program, node_type.structure
        if len(program.outputs) > MAX_OUTPUTS:
            raise GraphError(
                f"cell {node_type.name!r} returns {len(program.outputs)} values, but a node has {MAX_OUTPUTS} at most; "
                f"return fewer, such as one array to slice."
            )
        shapes = [Key("value", program.vars[o].shape) for o in program.outputs]
        plain = _plain_key(structure, shapes)
        if plain is not None:
            return self.kind(plain), None
        return self.kind(Key("tuple", None, tuple(shapes))), lambda outputs: _put_together(structure, outputs)


def _plain_key(structure: Any, shapes: list[Key]) -> Key | None:
    """The key of a structure of outputs made of plain tuples only."""
    if isinstance(structure, int):
        return shapes[structure]
    if not isinstance(structure, tuple):
        return None
    children = [_plain_key(part, shapes) for part in structure]
    return None if None in children else Key("tuple", None, tuple(c for c in children if c is not None))


def _put_together(structure: Any, outputs: tuple[Value, ...]) -> Any:
    """What the cell returned, with recorded values in place of output numbers."""
    if isinstance(structure, int):
        return outputs[structure]
    if isinstance(structure, Static):
        return structure.value
    if isinstance(structure, tuple):
        return tuple(_put_together(part, outputs) for part in structure)
    return structure.build([_put_together(part, outputs) for part in structure.children])
