"""Lists of instances from iterators, which may reuse the same objects for the next instance.

Each instance must be used as it was on arrival. So the contents of its mutable parts are noted on arrival: of arrays,
buffers, containers, and objects with attributes of any class defined in Python. A part that several instances share is
noted once, unless its contents changed between their arrivals. After the last arrival, instances that hold a part whose
contents changed are rebuilt from the notes. All others, and their parts, stay the same objects. Parts that cannot be
rebuilt (views of dicts, buffers of C code, structured arrays of objects) are noted too; a change raises a DataError.
"""

from __future__ import annotations

import copy
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from functools import singledispatch
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from autobatch.errors import DataError
from autobatch.graph.graph import Graph
from autobatch.trace.guards import are, content_of
from autobatch.trace.inputs import NO_PARTS, PLAIN, attributes

KEPT: tuple[type, ...] = (list, tuple, dict, set, frozenset, deque, type({}.values()))
"""Containers that hold all their instances, so none is overwritten while another is read."""
IMMUTABLE = (tuple, frozenset)
CONTAINERS = (list, tuple, set, frozenset, deque)
VIEWS: Any = (type({}.keys()), type({}.values()), type({}.items()))
NUMPY = (np.ndarray, np.void)
FIXED = object()
"""The content of parts that are not inspected."""


@singledispatch
def copy_of(x: Any) -> Any:
    """Copy an array or a buffer; other libraries register copiers for their arrays, and objects to keep."""
    return x


PLAIN_COPY = copy_of.dispatch(object)


@copy_of.register(np.ndarray)
@copy_of.register(np.void)
def _(x: Any) -> Any:
    return x.copy()


@copy_of.register(bytearray)
@copy_of.register(array)
def _(x: Any) -> Any:
    return x[:]


@copy_of.register
def _(x: memoryview) -> memoryview:
    shown = np.asarray(x).copy()
    return shown.data.toreadonly() if x.readonly else shown.data


class Note(NamedTuple):
    """The contents of a part from one arrival on.

    Attributes:
        since: number of the arrival.
        content: bytes of an array or a buffer, or `FIXED`; None for anything else.
        names: names of attributes, followed by the keys of a dict.
        parts: values of attributes, followed by the elements of a container.
        n_attributes: number of parts that are attributes.
        twin: copy of an array or a buffer.
    """

    since: int
    content: Any = FIXED
    names: Sequence[Any] = ()
    parts: Sequence[Any] = ()
    n_attributes: int = 0
    twin: Any = None


def list_owned(instances: Iterable[Any], is_stored: bool = False) -> list[Any]:
    """Return the instances as a list, each as it was when it arrived.

    Args:
        is_stored: whether the list is kept for later, so that arrays and buffers of an iterator are always copied.
    """
    if isinstance(instances, KEPT):
        return list(instances)
    arrivals = Arrivals()
    for instance in instances:
        arrivals.add(instance)
    return arrivals.restore(is_stored)


class Arrivals:
    """Instances in order of arrival, and the contents of their parts at that time."""

    def __init__(self) -> None:
        self._instances: list[Any] = []
        self._met: dict[int, Any] = {}  # holds each part, so that no other object gets its id
        self._notes: dict[int, list[Note]] = {}

    def add(self, instance: Any) -> None:
        """Note the contents of an instance that arrives."""
        number, seen, pending = len(self._instances), set[int](), [instance]
        self._instances.append(instance)
        while pending:
            x = pending.pop()
            if type(x) in PLAIN or id(x) in seen:
                continue
            seen.add(id(x))
            self._met[id(x)] = x
            notes = self._notes.setdefault(id(x), [])
            if not notes or not _is_still(x, notes[-1]):
                notes.append(_note(x, number))
            pending += notes[-1].parts

    def restore(self, is_stored: bool = False) -> list[Any]:
        """Return the instances as they were when they arrived; DataError if one that changed cannot be copied."""
        changed = {
            key
            for key, notes in self._notes.items()
            if len(notes) > 1 or not _is_still(self._met[key], notes[0]) or (is_stored and notes[0].twin is not None)
        }
        if not changed:
            return self._instances
        return [self._restored(instance, number, changed) for number, instance in enumerate(self._instances)]

    def _restored(self, instance: Any, number: int, changed: set[int]) -> Any:
        """Return an instance with the contents it had at arrival `number`."""
        notes, parents = dict[int, Note](), dict[int, list[int]]({id(instance): []})
        pending = [instance]
        while pending:
            x = pending.pop()
            if id(x) in notes or id(x) not in self._notes:
                continue
            all_notes = self._notes[id(x)]
            # The note in force at that arrival: the last one taken until then.
            notes[id(x)] = note = all_notes[bisect_right(all_notes, number, key=attrgetter("since")) - 1]
            for part in note.parts:
                parents.setdefault(id(part), []).append(id(x))
                pending.append(part)
        holding = changed & notes.keys()
        # A part that holds a changed part must be rebuilt too, and so must all parts above it.
        climbing = [*holding]
        while climbing:
            above = {key for key in parents[climbing.pop()] if key not in holding}
            holding |= above
            climbing += above
        if id(instance) not in holding:
            return instance
        try:
            return _rebuilt(instance, {key: (self._met[key], notes[key]) for key in notes if key in holding})
        except Exception as error:  # copying may run a user's class, which may raise anything
            raise DataError(
                f"instances from an iterator are copied if their contents change as later ones arrive, but "
                f"{type(instance).__name__} cannot be copied ({error}); give a list of instances."
            ) from error


