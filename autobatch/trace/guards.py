"""Guards: checks that all Python state that bodies of cells read when they were traced is unchanged; and live numbers.

A guard is one place that was read: an attribute of an object, an item of a namespace, or the contents of a list or
dict. It holds as long as the place has the same objects, or equal numbers or strings; arrays and tensors are compared
with a copy of their former contents. `GuardSet.holds` checks all guards in force, once per call. It compares the
objects at all places in two passes, and calls a guard only if its object differs or it is deep.

Live numbers are numbers and arrays of a model that change while it is used, so programs read them as inputs.

Such a number is a parameter that is not trained and is updated before each run. So a program that computes with it need
not be traced, planned or compiled again when it changes. While a body is traced, a `LiveValue` represents it. If Python
needs the number itself, for a condition, a size or an option of an op, the body is traced again with the number as a
guarded constant.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import singledispatch
from itertools import repeat
from operator import call, is_, methodcaller
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn
from weakref import ref

import numpy as np

from autobatch._native import Snapshot
from autobatch.arrays import Array
from autobatch.ir.arguments import exact
from autobatch.ir.builder import Builder, Traced
from autobatch.params.parameter import FLOAT32, Parameter

LARGE = 2**20  # bytes; a larger array is an input of the program from the first trace on, and is not compared


def can_be_live(x: object) -> bool:
    """Return whether `x` is an int, a float, or a plain array of floats."""
    if isinstance(x, np.ndarray):
        return type(x) is np.ndarray and x.dtype.kind == "f"
    return isinstance(x, (int, float, np.integer, np.floating)) and not isinstance(x, (bool, np.timedelta64))


class Live(Parameter):
    """The number or array of an attribute, in the model's dtype.

    Args:
        holder: the object with the attribute; kept alive, because it is identified by its `id`.
        n_taken: counts the changes of all live numbers of a recorded function in its only element; arrays that change
            in place are not counted.
    """

    def __init__(self, value: Any, dtype: np.dtype[Any], holder: object, n_taken: list[int]) -> None:
        super().__init__(value, trainable=False)
        self.holder, self._n_taken, self._value = holder, n_taken, value
        self.astype(dtype)

    def take(self, value: Any) -> bool:
        """Take the current value of the attribute; return False if its shape differs, or it is not a number."""
        if not can_be_live(value) or np.shape(value) != self.shape:
            return False
        if value is not self._value:
            self._n_taken[0] += not np.array_equal(self._bits(value), self._bits(self._value))
            self._value = value
        return True

    def refresh(self, dtype: np.dtype[Any]) -> None:
        """Convert the last value taken to this float type, for the next run."""
        if dtype != self.dtype:
            self.astype(dtype)
        if not np.array_equal(self._bits(self.array), self._bits(self._value)):
            self.data = self._value

    def _bits(self, value: Any) -> Array:
        """Return numbers in the model's dtype as ints, which distinguish -0.0 from 0.0 and equal NaNs."""
        floats = np.asarray(value, self.dtype)
        return floats.view(f"i{floats.itemsize}")


class Lives:
    """The live numbers of one recorded function.

    Attributes:
        changing: the places of numbers that have changed before.
        known: references to the inputs that replace numbers, by place and shape; traces keep the inputs alive.
        dtype: the dtype of the inputs.
    """

    def __init__(self) -> None:
        self.changing = set[Hashable]()
        self.dtype = FLOAT32
        self.known: dict[Hashable, ref[Live]] = {}
        self._n_taken = [0]

    def find(self, place: Hashable, value: Any, holder: object) -> Live | None:
        """Return the input that replaces a number that has changed before, or a large array; None for anything else."""
        if not can_be_live(value) or not (place in self.changing or getattr(value, "nbytes", 0) > LARGE):
            return None
        key = place, np.shape(value)  # traces of former shapes keep their inputs, which are refreshed as well
        live = self.known[key]() if key in self.known else None
        if live is None or not live.take(value):
            live = Live(value, self.dtype, holder, self._n_taken)
            self.known = {**{k: x for k, x in self.known.items() if x() is not None}, key: ref(live)}
        return live

    def refresh(self, dtype: np.dtype[Any]) -> None:
        """Convert the current numbers to this float type, for the next run."""
        self.dtype = dtype
        for live in [x() for x in self.known.values()]:
            if live is not None:
                live.refresh(dtype)

    @property
    def n_taken(self) -> int:
        return self._n_taken[0]


