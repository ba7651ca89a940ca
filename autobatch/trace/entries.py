"""Entries: the known call forms of each cell in a recording, and the native functions that record its calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from autobatch.ir.arguments import Key, Static
from autobatch.params.parameter import Parameter
from autobatch.trace.forms import Form, Step

OTHERWISE, PLAIN, COLLECTED = range(3)  # kinds of signatures: PLAIN without stars, COLLECTED of `*args, **kwargs`
PLAINLY = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
COLLECTING = {inspect.Parameter.VAR_POSITIONAL}, {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
AN_ARRAY, A_PARAMETER = np.zeros(1), Parameter(0.0)  # example arguments
ARRAYS, PARTS, PARAMETERS = 1, 2, 4  # flags of arguments that become sources, as in `native/record/function.cpp`
Known: TypeAlias = Mapping[tuple[Step, ...], Form]
"""The forms in which a cell has been called, oldest first, by the steps that identify them."""


@dataclass(eq=False)
class Entry:
    """The state that a recording keeps for one cell, op or function built from ops.

    Attributes:
        name: name of the cell.
        identity: the entry's part of a type's key; the rest describes the arguments.
        origin: the callable: ("cell", cell, owner), ("op", op, static), ("function", function),
            ("source", is_ragged), ("parameter", parameter), or others, some of which exist only in this process.
        signature: the signature, without the module.
        names: names of the arguments.
        run: runs the body on arguments by name, for tracing.
        is_static: whether an argument (name, value), or a value in it, is part of the type.
        plain: the cell itself, for callers that do not record.
        function: the native function that records calls; made when the entry is added to a recording.
        wraps: whether arrays among the arguments become sources; else they are data.
        lists: whether sequences that hold values become lists of values only.
        ragged: the arguments whose arrays have any number of rows.
        as_floats: the arguments in which ints become floats.
        known: the forms met so far.
        former: the forms of former types, which the cell may have again, by the types' numbers.
        fixed: by the keys of the arguments and the lengths of the lists, the arguments or parts of them (by
            expression) whose length (of a list) or numbers (of data) the body needs.
    """

    name: str
    identity: tuple[Static, ...]
    signature: inspect.Signature
    run: Callable[[Mapping[str, Any]], Any]
    is_static: Callable[[str, Any], bool]
    origin: tuple[Any, ...]
    plain: Any = None
    wraps: bool = True
    lists: bool = False
    ragged: tuple[str, ...] = ()
    as_floats: frozenset[str] = frozenset()
    known: Known = field(default_factory=dict)
    function: Any = None
    former: dict[Hashable, Known] = field(default_factory=dict)
    fixed: dict[tuple[tuple[tuple[str, Key], ...], tuple[int, ...]], set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parameters = self.signature.parameters
        self.names = tuple(parameters)
        self.defaults = tuple(p.default for p in parameters.values() if p.default is not p.empty)
        kinds = {p.kind for p in parameters.values()}
        self.takes = PLAIN if kinds <= PLAINLY else COLLECTED if kinds in COLLECTING else OTHERWISE
        self.keywords = tuple("" if p.kind is p.POSITIONAL_ONLY else p.name for p in parameters.values())

    @property
    def is_derivative(self) -> bool:
        """Return whether the entry computes derivatives of the calls of another entry."""
        kind: str = self.origin[0]
        return kind == "derivative"

    def uses(self, gone: set[int]) -> bool:
        """Return whether the entry belongs to an object with one of these `id`s."""
        return any(not gone.isdisjoint(ids_in(static.value)) for static in self.identity)

    def clear(self) -> None:
        """Drop all references; the entry is never called again."""
        self.identity, self.origin, self.plain, self.run = (), ("forgotten",), None, _forgotten
        self.known, self.function.forms = {}, ()
        self.former.clear()
        self.fixed.clear()

    def wrapped(self) -> bytes:
        """Return the `wraps` of the native function, a byte for each argument."""
        return bytes(map(self._wrapped, self.names))

    def _wrapped(self, name: str) -> int:
        if name in self.ragged or self.is_static(name, AN_ARRAY):
            return 0
        # Sequences that become lists of values (`to_values`) or are static are left to Python, so the core wraps no
        # parts.
        is_whole = self.lists or self.is_static(name, (AN_ARRAY,))
        return (ARRAYS if is_whole else PARTS) | (0 if self.is_static(name, A_PARAMETER) else PARAMETERS)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the arguments of a call, in order; raise a TypeError if they do not fit."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}() {self._fault(args, kwargs) or error}") from None
        bound.apply_defaults()
        return [*bound.arguments.values()]

    def _fault(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return Python's message for a call with missing or unknown arguments; "" for other faults."""
        parameters = self.signature.parameters.values()
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            for name in kwargs.keys() - self.names:
                return f"got an unexpected keyword argument {name!r}"
        positional = [p for p in parameters if p.kind in PLAINLY]
        missing = [p.name for p in positional[len(args) :] if p.default is p.empty and p.name not in kwargs]
        if not missing:
            return ""
        *others, last = map(repr, missing)
        listed = f"{', '.join(others)} and {last}" if others else last
        return f"missing {len(missing)} required positional argument{'s' * (len(missing) > 1)}: {listed}"

    def call_plainly(self, args: Sequence[Any]) -> Any:
        """Call the cell itself with arguments in order."""
        return invoke(self.plain, self.signature, dict(zip(self.names, args, strict=True)))


def ids_in(x: Any) -> set[int]:
    """Return the `id`s of an object and of everything in its tuples, such as the parameters of a derivative pattern."""
    return {id(x)}.union(*map(ids_in, x)) if isinstance(x, tuple) else {id(x)}


def _forgotten(arguments: Mapping[str, Any]) -> Any:
    raise AssertionError("a forgotten entry was called")


def invoke(function: Callable[..., Any], signature: inspect.Signature, arguments: Mapping[str, Any]) -> Any:
    """Call `function` with arguments by name; each is passed as its parameter's kind requires."""
    args, kwargs = list[Any](), dict[str, Any]()
    for name, parameter in signature.parameters.items():
        match parameter.kind:
            case parameter.POSITIONAL_OR_KEYWORD | parameter.POSITIONAL_ONLY:  # first, as nearly all are
                args.append(arguments[name])
            case parameter.VAR_POSITIONAL:
                args += arguments[name]
            case parameter.VAR_KEYWORD:
                kwargs |= arguments[name]
            case _:
                kwargs[name] = arguments[name]
    return function(*args, **kwargs)
