"""Test that the cached tensors of a module equal those of a new walk, whatever was assigned in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from autobatch.torch.modules import TorchModule


def make_module() -> Any:
    """Return a module with parameters and buffers at several depths."""
    module = nn.Module()
    module.add_module("inner", nn.Linear(2, 3))
    module.add_module("layers", nn.ModuleList([nn.Linear(2, 2), nn.BatchNorm1d(2)]))
    module.register_parameter("own", nn.Parameter(torch.ones(2)))
    module.register_buffer("scale", torch.ones(1))
    module.register_buffer("count", torch.zeros(1, dtype=torch.int64))
    return module


def walk(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the module's current float parameters and buffers."""
    return {name: x for name, x in [*module.named_parameters(), *module.named_buffers()] if x.is_floating_point()}


def shadow(module: Any) -> None:
    """Give a module its own `named_parameters` as an attribute."""
    named = [("other", nn.Parameter(torch.ones(4)))]
    module.named_parameters = lambda *args, **kwargs: iter(named)


def change_class(module: Any) -> None:
    """Change the class of a submodule to one whose walk finds nothing."""

    class Hidden(nn.Linear):
        def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
            return iter(())

    module.inner.__class__ = Hidden


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a parameter assigned": lambda m: setattr(m.inner, "weight", nn.Parameter(torch.zeros(3, 2))),
    "a parameter registered": lambda m: m.layers[0].register_parameter("more", nn.Parameter(torch.ones(1))),
    "a parameter deleted": lambda m: delattr(m, "own"),
    "a parameter set to None": lambda m: setattr(m.inner, "bias", None),
    "a parameter put into the dict": lambda m: m.inner._parameters.__setitem__(
        "weight", nn.Parameter(torch.ones(3, 2))
    ),
    "another dict of parameters": lambda m: setattr(m, "_parameters", {"new": nn.Parameter(torch.ones(5))}),
    "a parameter shared": lambda m: setattr(m.layers[0], "weight", m.inner.weight),
    "a buffer assigned": lambda m: setattr(m, "scale", torch.zeros(1)),
    "a buffer registered": lambda m: m.inner.register_buffer("mean", torch.ones(3)),
    "a buffer of ints becomes one of floats": lambda m: setattr(m.count, "data", torch.ones(1)),
    "a buffer of floats becomes one of ints": lambda m: setattr(m.scale, "data", torch.ones(1, dtype=torch.int64)),
    "a module added": lambda m: m.inner.add_module("deep", nn.Linear(1, 1)),
    "a module appended": lambda m: m.layers.append(nn.Linear(1, 1)),
    "a module replaced in a list": lambda m: m.layers.__setitem__(0, nn.Linear(2, 2)),
    "a module put into the dict": lambda m: m._modules.__setitem__("inner", nn.Linear(1, 1)),
    "a module deleted": lambda m: delattr(m, "inner"),
    "a parametrization": lambda m: nn.utils.parametrizations.weight_norm(m.inner),
    "all of another dtype": lambda m: m.double(),
    "a walk of its own": shadow,
    "another class": change_class,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change: str) -> None:
    module = make_module()
    known = TorchModule(module)
    before = known.parameters()
    assert known.parameters() is before
    CHANGES[change](module)
    after, expected = known.parameters(), walk(module)
    assert after.keys() == expected.keys()
    for name, parameter in after.items():
        assert parameter.tensor is expected[name]  # type: ignore[attr-defined]
        assert parameter.array.ctypes.data == expected[name].data_ptr()
    assert known.parameters() is after


@pytest.mark.parametrize("has_own_walk", [False, True])
def test_a_walk_is_repeated_only_where_it_may_differ(has_own_walk: bool) -> None:
    """A class that overrides the walk is always asked."""
    walks = []

    class Counting(nn.Module):
        def modules(self, remove_duplicate: bool = True) -> Iterator[nn.Module]:
            walks.append(self)
            return super().modules(remove_duplicate)

    class Asked(Counting):
        def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
            return super().named_parameters(*args, **kwargs)

    module: Any = (Asked if has_own_walk else Counting)()
    module.inner = nn.Linear(2, 2)
    known = TorchModule(module)
    known.parameters()
    n = len(walks)
    for _ in range(3):
        known.parameters()
    assert len(walks) - n == (3 if has_own_walk else 0)
    module.inner.eval()
    known.parameters()
    assert len(walks) > n