class LiveValue(Traced):
    """The symbol of a live number while a cell's body is traced."""

    __slots__ = ()

    @classmethod
    def of(cls, builder: Builder, live: Live) -> LiveValue:
        """Make the value of a program that reads `live`."""
        return cls(builder, builder.wrap(live).index)

    def __getattr__(self, name: str) -> Any:
        raise self._refuse(f"the attribute {name!r}")

    def _needs_number(self, *args: Any) -> NoReturn:
        raise self._refuse("Python")

    __hash__ = __repr__ = __str__ = __abs__ = __round__ = __trunc__ = __floor__ = __ceil__ = _needs_number
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __divmod__ = __rdivmod__ = __complex__ = _needs_number


HOLDS = methodcaller("holds")
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "nothing"})()


class Difference(NamedTuple):
    """Something that has changed since it was read.

    Attributes:
        key: identifies the place.
        description: description of the change, for messages.
        before, now: the old and the new value.
    """

    key: Hashable
    description: str
    before: Any
    now: Any

    @property
    def is_numeric(self) -> bool:
        """Return whether the change is from numbers to numbers of one shape, which can be inputs of programs."""
        return can_be_live(self.before) and can_be_live(self.now) and np.shape(self.before) == np.shape(self.now)


class Guard:
    """The contents of one place that was read: a value under a name, or all contents of a list, tuple, dict or set.

    Args:
        holder: the object that has the place; kept alive, because its `id` identifies it.
        text: a description of the place, for messages.
        lives: the inputs of the program that replace values, by name or index.
        get: `get(name, default)` returns the current value; None for all contents.
        name: name of the attribute or item.

    Attributes:
        key: identifies the place.
        names, seen: the names or indices, and the values, at the last comparison.
        copies: the former contents of values that are arrays.
        is_deep: whether a value may change while it stays the same object.
    """

    def __init__(
        self, holder: Any, text: str, lives: Mapping[Any, Live], get: Callable[..., Any] | None = None, name: Any = None
    ) -> None:
        self.holder, self.text, self.lives, self.get, self.name = holder, text, lives, get, name
        self.key: Hashable = ("contents", id(holder)) if get is None else (id(holder), name)
        self.retake()

    def _look(self) -> tuple[Sequence[Any], list[Any]]:
        """Return the current names, or indices, and values."""
        return named_parts(self.holder) if self.get is None else ((self.name,), [self.get(self.name, MISSING)])

    def describe(self, name: Any) -> str:
        return f"{self.text}[{name!r}]" if self.get is None else self.text

    def retake(self) -> None:
        """Compare with the current contents from now on."""
        self.names, self.seen = self._look()
        self.copies = [
            None if name in self.lives else content_of(x) for name, x in zip(self.names, self.seen, strict=True)
        ]
        self.is_deep = any(content is not None for content in self.copies)

    def holds(self) -> bool:
        """Return whether the contents are unchanged, arrays by content; live numbers take their new values."""
        names, found = self._look()
        if self.is_deep or not (are(found, self.seen) and are(names, self.names)):
            if self._compare(names, found):
                return False
            self.seen = found  # equal to the former objects, and found by identity next time
        return True

    def differences(self) -> list[Difference]:
        """Return the changed values, or one difference for the whole place if it has other names now."""
        return self._compare(*self._look())

    def _compare(self, names: Sequence[Any], found: list[Any]) -> list[Difference]:
        if not (are(names, self.names) or is_same(tuple(names), tuple(self.names))):
            return [Difference(self.key, f"{self.text} has other elements", self.names, names)]
        return [
            _difference((id(self.holder), name), self.describe(name), before, now)
            for name, before, now, content in zip(names, self.seen, found, self.copies, strict=True)
            if not _is_still(before, now, content, self.lives.get(name))
        ]


