"""Guards: what the bodies of cells read from Python when they were traced, and whether it is still the same.

A guard is one thing that was read: an attribute of an object, an item of a namespace, or what a list or dict holds. It
holds as long as the very same object is there, or an equal number or text; arrays are compared with a copy of what they
held. `Watchlist.check` looks at all guards in force, once per call: mostly a comparison of two objects for each, a
twentieth of a microsecond.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from autobatch.ir.arguments import exact
from autobatch.trace.live import Live, can_be_live

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "nothing"})()
Getter: TypeAlias = Callable[[Any, Any], Any]


class Read:
    """Something that was read under a name.

    Args:
        key: equal for reads of one place.
        holder: what it was read from; kept, since the key has its `id`.
        get: `get(name, default)` gives what is there now.
        name: of the attribute or item.
        text: what it is, in messages.
        seen: what was read.
        live: stands for it in the program, if it is an input of that.

    Attributes:
        seen: what was there when it was last compared.
    """

    def __init__(
        self, key: Hashable, holder: object, get: Callable[..., Any], name: Any, text: str, seen: Any,
        live: Live | None = None,
    ) -> None:  # fmt: skip
        self.key, self.holder, self.get, self.name, self.text, self.live = key, holder, get, name, text, live
        self._take(seen)

    def _take(self, seen: Any) -> None:
        self.seen = seen
        self._content = content_of(seen) if self.live is None else None

    def retake(self) -> None:
        """Go by what is there now from now on."""
        self._take(self.now())

    @property
    def is_deep(self) -> bool:
        """Whether the same object may hold something else by now."""
        return isinstance(self.seen, np.ndarray)

    def now(self) -> Any:
        """What is there now."""
        return self.get(self.name, MISSING)

    def holds(self) -> bool:
        """Compare thoroughly what is there now; a live number notes it."""
        found = self.now()
        if self.live is not None:
            same = self.live.take(found)
        elif self._content is not None:
            same = content_of(found) == self._content
        else:
            same = is_same(found, self.seen)
        if same:
            self.seen = found
        return same

    def changed(self) -> dict[Hashable, str]:
        """The places that differ, with what they are, before and now."""
        found = self.now()
        if isinstance(found, np.ndarray) or isinstance(self.seen, np.ndarray):
            return {self.key: f"{self.text} holds other numbers"}
        return {self.key: f"{self.text} was {_short(self.seen)} and is {_short(found)}"}


class Contents:
    """What a list, tuple, dict or set held that was read.

    Args:
        holder: it.
        text: what it is, in messages.
        lives: by index or key what stands for an element in the program.
    """

    def __init__(self, holder: Any, text: str, lives: Mapping[Any, Live]) -> None:
        self.holder, self.text, self.lives = holder, text, lives
        self.key: Hashable = ("contents", id(holder))
        self.retake()

    def retake(self) -> None:
        """Go by what it holds now from now on."""
        holder = self.holder
        self.names, self.seen = keys_of(holder), values_of(holder)
        self._content = {name: content_of(x) for name, x in zip(self.names, self.seen, strict=True)}
        self._is_plain = not any(content is not None for content in self._content.values())

    def holds(self) -> bool:
        """Compare the elements; live numbers note theirs."""
        found = values_of(self.holder)
        if self._is_plain and are(found, self.seen) and are(keys_of(self.holder), self.names):
            return True
        if self.changed():
            return False
        self.seen = found
        return True

    def changed(self) -> dict[Hashable, str]:
        """The elements that differ, or the whole if there are others."""
        names, found = keys_of(self.holder), values_of(self.holder)
        if not is_same(tuple(names), tuple(self.names)):
            return {self.key: f"{self.text} has other elements"}
        return {
            (id(self.holder), name): f"{self.text}[{name!r}] was {_short(before)} and is {_short(now)}"
            for name, before, now in zip(names, self.seen, found, strict=True)
            if not self._is_still(name, before, now)
        }

    def _is_still(self, name: Any, before: Any, now: Any) -> bool:
        if name in self.lives:
            return self.lives[name].take(now)
        if self._content[name] is not None:
            return content_of(now) == self._content[name]
        return is_same(now, before)


Guard: TypeAlias = Read | Contents


class Watchlist:
    """The guards of all traces in force, each place once; what is checked in every call."""

    def __init__(self, guards: Iterable[Guard]) -> None:
        found = {(guard.key, id(guard.seen) if isinstance(guard, Read) else 0): guard for guard in guards}
        self.guards = list(found.values())
        self._deep = [guard for guard in self.guards if isinstance(guard, Contents) or guard.is_deep]
        self._quick = [guard for guard in self.guards if isinstance(guard, Read) and not guard.is_deep]
        self._seen = [(guard.get, guard.name, guard.seen) for guard in self._quick]

    def holds(self) -> bool:
        """Whether everything is as it was read; live numbers are noted."""
        for at, (get, name, seen) in enumerate(self._seen):
            if get(name, MISSING) is not seen:
                guard = self._quick[at]
                if not guard.holds():
                    return False
                self._seen[at] = (get, name, guard.seen)
        return all(guard.holds() for guard in self._deep)


def are(found: list[Any], seen: list[Any]) -> bool:
    """Whether all are the very objects."""
    return len(found) == len(seen) and all(map(operator.is_, found, seen))


def is_same(x: Any, y: Any) -> bool:
    """Whether two things are one object, or equal values of one type that cannot change: numbers to the bit."""
    return x is y or bool(exact(x) == exact(y))


def content_of(x: Any) -> Hashable | None:
    """What an array holds; None for anything else."""
    if not isinstance(x, np.ndarray) or x.dtype.hasobject:
        return None
    return x.shape, x.dtype.str, x.tobytes()


def keys_of(holder: Any) -> list[Any]:
    """The keys of a dict, or the numbers of a container's elements."""
    return list(holder) if isinstance(holder, dict) else list(range(len(holder)))


def values_of(holder: Any) -> list[Any]:
    """The elements of a container."""
    return list(holder.values() if isinstance(holder, dict) else holder)


def changed_numbers(guard: Guard) -> set[Hashable]:
    """The places of a guard that held a number, or numbers, and hold others now: these may be inputs of programs."""
    if isinstance(guard, Read):
        pairs = {guard.key: (guard.seen, guard.now())}
    else:
        known = zip(guard.names, guard.seen, values_of(guard.holder), strict=False)
        pairs = {(id(guard.holder), name): (before, now) for name, before, now in known}
    differing = {key: pairs[key] for key in guard.changed() if key in pairs}
    return {
        key for key, (before, now) in differing.items()
        if can_be_live(before) and can_be_live(now) and np.shape(before) == np.shape(now)
    }  # fmt: skip


def _short(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= 60 else f"{text[:57]}..."
