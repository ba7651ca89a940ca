"""Entries: what stands in the place of cells while programs are recorded, and how their functions are generated."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from autobatch.ir.arguments import Key, Static
from autobatch.params.module import Module
from autobatch.trace.cell import Cell
from autobatch.trace.forms import Form, write_function


@dataclass(eq=False)
class Entry:
    """What stands in the place of one cell, op or function of ops while programs are recorded.

    Attributes:
        name: of the cell.
        identity: tells this entry's types from others', beside the arguments.
        signature: the arguments, without the module.
        run: runs the body on arguments by name, for tracing.
        plain: the cell itself, for callers that do not record.
        is_static: whether an argument (name, value), or a value in it, is part of the type.
        function: the generated function; replaced when a form is added.
        forms: those that the function knows.
        by_form: for each form met, a function that knows it alone.
        shelf: forms, `by_form` and function for when the cell has other types again, by their numbers.
        fixed: for arguments of these keys, a list (by expression) whose length the body needs.
        place: the namespace in which the function stands, and its name there.
        lifts: whether arrays among the arguments become sources; else they are data.
        lists: whether sequences with values among the arguments become lists of values alone.
    """

    name: str
    identity: tuple[Static, ...]
    signature: inspect.Signature
    run: Callable[[Mapping[str, Any]], Any]
    is_static: Callable[[str, Any], bool]
    plain: Any = None
    function: Any = None
    forms: list[Form] = field(default_factory=list)
    by_form: dict[tuple[str, ...], Any] = field(default_factory=dict)
    shelf: dict[Hashable, tuple[list[Form], dict[tuple[str, ...], Any], Any]] = field(default_factory=dict)
    fixed: dict[tuple[tuple[str, Key], ...], str] = field(default_factory=dict)
    place: tuple[dict[str, Any], str] | None = None
    lifts: bool = True
    lists: bool = False


class Namespace:
    """The globals of the generated functions.

    Attributes:
        names: by which the functions know things; a plain dict, for in any other Python looks names up much slower.
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = dict(names)
        self._constants: dict[Static, str] = {}
        self._n_functions = 0

    def constant(self, x: Any) -> str:
        """The name of `x`."""
        key = Static(x)
        if key not in self._constants:
            self._constants[key] = f"constant_{len(self._constants)}"
            self.names[self._constants[key]] = x
        return self._constants[key]

    def generate(self, entry: Entry, forms: Sequence[Form], slow: Callable[..., Any]) -> Any:
        """Make a function with the signature of `entry` that logs calls of these forms and passes others to `slow`."""
        self._n_functions += 1
        name = f"entry_{self._n_functions}"
        parameters = [
            p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else _Text(self.constant(p.default)))
            for p in entry.signature.parameters.values()
        ]
        header = str(inspect.Signature(parameters))[1:-1]
        source = write_function(name, header, ", ".join(entry.signature.parameters), forms)
        self.names[f"slow_{name}"] = slow
        exec(compile(source, f"<recording of {entry.name}>", "exec"), self.names)
        function = self.names[name]
        function.__qualname__ = entry.name  # what Python's own messages call it
        function.stands_in = True  # copies of a module leave it out
        return function


class _Text:
    """Prints as a name; a signature's default in generated source."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class Stand:
    """The entries that stand in the place of a module's cells; they step aside while a cell's body is traced."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    @contextmanager
    def in_place(self, module: Module | None, entry_of: Callable[[Cell, Module], Entry]) -> Iterator[None]:
        """Let entries stand in the place of all cells of `module` and its submodules."""
        for owner in module.modules() if module is not None else ():
            kind: type = type(owner)
            for name, cell in _cells_of(kind).items():
                if name not in vars(owner):
                    entry = entry_of(cell, owner)
                    entry.place = (vars(owner), name)
                    self.entries.append(entry)
        try:
            self._stand()
            yield
        finally:
            self._step_aside()
            self.entries.clear()

    @contextmanager
    def stepped_aside(self) -> Iterator[None]:
        """Put the cells themselves back for a while."""
        self._step_aside()
        try:
            yield
        finally:
            self._stand()

    def renew(self, entry: Entry) -> None:
        """Let the new function of an entry stand where the old one stood."""
        if entry in self.entries and entry.place is not None:
            place, name = entry.place
            place[name] = entry.function

    def _stand(self) -> None:
        for entry in self.entries:
            self.renew(entry)

    def _step_aside(self) -> None:
        for entry in self.entries:
            if entry.place is not None:
                place, name = entry.place
                place.pop(name, None)


@cache
def _cells_of(kind: type) -> dict[str, Cell]:
    """The cells among the methods of a class, by name."""
    members = {name: member for base in reversed(kind.__mro__) for name, member in vars(base).items()}
    return {name: member for name, member in members.items() if isinstance(member, Cell)}


def invoke(function: Callable[..., Any], signature: inspect.Signature, arguments: Mapping[str, Any]) -> Any:
    """Call `function` with arguments by name, each passed as its kind wants."""
    args, kwargs = list[Any](), dict[str, Any]()
    for name, parameter in signature.parameters.items():
        match parameter.kind:
            case parameter.VAR_POSITIONAL:
                args += arguments[name]
            case parameter.VAR_KEYWORD:
                kwargs |= arguments[name]
            case parameter.KEYWORD_ONLY:
                kwargs[name] = arguments[name]
            case _:
                args.append(arguments[name])
    return function(*args, **kwargs)
