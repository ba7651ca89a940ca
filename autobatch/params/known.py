"""The parameters and modules under a module, found by a walk that is repeated only where something was assigned."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import is_, methodcaller
from types import MappingProxyType
from typing import Any

from autobatch.params.module import Module, holders_in
from autobatch.params.parameter import Parameter

VALUES = methodcaller("values")


class Snapshot:
    """The objects in lists, dicts and other containers, and in the attributes of other objects, at one moment.

    Args:
        containers: these lists, dicts and others.
        owners: these other objects.
    """

    def __init__(self, containers: Sequence[Any], owners: Sequence[Any] = ()) -> None:
        self._dicts = [x for x in containers if isinstance(x, (dict, MappingProxyType))]
        self._others = [x for x in containers if not isinstance(x, (dict, MappingProxyType))]
        self._owners = owners
        self._lengths, objects = self._look()
        self._objects = [*objects]

    def _look(self) -> tuple[list[int], chain[Any]]:
        """The lengths of all containers; and, one after the other, all that is in them."""
        dicts = [*map(vars, self._owners), *self._dicts]
        containers = [*self._others, *dicts]
        return [*map(len, containers)], chain.from_iterable([*containers, *map(VALUES, dicts)])

    def holds(self) -> bool:
        """Whether all containers have the same objects, under the same names.

        Cost: a pass over all objects within a few calls, however many containers there are.
        """
        lengths, objects = self._look()
        return lengths == self._lengths and all(map(is_, objects, self._objects))


class KnownModule:
    """Knows what is under a module.

    A walk visits modules, lists, tuples and dicts. As long as each of them holds the same objects under the same names,
    another walk would find the same. A module that finds its parameters in a way of its own is always asked.
    """

    def __init__(self, module: Module) -> None:
        self.module, self._is_own = module, type(module).parameters is Module.parameters
        self._known: tuple[Snapshot, list[Module], dict[str, Parameter]] | None = None

    def parameters(self) -> dict[str, Parameter]:
        """The same as `Module.parameters`; the same dict until something has changed.

        Raises:
            GraphError: as there.
        """
        return self._look()[2] if self._is_own else self.module.parameters()

    def modules(self) -> list[Module]:
        """The module and all under it, each once, in the order of definition."""
        return self._look()[1]

    def _look(self) -> tuple[Snapshot, list[Module], dict[str, Parameter]]:
        """The modules and parameters, and when they were found; several threads may look at a time."""
        known = self._known
        if known is None or not known[0].holds():
            holders = holders_in(self.module)
            modules = [x for x in holders if isinstance(x, Module)]
            snapshot = Snapshot([x for x in holders if not isinstance(x, Module)], modules)
            known = self._known = snapshot, modules, self.module.parameters()
        return known
