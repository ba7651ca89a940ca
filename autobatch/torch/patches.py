"""Patches: functions that replace modules of torch, and methods that are cells, while instances are recorded.

Modules of torch are slow to find and to call, so proxies take their places in the attributes of other modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

from autobatch._native import Log
from autobatch.torch.cells import TorchCell
from autobatch.trace.cell import Cell
from autobatch.trace.entries import Entry


class Patch(NamedTuple):
    """An attribute that is set to a function in place of a cell while programs are recorded.

    Attributes:
        cell, owner: the cell, and its module.
        attributes, name: the dict of the object's attributes, and the attribute's name.
        wrap: makes the attribute's value of the function; None for the function itself.
    """

    cell: Cell
    owner: Any
    attributes: dict[str, Any]
    name: str
    wrap: Callable[[Any], Any] | None = None


class Patches:
    """Replaces a module's cells by functions; the cells are restored while a cell's body is traced.

    Args:
        log: of the recording.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._known: tuple[Sequence[Patch], dict[Entry, list[Patch]]] = (), {}
        self._patches: dict[Entry, list[Patch]] = {}
        self._before: list[tuple[dict[str, Any], str, Any]] = []
        self._around: Callable[[Any], Any] | None = None

    @contextmanager
    def applied(self, patches: Sequence[Patch], entry_of: Callable[[Cell, Any], Entry]) -> Iterator[None]:
        """Within the context, the functions of entries replace cells; the same patches have the same entries."""
        if patches is not self._known[0]:
            by_entry: dict[Entry, list[Patch]] = {}
            for patch in patches:
                by_entry.setdefault(entry_of(patch.cell, patch.owner), []).append(patch)
            self._known = patches, by_entry
        self._patches = self._known[1]
        self._before = [(p.attributes, p.name, p.attributes[p.name]) for p in patches if p.name in p.attributes]
        try:
            self._apply(self._patches)
            yield
        finally:
            self._undo()
            self._patches, self._before, self._around, self._log.is_wrapped = {}, [], None, False

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Within the context, the module has its own cells."""
        self._undo()
        try:
            yield
        finally:
            self._apply(self._patches)

    def wrap_functions(self, around: Callable[[Any], Any] | None) -> None:
        """Wrap each function in `around` from now on, until the recording ends; None: no longer."""
        self._around, self._log.is_wrapped = around, around is not None
        self._apply(self._patches)

    def around(self, function: Any) -> Any:
        """The function, wrapped if functions are."""
        return function if self._around is None else self._around(function)

    def _apply(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            function = self.around(entry.function)
            for patch in self._patches[entry]:
                patch.attributes[patch.name] = function if patch.wrap is None else patch.wrap(function)

    def _undo(self) -> None:
        for entry in self._patches:
            for patch in self._patches[entry]:
                if patch.name in patch.attributes:
                    del patch.attributes[patch.name]
        for attributes, name, cell in self._before:
            attributes[name] = cell


class Found(NamedTuple):
    """The patches that were found once, which stay valid while `holds` says so.

    Attributes:
        where: the list in which they were found; None at first.
        patches: all of them.
        cells: of those that replace methods, by class and name.
    """

    where: Any = None
    patches: Sequence[Patch] = ()
    cells: Mapping[tuple[type, str], Cell] = MappingProxyType({})

    @classmethod
    def among(cls, where: Any, patches: Iterable[Patch]) -> Found:
        """What was found in a list."""
        listed = [*patches]
        methods: dict[tuple[type, str], Cell] = {(type(patch.owner), patch.name): patch.cell for patch in listed}
        return cls(where, listed, {key: cell for key, cell in methods.items() if getattr(*key, None) is cell})

    def holds(self, where: Any) -> bool:
        """Whether they are those of this list: it is the same, and the classes have the same cells."""
        return where is self.where and all(getattr(*key, None) is cell for key, cell in self.cells.items())


def patches_in(modules: Iterable[Any]) -> Iterator[Patch]:
    """Yield the cells of torch among the methods of modules, each of which a function may replace on its module."""
    found: dict[type, dict[str, Cell]] = {}
    for owner in modules:
        kind: type = type(owner)
        if kind not in found:
            found[kind] = _cells_of(kind)
        for name, cell in found[kind].items():
            if name not in vars(owner):
                yield Patch(cell, owner, vars(owner), name)


def _cells_of(kind: type) -> dict[str, Cell]:
    """Return the cells of torch among the methods of a class, by name."""
    members = {name: member for base in reversed(kind.__mro__) for name, member in vars(base).items()}
    return {name: member for name, member in members.items() if isinstance(member, TorchCell)}
