"""The tensors under a module of torch, found by a walk that is repeated only where something was assigned.

`named_parameters` and `named_buffers` of `nn.Module` read the dicts `_parameters`, `_buffers` and `_modules` of each
module, and nothing else: as long as these hold the same objects under the same names, another walk would find the same.
A module whose class or attributes have walks of their own, or other things in the place of these dicts, is always
asked.
"""

from __future__ import annotations

from operator import is_

from torch import Tensor, nn

from autobatch.params.known import Snapshot

WALKS = ("named_parameters", "named_buffers", "named_modules", "_named_members")
DICTS = ("_parameters", "_buffers", "_modules")


class KnownTensors:
    """Knows the parameters and buffers of a module of torch."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._named: list[tuple[str, Tensor]] = []
        self._modules: list[nn.Module] = []
        self._kinds: list[type[nn.Module]] = []
        self._snapshot: Snapshot | None = None

    def named(self) -> list[tuple[str, Tensor]]:
        """The parameters, then the buffers, each once; the same list until something has changed."""
        snapshot = self._snapshot
        if snapshot is None or not snapshot.holds() or not all(map(is_, map(type, self._modules), self._kinds)):
            self._find()
        return self._named

    def _find(self) -> None:
        self._modules = [*self.module.modules()]
        self._kinds = [*map(type, self._modules)]
        is_known = all(map(_walks_as_torch, self._modules))
        dicts = [vars(module)[name] for module in self._modules for name in DICTS] if is_known else []
        self._snapshot = Snapshot(dicts, self._modules) if is_known else None
        self._named = [*self.module.named_parameters(), *self.module.named_buffers()]


def _walks_as_torch(module: nn.Module) -> bool:
    """Whether walks read the dicts of a module as `nn.Module` defines it."""
    own, kind = vars(module), type(module)
    if any(name in own or getattr(kind, name) is not getattr(nn.Module, name) for name in WALKS):
        return False
    return all(isinstance(own.get(name), dict) for name in DICTS)
