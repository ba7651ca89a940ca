"""Guards: checks that everything the bodies of cells read from Python when they were traced is still the same.

A guard is one thing that was read: an attribute of an object, an item of a namespace, or the contents of a list or
dict. It holds as long as the very same object is there, or an equal number or text; arrays and tensors are compared
with a copy of their former contents. `Watchlist.holds` checks all guards in force, once per call. A check is mostly a
comparison of two objects, a twentieth of a microsecond.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import singledispatch
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from autobatch.ir.arguments import exact
from autobatch.trace.live import Live, can_be_live

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "nothing"})()


class Difference(NamedTuple):
    """Something that has changed since it was read.

    Attributes:
        key: identifies the place.
        told: a description of the change, for messages.
        before, now: the old and the new value.
    """

    key: Hashable
    told: str
    before: Any
    now: Any

    @property
    def is_numeric(self) -> bool:
        """Whether the change is from numbers to numbers, which can be inputs of programs."""
        return can_be_live(self.before) and can_be_live(self.now) and np.shape(self.before) == np.shape(self.now)


class Read:
    """Something that was read under a name.

    Args:
        holder: the object it was read from; kept alive, since its `id` identifies the place.
        get: `get(name, default)` returns the present value.
        name: of the attribute or item.
        text: its description in messages.
        seen: the value that was read.
        live: the input of the program that stands for it, if there is one.

    Attributes:
        key: equal for reads of one place.
        seen: the value at the last comparison.
    """

    def __init__(
        self, holder: object, get: Callable[..., Any], name: Any, text: str, seen: Any, live: Live | None
    ) -> None:
        self.holder, self.get, self.name, self.text, self.live = holder, get, name, text, live
        self.key: Hashable = id(holder), name
        self._take(seen)

    def _take(self, seen: Any) -> None:
        self.seen = seen
        self._content = content_of(seen) if self.live is None else None

    def retake(self) -> None:
        """Take the present value as the one to compare with."""
        self._take(self.now())

    @property
    def is_deep(self) -> bool:
        """Whether the contents of the object may change while it stays the same object."""
        return self._content is not None

    def now(self) -> Any:
        """The present value."""
        return self.get(self.name, MISSING)

    def holds(self) -> bool:
        """Compare the present value, arrays by content; a live number takes the new value."""
        found = self.now()
        same = _is_still(self.seen, found, self._content, self.live)
        if same:
            self.seen = found
        return same

    def differences(self) -> list[Difference]:
        """The changes since it was read."""
        return [] if self.holds() else [_difference(self.key, self.text, self.seen, self.now())]


class Contents:
    """The contents of a list, tuple, dict or set when it was read.

    Args:
        holder: the container.
        text: its description in messages.
        lives: by index or key, the inputs of the program that stand for elements.
    """

    is_deep = True

    def __init__(self, holder: Any, text: str, lives: Mapping[Any, Live]) -> None:
        self.holder, self.text, self.lives = holder, text, lives
        self.key: Hashable = ("contents", id(holder))
        self.retake()

    def retake(self) -> None:
        """Take the present contents as those to compare with."""
        self.names, self.seen = _names_in(self.holder), _elements_of(self.holder)
        self._contents = list(map(content_of, self.seen))
        self._is_plain = self._contents.count(None) == len(self._contents)

    def holds(self) -> bool:
        """Compare the elements; live numbers take the new values."""
        found = _elements_of(self.holder)
        if self._is_plain and are(found, self.seen) and are(_names_in(self.holder), self.names):
            return True
        if self.differences():
            return False
        self.seen = found
        return True

    def differences(self) -> list[Difference]:
        """The elements that have changed, or the whole container if its keys or length have changed."""
        names, found = _names_in(self.holder), _elements_of(self.holder)
        if not is_same(tuple(names), tuple(self.names)):
            return [Difference(self.key, f"{self.text} has other elements", self.names, names)]
        return [
            _difference((id(self.holder), name), f"{self.text}[{name!r}]", before, now)
            for name, before, now, content in zip(names, self.seen, found, self._contents, strict=True)
            if not _is_still(before, now, content, self.lives.get(name))
        ]


Guard: TypeAlias = Read | Contents


class Watchlist:
    """The guards of all traces in force, one per place; every call checks them."""

    def __init__(self, guards: Iterable[Guard]) -> None:
        found = {(guard.key, id(guard.seen) if isinstance(guard, Read) else 0): guard for guard in guards}
        self.guards = list(found.values())
        self._deep = [guard for guard in self.guards if guard.is_deep]
        self._quick = [guard for guard in self.guards if isinstance(guard, Read) and not guard.is_deep]
        self._seen = [(guard.get, guard.name, guard.seen) for guard in self._quick]

    def holds(self) -> bool:
        """Whether nothing has changed since it was read; live numbers take their new values."""
        for at, (get, name, seen) in enumerate(self._seen):
            if get(name, MISSING) is not seen:
                guard = self._quick[at]
                if not guard.holds():
                    return False
                self._seen[at] = (get, name, guard.seen)
        return all(guard.holds() for guard in self._deep)


def differences(guards: Iterable[Guard]) -> list[Difference]:
    """All changes that these guards find."""
    return [difference for guard in guards for difference in guard.differences()]


def are(found: list[Any], seen: list[Any]) -> bool:
    """Whether two lists hold the same objects."""
    return len(found) == len(seen) and all(map(operator.is_, found, seen))


def is_same(x: Any, y: Any) -> bool:
    """Whether two things are one object, or equal values of one immutable type; numbers are compared to the bit."""
    return x is y or bool(exact(x) == exact(y))


@singledispatch
def content_of(x: Any) -> Hashable | None:
    """A hashable form of what may change in an object that stays the same: of an array's dtype, shape and numbers.

    None for anything else; other libraries register what stands for that of their own arrays.
    """
    return None


@content_of.register
def _(x: np.ndarray) -> Hashable | None:
    return None if x.dtype.hasobject else (x.shape, x.dtype.str, x.tobytes())


def _difference(key: Hashable, text: str, before: Any, now: Any) -> Difference:
    if content_of(before) is not None or content_of(now) is not None:
        return Difference(key, f"{text} holds other numbers", before, now)
    was, is_now = _short(before), _short(now)
    told = f"{text} is another {type(now).__name__}" if was == is_now else f"{text} was {was} and is {is_now}"
    return Difference(key, told, before, now)


def _is_still(before: Any, now: Any, content: Hashable | None, live: Live | None) -> bool:
    if live is not None:
        return live.take(now)
    return is_same(before, now) if content is None else content_of(now) == content


def _names_in(holder: Any) -> list[Any]:
    """The keys of a dict, or the numbers of a container's elements."""
    return list(holder) if isinstance(holder, dict) else list(range(len(holder)))


def _elements_of(holder: Any) -> list[Any]:
    return list(holder.values() if isinstance(holder, dict) else holder)


def _short(x: Any) -> str:
    text = " ".join(repr(x).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
