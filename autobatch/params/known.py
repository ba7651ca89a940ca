"""The parameters and modules under a module, found by a walk that is repeated only where something was assigned."""

from __future__ import annotations

from operator import attrgetter, is_
from typing import Any, NamedTuple

import numpy as np

from autobatch._native import Snapshot
from autobatch.devices.store import HOST, Store
from autobatch.params.module import Module, holders_in, shared_store
from autobatch.params.parameter import FLOAT32, Parameter

ARRAY, TRAINABLE = attrgetter("array"), attrgetter("trainable")


class ParameterState(NamedTuple):
    """The parameters of a module as they are now.

    Attributes:
        all: by name.
        trainable: those that have gradients, by name; names: their names.
        dtype: float type of all values: that of the parameters; float32 without a module.
        store: the memory of the device on which they are.
    """

    all: dict[str, Parameter]
    trainable: dict[str, Parameter]
    names: frozenset[str]
    dtype: np.dtype[Any]
    store: Store


NO_PARAMETERS = ParameterState({}, {}, frozenset(), FLOAT32, HOST)
"""The state of a function without a module."""


class KnownModule:
    """Knows what is under a module.

    A walk visits modules, lists, tuples and dicts. As long as each of them holds the same objects under the same names,
    another walk would find the same. A module that finds its parameters in a way of its own is always asked.
    """

    def __init__(self, module: Module) -> None:
        self.module, self._is_own = module, type(module).parameters is Module.parameters
        self._known: tuple[Snapshot, list[Module], dict[str, Parameter]] | None = None
        self._state, self._arrays, self._flags = NO_PARAMETERS, list[Any](), list[bool]()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles know the copy of the module."""
        return type(self), (self.module,)

    def parameters(self) -> dict[str, Parameter]:
        """The same as `Module.parameters`; the same dict until something has changed.

        Raises:
            GraphError: as there.
        """
        return self._look()[2] if self._is_own else self.module.parameters()

    def state(self) -> ParameterState:
        """The state of the parameters; the same object until something has changed. One thread asks at a time.

        Raises:
            GraphError: as `Module.parameters`; or they differ in type, or are on several devices.
        """
        known = self._known
        found = known[2] if known is not None and self._is_own and known[0].holds() else self.parameters()
        arrays, flags = [*map(ARRAY, found.values())], [*map(TRAINABLE, found.values())]
        before = self._state
        is_same = arrays and len(arrays) == len(self._arrays) and all(map(is_, arrays, self._arrays))
        if is_same and found is before.all and flags == self._flags:
            return before
        if found is before.all and flags == self._flags:
            trainable, names = before.trainable, before.names
        else:
            trainable = {name: p for name, p in found.items() if p.trainable}
            names = frozenset(trainable)
        dtypes, stores = {p.dtype for p in found.values()}, {id(p.store): p.store for p in found.values()}
        dtype = dtypes.pop() if len(dtypes) == 1 else self.module.dtype
        store = stores.popitem()[1] if len(stores) == 1 else shared_store(self.module)
        self._state = ParameterState(found, trainable, names, dtype, store)
        self._arrays, self._flags = arrays, flags
        return self._state

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
