"""Test dataclasses whose constructors compute, as arguments and results of cells."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autobatch.torch as abt


@dataclass
class Doubled:
    """A constructor that changes a field."""

    a: Tensor

    def __post_init__(self) -> None:
        self.a = self.a.mul(2)


@dataclass
class Derived:
    """A constructor that computes a field."""

    a: Tensor
    b: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.b = self.a + 1


@dataclass(frozen=True, slots=True)
class Frozen:
    """Fields without a `__dict__`."""

    a: Tensor
    n: int = 3


class Net(nn.Module):
    """A cell that takes and returns a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((2,), 3.0))

    @abt.cell
    def part(self, x: Any) -> Any:
        if isinstance(x, Derived):
            return Derived(x.a * x.b * self.w)
        return type(x)(x.a * self.w)

    def run(self, x: Any) -> Any:
        found = self.part(x)
        return found.b if isinstance(found, Derived) else found.a


@pytest.mark.parametrize("kind", [Doubled, Derived, Frozen])
def test_constructors_that_compute(kind: Any) -> None:
    net, xs = Net(), [kind(x) for x in torch.randn(3, 2)]
    expected = torch.stack([net.run(x) for x in xs])
    torch.testing.assert_close(abt.batched(net.run, backend="reference")(xs), expected)
    rows = [x.a for x in xs]
    weights: Any = net.w
    plain: dict[Any, Any] = {
        Doubled: lambda a: 2 * a * weights, Derived: lambda a: a * (a + 1) * weights + 1, Frozen: lambda a: a * weights,
    }  # fmt: skip
    torch.testing.assert_close(expected, torch.stack([plain[kind](a) for a in rows]))
