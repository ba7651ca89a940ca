"""Handles: what the user's program holds in place of a node's outputs while it is recorded.

A handle is a small immutable object with a number, `ref = id << 8 | output`. Making one costs more than the rest
of a recorded call, so each `Kind` (one structure of output shapes) hands out pooled ones and takes them back
once enough have been used and nobody holds them any more, by their reference counts. A handle that somebody
still holds is never handed out again, so a value kept from an earlier recording is told by its id.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from autobatch.arguments import Key
from autobatch.errors import GraphError
from autobatch.ops.define import Op, Shape
from autobatch.ops.operators import STAGE, Symbol

if TYPE_CHECKING:
    from autobatch.calls import Calls

OUTPUT_BITS = 8
CHUNK = 64
RECYCLE = 8192  # handles of a kind in use before they are taken back: a few hundred trees


class Value(Symbol):
    """One output of a recorded node. Subclasses, one per shape, belong to one recorder."""

    __slots__ = ("ref",)
    shape: Shape
    calls: Calls
    kind: Kind

    def __init__(self, ref: int) -> None:
        self.ref = ref

    def apply(self, op: Op, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """Record an op outside any cell, as a cell of its own."""
        return self._current().apply(op, args, static)

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a function made of ops as a cell of its own."""
        return self._current().apply_function(function, args, kwargs)

    def _current(self) -> Calls:
        recording = STAGE.current is self.calls
        if not recording:
            raise GraphError(
                f"{self!r} is used outside the recording that made it; a recorded value means something only while "
                f"its instance is recorded. Return it from the function to get its number."
            )
        return self.calls

    def __repr__(self) -> str:
        return f"<recorded value of shape {self.shape}>"


class Bundle(tuple[Any, ...]):
    """The outputs of a recorded node that returns a tuple. Subclasses, one per structure, belong to one recorder."""

    ref: int
    calls: Calls
    kind: Kind


class Kind:
    """The pool of handles for one structure of outputs.

    Attributes:
        structure: a shape key, or a tuple key of such.
        cls: the class of the handles; a generated fast path knows them by it.
        idle: the reference counts of a handle that nobody holds, and of a value in it.
    """

    def __init__(self, calls: Calls, number: int, structure: Key) -> None:
        self.calls, self.number, self.structure = calls, number, structure
        self.is_bundle = structure.kind == "tuple"
        base, detail = (Bundle, {}) if self.is_bundle else (Value, {"shape": structure.detail, "__slots__": ()})
        self.cls: Any = type(base.__name__, (base,), {**detail, "calls": calls, "kind": self})
        self.handles: list[Any] = []
        self.parts: list[Value] = []
        self.idle = (0, 0)
        self._iterator: Iterator[Any] = iter(self.handles)

    @property
    def take(self) -> Callable[[], Any]:
        """Takes the next handle; StopIteration when the pool is used up (then `grow`)."""
        return self._iterator.__next__

    @property
    def used(self) -> int:
        """Handles taken since the pool was last recycled."""
        return len(self.handles) - operator.length_hint(self._iterator)

    def grow(self) -> Any:
        """Add a chunk of handles and take the first of them."""
        start = len(self.handles)
        for place in range(start, start + CHUNK):
            self._put(place)
        if not start:
            own, inner = self._reference_counts()
            self.idle = (min(own), min(inner, default=0))
        self._restart(start)
        return self.take()

    def recycle(self) -> None:
        """Start again from the first handle if many are used, replacing those that somebody still holds."""
        if self.used >= RECYCLE:
            own, inner = self._reference_counts()
            if max(own) > self.idle[0] or max(inner, default=0) > self.idle[1]:
                held = {place for place, count in enumerate(own) if count > self.idle[0]}
                width = len(self.parts) // len(self.handles)
                for place in held.union(k // width for k, count in enumerate(inner) if count > self.idle[1]):
                    self._put(place)
            self._restart(0)

    def _put(self, place: int) -> None:
        ref, parts = self.calls.new_handle() << OUTPUT_BITS, list[Value]()
        handle = self._make(self.structure, ref, parts)
        self.handles[place : place + 1] = [handle]
        self.parts[place * len(parts) : (place + 1) * len(parts)] = parts

    def _make(self, key: Key, ref: int, parts: list[Value]) -> Any:
        """The handle of this structure; the values inside a bundle are added to `parts`."""
        if key is self.structure:
            if not self.is_bundle:
                return self.cls(ref)
            bundle = self.cls(self._make(child, ref, parts) for child in key.children)
            bundle.ref = ref
            return bundle
        if key.kind == "value":
            parts.append(self.calls.kind(key).cls(ref + len(parts)))
            return parts[-1]
        return tuple(self._make(child, ref, parts) for child in key.children)

    def _reference_counts(self) -> tuple[list[int], list[int]]:
        """How many hold each handle, and each value in a bundle."""
        return list(map(sys.getrefcount, self.handles)), list(map(sys.getrefcount, self.parts))

    def _restart(self, place: int) -> None:
        self._iterator = iter(self.handles)
        self._iterator.__setstate__(place)  # type: ignore[attr-defined]
        self.calls.renew(self)