def _bytes(x: Any) -> Any:
    """Return the numbers of an array or a buffer, for comparisons; None for anything else."""
    if isinstance(x, memoryview):
        return x.format, x.shape, x.tobytes()
    if isinstance(x, NUMPY) and x.dtype.hasobject:
        return None if x.dtype.names is None else x.tobytes()  # with the addresses of objects
    if (content := content_of(x)) is not None:
        return content
    try:
        return memoryview(x).tobytes()
    except TypeError:
        return None


def _elements(x: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the keys of a container, and its elements in the same order."""
    if isinstance(x, (dict, MappingProxyType)):
        return [*x], [*x.values()]
    if isinstance(x, CONTAINERS):
        return (), [*x]
    if isinstance(x, VIEWS):
        return (), [y for pair in x.mapping.items() for y in pair]
    if isinstance(x, NUMPY) and x.dtype.hasobject:
        return (), _objects(np.asarray(x).ravel())
    return (), ()


def _objects(x: Any) -> list[Any]:
    """List the objects in an array, those in the fields of a structured one included."""
    if x.dtype.names is None:
        return x.ravel().tolist() if x.dtype.hasobject else []
    return [y for name in x.dtype.names for y in _objects(x[name])]


def _note(x: Any, number: int) -> Note:
    if isinstance(x, (*NO_PARTS, Graph)):
        return Note(number)
    # Arrays of objects count as containers: a copy of the array would not copy the objects.
    is_leaf = copy_of.dispatch(type(x)) is not PLAIN_COPY and not (isinstance(x, NUMPY) and x.dtype.hasobject)
    twin = copy_of(x) if is_leaf else None
    # A copier that returns the object itself marks it as one to keep.
    return Note(number) if twin is x else Note(number, *_contents(x), twin)


def _contents(x: Any) -> tuple[Any, list[Any], list[Any], int]:
    """Return the `content`, `names`, `parts` and `n_attributes` of a note on a part."""
    own, (keys, elements) = attributes(x), _elements(x)
    return _bytes(x), [*own, *keys], [*own.values(), *elements], len(own)


def _is_still(x: Any, note: Note) -> bool:
    """Return whether the contents of a part are those of its note."""
    if note.content is FIXED:
        return True
    content, names, parts, _ = _contents(x)
    return bool(content == note.content) and are(names, note.names) and are(parts, note.parts)


def _rebuilt(instance: Any, holders: dict[int, tuple[Any, Note]]) -> Any:
    """Return a copy of an instance with new twins of its `holders`, which have the noted contents."""
    # Copy all mutable holders before filling any, so that references in cycles find the copies. Tuples and frozensets
    # cannot be filled later; `get` makes them when all that they hold can be found.
    made = {key: note.twin for key, (_, note) in holders.items() if note.twin is not None}
    for key, (x, note) in holders.items():
        if note.twin is None and not isinstance(x, IMMUTABLE):
            if note.content is not None:
                raise TypeError(f"it holds a {type(x).__name__}")
            made[key] = copy.copy(x)

    def get(part: Any) -> Any:
        key = id(part)
        if key in holders and key not in made:
            kind: Any = tuple if isinstance(part, tuple) else frozenset
            made[key] = kind.__new__(type(part), map(get, part))
        return made.get(key, part)

    for x, note in sorted(holders.values(), key=lambda held: isinstance(held[0], set)):  # sets hash their elements
        _fill(get(x), note, [*map(get, note.parts)])
    return get(instance)


def _fill(twin: Any, note: Note, parts: list[Any]) -> None:
    """Give a copy of a part its elements and attributes at the time of a note."""
    n, names = note.n_attributes, note.names[: note.n_attributes]
    if isinstance(twin, list):
        twin[:] = parts[n:]
    elif isinstance(twin, np.ndarray) and twin.dtype == object:
        # Not np.array, which would turn elements that are sequences into further axes.
        twin.flat[:] = np.fromiter(parts[n:], object, len(parts) - n)
    elif isinstance(twin, dict):
        twin.clear()
        for key, part in zip(note.names[n:], parts[n:], strict=True):  # a Counter's `update` would count them
            twin[key] = part
    elif isinstance(twin, (set, deque)):
        twin.clear()
        (twin.update if isinstance(twin, set) else twin.extend)(parts[n:])
    # Methods of `object`, because the class may be frozen, or override assignments.
    for name in attributes(twin).keys() - {*names}:
        object.__delattr__(twin, name)
    for name, part in zip(names, parts[:n], strict=True):
        object.__setattr__(twin, name, part)
