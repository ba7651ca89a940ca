"""Guards: what the bodies of cells read from Python when they were traced, and whether it is still the same.

A guard is one thing that was read: an attribute of an object, an item of a namespace, or what a list or dict holds. It
holds as long as the very same object is there, or an equal number or text; arrays are compared with a copy of what they
held. `Watchlist.holds` looks at all guards in force, once per call: mostly a comparison of two objects for each, a
twentieth of a microsecond.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from autobatch.ir.arguments import exact
from autobatch.trace.live import Live, can_be_live

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "nothing"})()


class Difference(NamedTuple):
    """Something that is not what it was when it was read.

    Attributes:
        key: tells the place.
        told: what happened, in words.
        before, now: what was there, and is.
    """

    key: Hashable
    told: str
    before: Any
    now: Any

    @property
    def is_numeric(self) -> bool:
        """Whether numbers changed, and nothing else: these may be inputs of programs."""
        return can_be_live(self.before) and can_be_live(self.now) and np.shape(self.before) == np.shape(self.now)


class Read:
    """Something that was read under a name.

    Args:
        holder: what it was read from; kept, since the place is known by its `id`.
        get: `get(name, default)` gives what is there now.
        name: of the attribute or item.
        text: what it is, in messages.
        seen: what was read.
        live: stands for it in the program, if it is an input of that.

    Attributes:
        key: equal for reads of one place.
        seen: what was there when it was last compared.
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
        """Compare with what is there now from here on."""
        self._take(self.now())

    @property
    def is_deep(self) -> bool:
        """Whether the same object may hold something else by now."""
        return isinstance(self.seen, np.ndarray)

    def now(self) -> Any:
        """What is there now."""
        return self.get(self.name, MISSING)

    def holds(self) -> bool:
        """Compare what is there now, arrays by content; a live number takes the new value."""
        found = self.now()
        same = _is_still(self.seen, found, self._content, self.live)
        if same:
            self.seen = found
        return same

    def differences(self) -> list[Difference]:
        """What is not as it was read."""
        return [] if self.holds() else [_difference(self.key, self.text, self.seen, self.now())]


class Contents:
    """What a list, tuple, dict or set held when it was read.

    Args:
        holder: it.
        text: what it is, in messages.
        lives: by index or key what stands for an element in the program.
    """

    is_deep = True

    def __init__(self, holder: Any, text: str, lives: Mapping[Any, Live]) -> None:
        self.holder, self.text, self.lives = holder, text, lives
        self.key: Hashable = ("contents", id(holder))
        self.retake()

    def retake(self) -> None:
        """Compare with what it holds now from here on."""
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
        """The elements that are not as they were read, or the whole if there are others."""
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
    """The guards of all traces in force, each place once; what is checked in every call."""

    def __init__(self, guards: Iterable[Guard]) -> None:
        found = {(guard.key, id(guard.seen) if isinstance(guard, Read) else 0): guard for guard in guards}
        self.guards = list(found.values())
        self._deep = [guard for guard in self.guards if guard.is_deep]
        self._quick = [guard for guard in self.guards if isinstance(guard, Read) and not guard.is_deep]
        self._seen = [(guard.get, guard.name, guard.seen) for guard in self._quick]

    def holds(self) -> bool:
        """Whether everything is as it was read; live numbers take their new values."""
        for at, (get, name, seen) in enumerate(self._seen):
            if get(name, MISSING) is not seen:
                guard = self._quick[at]
                if not guard.holds():
                    return False
                self._seen[at] = (get, name, guard.seen)
        return all(guard.holds() for guard in self._deep)


def differences(guards: Iterable[Guard]) -> list[Difference]:
    """All that is not as it was read."""
    return [difference for guard in guards for difference in guard.differences()]


def are(found: list[Any], seen: list[Any]) -> bool:
    """Whether two lists hold the same objects."""
    return len(found) == len(seen) and all(map(operator.is_, found, seen))


def is_same(x: Any, y: Any) -> bool:
    """Whether two things are one object, or equal values of one type that cannot change: numbers to the bit."""
    return x is y or bool(exact(x) == exact(y))


def content_of(x: Any) -> Hashable | None:
    """What an array holds; None for anything else."""
    if not isinstance(x, np.ndarray) or x.dtype.hasobject:
        return None
    return x.shape, x.dtype.str, x.tobytes()


def _difference(key: Hashable, text: str, before: Any, now: Any) -> Difference:
    if isinstance(before, np.ndarray) or isinstance(now, np.ndarray):
        return Difference(key, f"{text} holds other numbers", before, now)
    return Difference(key, f"{text} was {_short(before)} and is {_short(now)}", before, now)


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
    text = repr(x)
    return text if len(text) <= 60 else f"{text[:57]}..."
