"""Cached walks over a module: its parameters and submodules, found again only after an assignment."""

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
    """The current parameters of a module.

    Attributes:
        all: parameters by name.
        trainable: trainable parameters by name.
        names: names of the trainable parameters.
        dtype: common dtype of the parameters, and so of all values; float32 without a module.
        store: device memory that holds the parameters.
    """

    all: dict[str, Parameter]
    trainable: dict[str, Parameter]
    names: frozenset[str]
    dtype: np.dtype[Any]
    store: Store


NO_PARAMETERS = ParameterState({}, {}, frozenset(), FLOAT32, HOST)
"""The state of a function without a module."""


class KnownModule:
    """A module with a cache of its parameters and submodules.

    A walk visits modules, lists, tuples and dicts. Its result is reused while each of them holds the same objects under
    the same names. Nothing is cached for a class that overrides `parameters`.
    """

    def __init__(self, module: Module) -> None:
        self.module, self._is_own = module, type(module).parameters is Module.parameters
        self._known: tuple[Snapshot, list[Module], dict[str, Parameter]] | None = None
        self._state, self._arrays, self._flags = NO_PARAMETERS, list[Any](), list[bool]()

    def __reduce__(self) -> tuple[Any, ...]:
        """Make copies and pickles refer to the copied module."""
        return type(self), (self.module,)

    def parameters(self) -> dict[str, Parameter]:
        """Return `Module.parameters()`; the same dict object until something changes.

        Raises:
            GraphError: as for `Module.parameters`.
        """
        return self._look()[2] if self._is_own else self.module.parameters()

    def state(self) -> ParameterState:
        """Return the state of the parameters; the same object until something changes. Not thread-safe.

        Raises:
            GraphError: as for `Module.parameters`; or the parameters differ in dtype or device.
        """
        known = self._known
        found = known[2] if known is not None and self._is_own and known[0].holds() else self.parameters()
        arrays, flags = [*map(ARRAY, found.values())], [*map(TRAINABLE, found.values())]
        before = self._state
        # Without parameters, the device is the default one of the module, which may change.
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
        """Return the module and all its submodules, each once, in the order of definition."""
        return self._look()[1]

    def _look(self) -> tuple[Snapshot, list[Module], dict[str, Parameter]]:
        """Return a snapshot of the holders, the modules and the parameters. Thread-safe."""
        known = self._known
        if known is None or not known[0].holds():
            holders = holders_in(self.module)
            modules = [x for x in holders if isinstance(x, Module)]
            snapshot = Snapshot([x for x in holders if not isinstance(x, Module)], modules)
            known = self._known = snapshot, modules, self.module.parameters()
        return known
