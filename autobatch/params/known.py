"""The parameters and modules under a module, found by a walk that is repeated only where something was assigned."""

from __future__ import annotations

from typing import Any

from autobatch._native import Snapshot
from autobatch.params.module import Module, holders_in
from autobatch.params.parameter import Parameter


class KnownModule:
    """Knows what is under a module.

    A walk visits modules, lists, tuples and dicts. As long as each of them holds the same objects under the same names,
    another walk would find the same. A module that finds its parameters in a way of its own is always asked.
    """

    def __init__(self, module: Module) -> None:
        self.module, self._is_own = module, type(module).parameters is Module.parameters
        self._known: tuple[Snapshot, list[Module], dict[str, Parameter]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles know the copy of the module."""
        return type(self), (self.module,)

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
