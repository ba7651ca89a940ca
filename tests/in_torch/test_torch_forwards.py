"""Test cells of modules and methods whose functions are not those of their class."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autobatch.torch as abt


class Scaled(nn.Linear):
    """A `forward` and a method that modules replace, and a subclass may override."""

    def doubled(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight) * 2

    def with_bias(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) * 3


class Overriding(Scaled):
    """A method that hides that of the base class."""

    def doubled(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight) * 20


class Calling(nn.Linear):
    """A `__call__` of a class around that of modules."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) * 100  # type: ignore[no-any-return]


def _with_forward(make: Callable[[Scaled], Any]) -> Scaled:
    module = Scaled(3, 2)
    module.forward = make(module)  # type: ignore[method-assign]
    return module


FORWARDS: dict[str, Callable[[], nn.Module]] = {
    "bound": lambda: _with_forward(lambda m: MethodType(Scaled.doubled, m)),
    "another method": lambda: _with_forward(lambda m: m.with_bias),
    "closure": lambda: _with_forward(lambda m: lambda x: m.doubled(x) + 1),
    "partial": lambda: _with_forward(lambda m: partial(Scaled.with_bias, m)),
    "__call__ of a class": lambda: Calling(3, 2),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_a_cell_of_a_module_runs_the_forward_that_the_module_has(name: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = FORWARDS[name]()

        def run(self, x: Tensor) -> Tensor:
            return self.part(x)  # type: ignore[no-any-return]

    net, xs = Net(), list(torch.randn(3, 3))
    for change in ("cell", "cell run by torch", "copy"):
        expected = torch.stack([net.run(x) for x in xs])
        if change != "copy":
            abt.cell(net.part, runs="torch" if change.endswith("torch") else "auto")
        elif name != "closure":  # copies of closures hold the former module, in torch too
            net = deepcopy(net)
        torch.testing.assert_close(torch.stack([net.run(x) for x in xs]), expected)
        torch.testing.assert_close(abt.batched(net.run)(xs), expected)
        with torch.no_grad():
            next(iter(net.parameters())).mul_(2)
        assert not torch.allclose(net.run(xs[0]), expected[0])


def test_a_cell_of_a_method_of_a_base_class_runs_that_method() -> None:
    class Net(Overriding):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.base = abt.cell(super(Overriding, self).doubled)

        def run(self, x: Tensor) -> Tensor:
            return self.base(x)

    net, xs = Net(), list(torch.randn(3, 3))
    for made in (net, deepcopy(net)):
        expected = torch.stack([Scaled.doubled(made, x) for x in xs])
        torch.testing.assert_close(torch.stack([made.run(x) for x in xs]), expected)
        torch.testing.assert_close(abt.batched(made.run)(xs), expected)
