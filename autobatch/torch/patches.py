"""Patches: functions that replace cells, torch modules and methods, while instances are recorded.

Torch modules are slow to look up and to call, so proxies replace them in the attributes of other modules.
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
        wrap: converts the function to the value of the attribute; None for the function itself.
    """

    cell: Cell
    owner: Any
    attributes: dict[str, Any]
    name: str
    wrap: Callable[[Any], Any] | None = None


class Patches:
    """The replacement of a module's cells by functions; cells are restored while a cell's body is traced.

    Args:
        log: the log of the recording.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._known: tuple[Sequence[Patch], dict[Entry, list[Patch]]] = (), {}
        self._patches: dict[Entry, list[Patch]] = {}
        self._before: list[tuple[dict[str, Any], str, Any]] = []
        self._around: Callable[[Any], Any] | None = None

    @contextmanager
    def applied(self, patches: Sequence[Patch], entry_of: Callable[[Cell, Any], Entry]) -> Iterator[None]:
        """Replace cells by the functions of their entries within the context.

        The entries of the last `patches` object are cached.
        """
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
        """Restore the module's own cells within the context."""
        self._undo()
        try:
            yield
        finally:
            self._apply(self._patches)

    def wrap_functions(self, around: Callable[[Any], Any] | None) -> None:
        """Wrap each function in `around` until the recording ends; None stops wrapping."""
        self._around, self._log.is_wrapped = around, around is not None
        self._apply(self._patches)

    def around(self, function: Any) -> Any:
        """Return the function, wrapped if functions are wrapped now."""
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
        # Methods, and modules in `_modules`, are found again once the patch is gone; other attributes are put back.
        for attributes, name, cell in self._before:
            attributes[name] = cell


class Found(NamedTuple):
    """Cached patches, valid as long as `holds` returns True.

    Attributes:
        where: the list in which they were found; None at first.
        patches: all patches.
        cells: the cells of those that replace methods, by class and name.
    """

    where: Any = None
    patches: Sequence[Patch] = ()
    cells: Mapping[tuple[type, str], Cell] = MappingProxyType({})

    @classmethod
    def among(cls, where: Any, patches: Iterable[Patch]) -> Found:
        """Cache the patches that were found in a list."""
        listed = [*patches]
        methods: dict[tuple[type, str], Cell] = {(type(patch.owner), patch.name): patch.cell for patch in listed}
        return cls(where, listed, {key: cell for key, cell in methods.items() if getattr(*key, None) is cell})

    def holds(self, where: Any) -> bool:
        """Return whether the list is the same object, and the classes still have the same cells."""
        return where is self.where and all(getattr(*key, None) is cell for key, cell in self.cells.items())


def patches_in(modules: Iterable[Any]) -> Iterator[Patch]:
    """Yield a patch for each torch cell among the methods of modules."""
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
