"""Handles: what the user's program holds in place of a node's outputs while it is recorded.

A handle is a small immutable object with a number, `ref = id << 8 | output`, or a tuple of such. Making one costs more
than the rest of a recorded call, so each call form has a `Pool` that hands them out and takes them back once enough
have been used and nobody holds them any more, by their reference counts. A handle that somebody still holds is never
handed out again, so a value kept from an earlier recording is told by its id. All handles of a `Kind` have one
structure of shapes.
"""

from __future__ import annotations

import gc
import operator
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Protocol

from autobatch.errors import GraphError
from autobatch.ir.arguments import Key, Static
from autobatch.ir.typetable import NodeType
from autobatch.ops.define import Op, Shape
from autobatch.ops.operators import STAGE, Symbol

OUTPUT_BITS = 8
MAX_OUTPUTS = 2**OUTPUT_BITS  # values that a node can return
CHUNK = 64  # by which pools grow in the end
RECYCLE = 2048  # ints logged before handles are taken back: few enough handles to stay in cache


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

    __slots__ = ()
    kind: Kind


class Kind:
    """The handles for one structure of outputs.

    Attributes:
        handles: the registry that the kind belongs to, which numbers handles.
        structure: a value key, or a tuple key of such.
        cls: the class of the handles; generated code knows them by it.
    """

    def __init__(self, handles: Handles, number: int, structure: Key) -> None:
        self.handles, self.number, self.structure = handles, number, structure
        self.is_bundle = structure.kind == "tuple"
        base, detail = (Bundle, {}) if self.is_bundle else (Value, {"shape": structure.detail})
        self.cls: Any = type(base.__name__, (base,), {**detail, "kind": self, "__slots__": ()})

    def make(self, ref: int) -> Any:
        """Make a handle."""
        if not self.is_bundle:
            return self.cls(ref)
        return self.cls(_make_parts(self.handles, self.structure, iter(range(ref, ref + MAX_OUTPUTS))))


class Pool:
    """The handles that one call form gives out.

    Attributes:
        handles: to give out; parts: the values and tuples in bundles, as many for each.
        idle: the reference counts of a handle, and of a part, that nobody holds.
    """

    def __init__(self, kind: Kind, form: int) -> None:
        self.kind, self.form = kind, form
        self.handles: list[Any] = []
        self.parts: list[Any] = []
        self.idle = (0, 0)
        self._restart(0)

    @property
    def used(self) -> int:
        """Handles taken since the pool was last recycled."""
        return len(self.handles) - operator.length_hint(self._iterator)

    def grow(self) -> Any:
        """Add a chunk of handles and take the first of them."""
        start = len(self.handles)
        for place in range(start, start + min(max(start, 8), CHUNK)):
            self._put(place)
        if not start:
            own, inner = (list(map(sys.getrefcount, objects)) for objects in (self.handles, self.parts))
            self.idle = (min(own), min(inner, default=0))
        self._restart(start)
        return next(self._iterator)

    def recycle(self) -> None:
        """Start again from the first handle, replacing those that somebody still holds."""
        if self.used:
            for place in self._held():
                self._put(place)
            self._restart(0)

    def _held(self) -> set[int]:
        """The places of the used handles that somebody holds, as a whole or in part.

        Mostly none, and then two sums tell: no count can be below that of an idle handle or part.
        """
        used, width = self.used, len(self.parts) // len(self.handles)
        own, inner = islice(self.handles, used), islice(self.parts, used * width)
        least = self.idle[0] * used, self.idle[1] * used * width
        if (sum(map(sys.getrefcount, own)), sum(map(sys.getrefcount, inner))) == least:
            return set()
        held = {place for place in range(used) if sys.getrefcount(self.handles[place]) > self.idle[0]}
        return held.union(k // width for k in range(used * width) if sys.getrefcount(self.parts[k]) > self.idle[1])

    def _put(self, place: int) -> None:
        """Put a new handle at this place of the pool."""
        handle = self.kind.make(self.kind.handles.new_id(self.form) << OUTPUT_BITS)
        parts = _parts_in(handle) if self.kind.is_bundle else []
        self.parts[place * len(parts) : (place + 1) * len(parts)] = parts
        self.handles[place : place + 1] = [handle]

    def _restart(self, place: int) -> None:
        self._iterator: Iterator[Any] = iter(self.handles)
        self._iterator.__setstate__(place)  # type: ignore[attr-defined]
        self.kind.handles.namespace[f"pool_{self.form}"] = self._iterator


def _make_parts(handles: Handles, key: Key, refs: Iterator[int]) -> Iterator[Any]:
    """What a bundle of this structure holds: values, and tuples of them."""
    for child in key.children:
        if child.kind == "value":
            yield handles.kind(child).cls(next(refs))
        else:
            yield tuple(_make_parts(handles, child, refs))


def path_of_ref(structure: Key) -> str:
    """Where the ref of a whole handle of this structure is found, as Python: in a bundle, at the first value."""
    paths = [("", structure)]
    while paths[0][1].kind != "value":
        path, outer = paths.pop(0)
        paths = [*((f"{path}[{i}]", part) for i, part in enumerate(outer.children)), *paths]
    return f"{paths[0][0]}.ref"


def _parts_in(bundle: tuple[Any, ...]) -> list[Any]:
    """Every value and tuple in a bundle."""
    inner = [part for child in bundle if type(child) is tuple for part in _parts_in(child)]
    return [*inner, *bundle]


class Handles:
    """All handles of one recording.

    Attributes:
        recording: records the ops that the handles meet outside cells.
        namespace: the globals of the generated functions, told the kinds of handles, and each form's pool.
        form_of: for each handle made so far, by id, the form that gives it out.
        classes: of the handles.
    """

    def __init__(self, recording: Recording, namespace: dict[str, Any]) -> None:
        self.recording, self.namespace = recording, namespace
        self.form_of: list[int] = []
        self.classes: set[type] = set()
        self._kinds: dict[Key, Kind] = {}
        self._pools: list[Pool] = []

    def new_id(self, form: int) -> int:
        """A number that no handle has had, for one that this form gives out."""
        self.form_of.append(form)
        return len(self.form_of) - 1

    def recycle(self) -> None:
        """Take back handles that nobody holds, between instances.

        A recursive inner function is a cycle, so what it held waits for the garbage collector: a young collection
        frees the programs of the last instances, and what is held after it is really held.
        """
        gc.collect(1)
        for pool in self._pools:
            pool.recycle()

    def add_pool(self, kind: Kind, form: int) -> None:
        """Let a form give out handles of this kind."""
        pool = Pool(kind, form)
        self._pools.append(pool)
        self.namespace[f"grow_{form}"] = pool.grow

    def kind(self, structure: Key) -> Kind:
        """The handles for outputs of this structure."""
        if structure not in self._kinds:
            kind = self._kinds[structure] = Kind(self, len(self._kinds), structure)
            self.namespace[f"Kind_{kind.number}"] = kind.cls
            self.classes.add(kind.cls)
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
