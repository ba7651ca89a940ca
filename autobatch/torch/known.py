"""The tensors of a torch module, found by a walk that is repeated only after assignments.

`named_parameters` and `named_buffers` of `nn.Module` read only the dicts `_parameters`, `_buffers` and `_modules` of
each module: as long as these hold the same objects under the same names, another walk would find the same. A module
that overrides the walks, or replaces these dicts, is walked every time.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import is_
from typing import NamedTuple, TypeAlias

from torch import Tensor, nn

from autobatch._native import Snapshot

WALKS = ("named_parameters", "named_buffers", "named_modules", "_named_members")
DICTS = ("_parameters", "_buffers", "_modules")
Place: TypeAlias = tuple[object, str]
"""The place of a tensor: the `id` of its module, and its name there."""


class Walk(NamedTuple):
    """The result of a walk over a module.

    Attributes:
        named: the parameters, then the buffers, each once.
        modules: the module and all its submodules, kept alive so that `id`s stay unique.
        places: all places; a tensor may be in several.
    """

    named: list[tuple[str, Tensor]]
    modules: list[nn.Module]
    places: dict[Place, Tensor]

    def has_modules_of(self, other: Walk) -> bool:
        """Return whether another walk found the same modules."""
        return len(self.modules) == len(other.modules) and all(map(is_, self.modules, other.modules))

    def is_same(self, other: Walk) -> bool:
        """Return whether another walk found the same modules, and the same tensors in the same places."""
        tensors = self.places.values(), other.places.values()
        return self.has_modules_of(other) and [*self.places] == [*other.places] and all(map(is_, *tensors))

    def by_tensor(self) -> dict[int, set[Place]]:
        """Return the places of each tensor, by `id`."""
        found: dict[int, set[Place]] = {}
        for place, tensor in self.places.items():
            found.setdefault(id(tensor), set()).add(place)
        return found


class KnownTensors:
    """The cached walk over the parameters and buffers of a torch module."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._walk = Walk([], [], {})
        self._kinds: list[type[nn.Module]] = []
        self._snapshot: Snapshot | None = None

    def look(self) -> Walk:
        """Return the current parameters and buffers; the same object until something changes."""
        snapshot = self._snapshot
        if snapshot is None or not snapshot.holds() or not all(map(is_, map(type, self._walk.modules), self._kinds)):
            self._find()
        return self._walk

    def _find(self) -> None:
        modules = [*self.module.modules()]
        self._kinds = [*map(type, modules)]
        is_known = all(map(_walks_as_torch, modules))
        dicts = [vars(module)[name] for module in modules for name in DICTS] if is_known else []
        self._snapshot = Snapshot(dicts, modules) if is_known else None
        named = [*self.module.named_parameters(), *self.module.named_buffers()]
        places: dict[Place, Tensor] = {(None, name): tensor for name, tensor in named}
        if is_known:
            places = dict(_places(modules))
        self._walk = Walk(named, modules, places)


def _places(modules: list[nn.Module]) -> Iterator[tuple[Place, Tensor]]:
    """Yield the tensors of modules, each with its place."""
    for module in modules:
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    yield (id(module), name), tensor


def _walks_as_torch(module: nn.Module) -> bool:
    """Return whether walks read the dicts of a module as `nn.Module` defines them."""
    own, kind = vars(module), type(module)
    if any(name in own or getattr(kind, name) is not getattr(nn.Module, name) for name in WALKS):
        return False
    return all(isinstance(own.get(name), dict) for name in DICTS)
