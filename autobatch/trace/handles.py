"""Handles: the objects that stand for a node's outputs while the user's program is recorded.

Each output is a `Value` with a number, `ref = id << 8 | output`; a node with several returns tuples of values. An
output of any number of rows is a `Rows`, which has a number for each, with the row in the upper bits. Making
new handles for every call would add half to the time of recording. Each call form therefore has a `HandlePool`,
and reuses the handles that are not referenced any more, which their reference counts show. A handle still referenced
is never reused, so a value kept from an earlier recording is recognised by its id.
"""

from __future__ import annotations

import gc
import operator
import sys
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, compress, islice, takewhile
from typing import Any, Protocol

import numpy as np

from autobatch.errors import DataError, GraphError, ShapeError
from autobatch.graph.words import MOST_OUTPUTS, MOST_ROWS, OUTPUT_BITS
from autobatch.ir.arguments import Key, put_together
from autobatch.ir.program import Var, dtype_of, int_limit
from autobatch.ir.typetable import NodeType
from autobatch.ops.conditions import Logic
from autobatch.ops.define import Op, Shape
from autobatch.ops.operators import OPS, STAGE

ROW_BIT = 40  # of a ref: from here on it numbers the row
CHUNK = 64  # most handles by which a pool grows at once
LARGE = 1024  # handles per form that are always kept
RECORDINGS = 4  # handles that were unused in this many recordings are dropped
RECYCLE = 2048  # ints logged before handles are taken back: few enough handles to stay in cache

if "t" in getattr(sys, "abiflags", ""):
    raise ImportError(
        "autobatch needs a regular build of Python, and this one is free-threaded: reference counts show which "
        "recorded values are in use, and these builds split them over threads."
    )