class GuardSet:
    """The guards of all traces in force; every call checks them."""

    def __init__(self, guards: Iterable[Guard]) -> None:
        self._found = {_content(guard): guard for guard in guards}
        self.guards = list(self._found.values())
        self._deep = [guard for guard in self.guards if guard.is_deep]
        self._containers = [guard for guard in self.guards if guard.get is None]
        self._others = [guard for guard in self.guards if guard.get is not None]
        self._gets: list[Any] = [guard.get for guard in self._others]
        self._names = [guard.name for guard in self._others]
        self._seen = [guard.seen[0] for guard in self._others]
        self._snapshot: Snapshot | None = None  # taken once the containers have been compared

    def extended(self, guards: Iterable[Guard]) -> GuardSet:
        """Return the union with other guards; the set itself if it includes them all."""
        others = [guard for guard in guards if _content(guard) not in self._found]
        return GuardSet([*self.guards, *others]) if others else self

    def holds(self) -> bool:
        """Return whether nothing has changed since it was read; live numbers take their new values."""
        # Compare attributes and items by identity, without a Python call per guard; then containers, by a native
        # snapshot of their elements; then arrays by content. Guards are called only where identity differs.
        found = [*map(call, self._gets, self._names, repeat(MISSING))]
        if not all(map(is_, found, self._seen)):
            if not all(
                guard.holds() for guard, x, y in zip(self._others, found, self._seen, strict=True) if x is not y
            ):
                return False
            self._seen = found
        if self._snapshot is None or not self._snapshot.holds():
            # Taken before the comparison: a change by another thread in between then fails the next check.
            snapshot = Snapshot([guard.holder for guard in self._containers])
            if not all(guard.holds() for guard in self._containers):
                return False
            self._snapshot = snapshot
        return all(map(HOLDS, self._deep))


def _content(guard: Guard) -> Hashable:
    """Return a key that is equal for equivalent guards."""
    # The guard keeps these objects alive, so their `id`s are unique.
    return guard.key, *map(id, guard.seen), *map(id, guard.lives.values()), *guard.copies


def differences(guards: Iterable[Guard]) -> list[Difference]:
    """List all changes that these guards find."""
    return [difference for guard in guards for difference in guard.differences()]


def are(found: Sequence[Any], seen: Sequence[Any]) -> bool:
    """Return whether two sequences hold the same objects."""
    return len(found) == len(seen) and all(map(is_, found, seen))


def named_parts(container: Any) -> tuple[Sequence[Any], list[Any]]:
    """Return the keys and values of a dict, or the indices and elements of another container."""
    if isinstance(container, (dict, MappingProxyType)):
        return [*container], [*container.values()]
    parts = container.ravel().tolist() if isinstance(container, np.ndarray) else [*container]
    return range(len(parts)), parts


def is_same(x: Any, y: Any) -> bool:
    """Return whether two values are one object, or equal and of one immutable type; numbers are compared bit by bit."""
    return x is y or bool(exact(x) == exact(y))


@singledispatch
def content_of(x: Any) -> Hashable | None:
    """Return the contents of an array (dtype, shape and numbers) as a hashable object; None for anything else.

    Other libraries register functions for their own arrays.
    """
    return None


@content_of.register
def _(x: np.ndarray) -> Hashable | None:
    return None if x.dtype.hasobject else (x.shape, x.dtype.str, x.tobytes())


@content_of.register
def _(x: array) -> Hashable:  # type: ignore[type-arg]
    return x.typecode, x.tobytes()


@content_of.register(bytearray)
@content_of.register(memoryview)
def _(x: Any) -> Hashable:
    return bytes(x)


def _difference(key: Hashable, text: str, before: Any, now: Any) -> Difference:
    if content_of(before) is not None or content_of(now) is not None:
        return Difference(key, f"{text} holds other numbers", before, now)
    was, is_now = _short(before), _short(now)
    change = f"{text} is another {type(now).__name__}" if was == is_now else f"{text} was {was} and is {is_now}"
    return Difference(key, change, before, now)


def _is_still(before: Any, now: Any, content: Hashable | None, live: Live | None) -> bool:
    if live is not None:
        return live.take(now)
    return is_same(before, now) if content is None else content_of(now) == content


def _short(x: Any) -> str:
    text = " ".join(repr(x).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