class Recording(Protocol):
    """Records the ops that are applied to values outside cells."""

    def apply(self, op: Op, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """Record one op as a cell of its own."""

    def apply_function(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a function made of ops as a cell of its own."""


class Value(Logic):
    """One output of a recorded node. Each recording has a subclass for each key.

    Attributes:
        ref: identifies the node and the output.
        key: of the shape, and of what ints stay below; class_name: of the subclass, in generated code.
    """

    __slots__ = ("kept", "ref")
    shape: Shape
    kept: Any  # the handle that a value is a row of, which is not used again while this one lives
    key: Key
    recording: Recording
    class_name: str

    def __init__(self, ref: int) -> None:
        self.ref = ref

    def apply(self, op: Op, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """Record an op outside any cell, as a cell of its own."""
        return self.require_recording().apply(op, args, static)

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a function made of ops as a cell of its own."""
        return self.require_recording().apply_function(function, args, kwargs)

    def again(self) -> Value:
        """Another handle of the same output."""
        found = type(self)(self.ref)
        found.kept = self
        return found

    def require_recording(self) -> Recording:
        """The recording that made it; GraphError unless it goes on."""
        recording = self.recording
        active = STAGE.current is recording
        if not active:
            raise GraphError(
                f"{self!r} is used outside the recording that made it; a recorded value means something only while "
                f"its instance is recorded. Return it from the function to get its number."
            )
        return recording

    def __repr__(self) -> str:
        return f"<recorded value of shape {self.shape}>"


class Rows(Value):
    """An output of any number of rows, or rows of such outputs in any order: a value that needs no node of its own.

    Attributes:
        refs: of the rows, in order.
        row: the class of a row.
        whole: all rows as one value, if recorded; only for handles that are used once.
    """

    __slots__ = ("refs", "whole")
    refs: Sequence[int]
    whole: Any
    row: type[Value]

    def resize(self, n_rows: int) -> None:
        """Take the number of rows that the node has in this call."""
        if n_rows > MOST_ROWS:
            raise DataError(f"a value of {n_rows} rows goes from a cell to others, but {MOST_ROWS} is the most.")
        self.refs = range(self.ref, self.ref + (n_rows << ROW_BIT), 1 << ROW_BIT)

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        """The number of rows in this instance, and the shape of a row."""
        return (len(self.refs), *self.row.shape)

    def __len__(self) -> int:
        return len(self.refs)

    def __iter__(self) -> Iterator[Value]:
        return map(self._row_of, self.refs)

    def __getitem__(self, index: Any) -> Any:
        first, *others = index if isinstance(index, tuple) else (index,)
        if isinstance(first, slice):
            found: Any = self.of(self.refs[first], self)
            return found if not others else super(Rows, found).__getitem__((slice(None), *others))
        if isinstance(first, (int, np.integer)) and not isinstance(first, bool):
            if not -len(self) <= first < len(self):
                raise ShapeError(f"row {first} of a value of {len(self)} rows does not exist.")
            row = self._row_of(self.refs[int(first)])
            return row[tuple(others)] if others else row
        return super().__getitem__(index)

    def of(self, refs: Sequence[int], kept: Any) -> Rows:
        """The value whose rows have these refs; `kept` holds the handles that they belong to."""
        found = type(self)(refs[0] if refs else self.ref)
        found.refs, found.kept = refs, kept
        return found

    def again(self) -> Rows:
        """Another handle of the same rows."""
        return self.of(self.refs, self)

    def apply(self, op: Op, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """Join rows; record any other op as a cell of its own."""
        self.require_recording()
        if op is OPS["concat"] and static["axis"] % self.ndim == 0 and all(type(arg) is type(self) for arg in args):
            return self.of([ref for part in args for ref in part.refs], args)
        return super().apply(op, args, static)

    def _row_of(self, ref: int) -> Value:
        value = self.row(ref)
        value.kept = self
        return value


class Outputs(tuple[Any, ...]):
    """The outputs of a recorded node that returns a tuple. Each recording has a subclass for each structure of shapes.

    Generated code recognises the structure by the class alone; the refs of the values are consecutive.
    """

    __slots__ = ()
    key: Key
    recording: Recording
    class_name: str


class HandlePool:
    """The handles that the calls of one form return.

    Args:
        make: makes the handle whose first output has this ref.
        new_id: returns a number that no handle has had.
        namespace, name: where generated code finds the iterator over the free handles.

    Attributes:
        handles: all handles of the pool; parts: of each, it and the values and tuples in it.
        ids: of the handles.
        idle: the reference count of a part that is not in use.
        most: the largest number of handles taken between two recyclings.
    """

    def __init__(
        self, make: Callable[[int], Any], new_id: Callable[[], int], namespace: dict[str, Any], name: str
    ) -> None:
        self.handles: list[Any] = []
        self.parts: list[list[Any]] = []
        self.ids: list[int] = []
        self.idle = self._n_survivors = 0
        self._parked: list[tuple[int, Any]] = []
        self.most = 0
        self._make, self._new_id, self._namespace, self._name = make, new_id, namespace, name
        self._restart(0)

    @property
    def used(self) -> int:
        """Handles taken since the pool was last recycled."""
        return len(self.handles) - operator.length_hint(self._iterator)

    def take(self) -> Any:
        """Take a handle that is not in use."""
        for handle in self._iterator:
            return handle
        return self.grow()

    def grow(self) -> Any:
        """Add a chunk of handles and take the first of them."""
        start = len(self.handles)
        for place in range(start, start + min(max(start, 8), CHUNK)):
            self._put(place)
        if not start:
            self.idle = min(self._counts(len(self.handles)), default=0)
        self._restart(start)
        return next(self._iterator)

    def is_whole_in_use(self, own: int) -> bool:
        """Whether the output tuple of the handle with this id is in use, if it has one."""
        if len(self.parts[0]) == 1 or own not in self.ids:
            return False
        return next(self._count_last(self.ids.index(own))) > self.idle

    def is_in_use(self) -> bool:
        """Whether any taken handle is in use."""
        return True in self._in_use(self.used) if self.parts else False

    def recycle(self) -> None:
        """Start again from the first handle; replace handles of which any part is still referenced."""
        self._n_survivors = 0
        if self._parked:
            self.ids += [own for own, _ in self._parked]
            self.handles += [handle for _, handle in self._parked]
            self.parts += [_parts_of(handle) for _, handle in self._parked]
            self._parked.clear()
            self._restart(len(self.handles))
        used = self.used
        self.most = max(self.most, used)
        if not used:
            return
        if sum(self._counts(used)) > self.idle * used * len(self.parts[0]):  # rarely true
            for place in compress(range(used), self._in_use(used)):
                self._put(place)
        self._restart(0)

    def shrink(self) -> list[int]:
        """Drop handles far beyond the peak usage, right after recycling; return their ids."""
        keep = max(2 * self.most, CHUNK)
        if len(self.handles) <= 2 * keep:
            return []
        dropped = self.ids[keep:]
        for of_each in (self.handles, self.ids, self.parts):
            del of_each[keep:]
        self._restart(0)
        return dropped

    def sweep(self) -> tuple[list[int], list[int]]:
        """Find which of the handles taken since the last sweep are still referenced, and put those that are not back.

        A handle that survives two sweeps leaves the pool until it is recycled: it may be in use for long.

        Returns:
            The ids of handles that survived their first sweep, and of those that are no longer referenced since.
        """
        used, old, ids, handles = self.used, self._n_survivors, self.ids, self.handles
        if not used or not self.parts[0]:
            return [], []
        alive = self._in_use(used)
        if True not in alive:
            gone = ids[:old]
            self._n_survivors = 0
            self._restart(0)
            return [], gone
        young = [*compress(range(old, used), alive[old:])]
        free = [*compress(range(used), map(operator.not_, alive))]
        gone = [ids[place] for place in takewhile(old.__gt__, free)]
        self._parked += [(ids[place], handles[place]) for place in compress(range(old), alive)]
        of_all: tuple[list[Any], ...] = handles, ids, self.parts
        for of_each in of_all:
            of_each[:used] = [of_each[place] for place in young + free]
        self._n_survivors = len(young)
        self._restart(len(young))
        return ids[: len(young)], gone

    def _counts(self, n: int) -> Iterator[int]:
        """The reference count of each part of the first n handles."""
        return map(sys.getrefcount, chain.from_iterable(islice(self.parts, n)))

    def _count_last(self, place: int) -> Iterator[int]:
        """Return the reference count of a handle's last part, the whole handle."""
        return map(sys.getrefcount, islice(self.parts[place], len(self.parts[place]) - 1, None))

    def _in_use(self, n: int) -> list[bool]:
        """Whether any part of each of the first n handles is in use."""
        of_each = map(max, *[self._counts(n)] * len(self.parts[0])) if len(self.parts[0]) > 1 else self._counts(n)
        return [*map(self.idle.__lt__, of_each)]

    def _put(self, place: int) -> None:
        """Put a new handle at this place of the pool."""
        own = self._new_id()
        handle = self._make(own << OUTPUT_BITS)
        self.ids[place : place + 1] = [own]
        self.parts[place : place + 1] = [_parts_of(handle)]
        self.handles[place : place + 1] = [handle]

    def _restart(self, place: int) -> None:
        self._iterator: Iterator[Any] = iter(self.handles)
        self._iterator.__setstate__(place)  # type: ignore[attr-defined]
        self._namespace[self._name] = self._iterator


def _parts_of(handle: Any) -> list[Any]:
    """A handle, and every value and tuple in it; not the empty tuple, which all programs share."""
    if isinstance(handle, Value):
        return [handle]
    return [*(part for child in handle for part in _parts_of(child)), handle] if handle else []


class Handles:
    """All handles of one recording.

    Args:
        recording: records the ops that values meet outside cells.
        namespace: the globals of the generated functions; the classes of values and each form's pool are added.
        methods: classes whose methods values have, before their own.

    Attributes:
        form_of: for each handle made so far, by id, the form that gives it out.
        large: forms with many handles; `settle` eventually drops some.
    """

    def __init__(self, recording: Recording, namespace: dict[str, Any], methods: tuple[type, ...] = ()) -> None:
        self._recording, self._namespace, self._methods = recording, namespace, methods
        self.form_of: list[int] = []
        self._free: dict[int, array[int]] = defaultdict(lambda: array("q"))
        self.large = set[int]()
        self._recordings = 0
        self._classes: dict[Key, Any] = {}
        self._pools: list[HandlePool] = []

    def recycle(self) -> None:
        """Recycle handles that are not referenced any more; called between instances.

        A recursive inner function is a reference cycle, so the handles that it holds wait for the garbage collector.
        A young collection frees the programs of the last instances; handles referenced after it are in use.
        """
        gc.collect(1)
        for pool in self._pools:
            pool.recycle()

    def settle(self) -> None:
        """Drop handles that the last recordings did not need, for forms with many. Call before a recording begins.

        Their ids are reused by other handles of the same form.
        """
        self._recordings = (self._recordings + 1) % RECORDINGS
        if self._recordings > 1:
            return
        n_dropped = 0
        for form in [*self.large]:
            pool = self._pools[form]
            pool.recycle()
            if self._recordings:  # count the usage from now on
                pool.most = 0
                continue
            dropped = pool.shrink()
            self._free[form].extend(dropped)
            n_dropped += len(dropped)
            if len(pool.handles) <= LARGE:
                self.large.remove(form)
        if n_dropped > LARGE:
            from autobatch.system.freeing import give_back_freed

            give_back_freed()

    def sweep(self) -> tuple[list[int], list[int]]:
        """Sweep all pools: the ids of handles that survived their first sweep, and of those no longer referenced."""
        swept = [pool.sweep() for pool in self._pools]
        return [x for kept, _ in swept for x in kept], [x for _, gone in swept for x in gone]

    def add_pool(self, form: int, node_type: NodeType) -> tuple[Key, Callable[[Any], Any] | None]:
        """Add the pool of handles of a form, for a type.

        Returns:
            The key of a handle; and the function that turns a handle into the structure that the cell returned, if
            that is more than tuples of values.
        """
        program, structure = node_type.program, node_type.structure
        if len(program.results) > MOST_OUTPUTS:
            raise GraphError(
                f"cell {node_type.name!r} returns {len(program.results)} values, but a node has {MOST_OUTPUTS} at "
                f"most; return fewer, such as one array to slice."
            )
        keys = [_key_of(program.vars, output) for output in program.results]
        classes, plain = list(map(self.class_of, keys)), _plain_key(structure, keys)
        key = Key("tuple", None, tuple(keys)) if plain is None else plain
        whole = self.class_of(key)

        def make(ref: int) -> Any:
            values = tuple(kind(ref + output) for output, kind in enumerate(classes))
            handle = values if plain is None else build(values)
            return whole(handle) if issubclass(whole, Outputs) else handle

        def build(values: tuple[Value, ...]) -> Any:
            return put_together(structure, values)

        def new_id() -> int:
            if len(pool.handles) >= LARGE:
                self.large.add(form)
            if self._free and self._free[form]:
                return self._free[form].pop()
            self.form_of.append(form)
            return len(self.form_of) - 1

        pool = HandlePool(make, new_id, self._namespace, f"pool_{form}")
        self._pools.append(pool)
        self._namespace[f"grow_{form}"] = pool.grow
        return key, build if plain is None else None

    def take(self, form: int) -> Any:
        """Take a handle of a form."""
        return self._pools[form].take()

    def pool(self, form: int) -> HandlePool:
        """Return the pool of a form."""
        return self._pools[form]

    def value(self, ref: int, shape: Shape, kept: Any) -> Value:
        """The value of this ref; `kept` holds the handle that it belongs to."""
        found: Value = self.class_of(Key("value", shape))(ref)
        found.kept = kept
        return found

    def rows_of(self, values: Sequence[Value], shape: Shape) -> Rows:
        """The value whose rows are these values of one shape."""
        kind = self.class_of(Key("rows", None, (Key("value", shape),)))
        found: Rows = kind(values[0].ref if values else 0)
        found.refs, found.kept = [value.ref for value in values], values
        return found

    def class_of(self, key: Key) -> Any:
        """This recording's class of values of a shape, or of tuples of such."""
        if key not in self._classes:
            base = {"value": Value, "rows": Rows}.get(key.kind, Outputs)
            own: dict[str, Any] = {"shape": key.detail[:-1] if key.is_complex else key.detail} if base is Value else {}
            own |= {"row": self.class_of(key.children[0])} if base is Rows else {}
            name = f"{base.__name__}_{len(self._classes)}"
            own |= {"key": key, "recording": self._recording, "class_name": name, "__slots__": ()}
            bases = (base,) if base is Outputs else (*self._methods, base)
            self._classes[key] = self._namespace[name] = type(base.__name__, bases, own)
            if base is Outputs or "__tuples" not in self._namespace:
                kinds = self._namespace.get("__tuples", (tuple,))
                self._namespace["__tuples"] = (*kinds, self._classes[key]) if base is Outputs else kinds
        return self._classes[key]

    def check(self, handle: Value | Outputs) -> None:
        """Raise a GraphError for a value of another recording, in which its ref means another node."""
        if handle.recording is not self._recording:
            raise GraphError("a value from another recording is used here; a recorded value belongs to one function.")


def _key_of(vars: Sequence[Var], output: int) -> Key:
    """The key of an output."""
    value = Key("value", vars[output].shape, below=int_limit(vars, output), dtype=dtype_of(vars, output))
    return value if vars[output].domain < 0 else Key("rows", None, (value,))


def path_to_ref(key: Key) -> str:
    """The Python expression, after a handle, of its ref: a tuple has the ref of its first value."""
    paths = [("", key)]
    while paths[0][1].kind not in ("value", "rows"):
        path, outer = paths.pop(0)
        paths = [*((f"{path}[{i}]", part) for i, part in enumerate(outer.children)), *paths]
    return f"{paths[0][0]}.ref"


def _plain_key(structure: Any, keys: list[Key]) -> Key | None:
    """The key of a structure of outputs with these keys; None unless it is a value, or tuples of values alone."""
    if isinstance(structure, int):
        return keys[structure] if keys[structure].kind == "value" else None
    children = [_plain_key(part, keys) for part in structure] if isinstance(structure, tuple) else [None]
    return None if None in children else Key("tuple", None, tuple(c for c in children if c is not None))
