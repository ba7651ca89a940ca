"""Test the modules that stand in for cells while instances are recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autobatch.torch as abt


class Layers(nn.Sequential):
    """Layers with the special methods of a context, and an attribute that is set."""

    note = 0

    def __enter__(self) -> int:
        return len(self) + 3

    def __exit__(self, *error: Any) -> None:
        pass


class Net(nn.Module):
    """A cell of layers, which is also a key."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = abt.cell(Layers(nn.Linear(2, 2), nn.Tanh()))
        self.names = {self.layers: 3}
        self.other = Layers()


def entered(net: Net) -> int:
    with net.layers as n:
        return n


def noted(net: Net) -> Any:
    net.layers.note += 1
    return net.layers.note - vars(net._modules["layers"])["note"] + 4


def deleted(net: Net) -> int:
    net.layers.note = 5
    del net.layers.note
    return net.layers.note + 3


USES: dict[str, Callable[[Net], Any]] = {
    "len": lambda net: len(net.layers),
    "item": lambda net: net.layers[0].in_features,
    "iteration": lambda net: sum(1 for _ in net.layers),
    "key": lambda net: net.names[net.layers],
    "equality": lambda net: 2 + (net.layers == net._modules["layers"]) + (net._modules["layers"] == net.layers),
    "inequality": lambda net: 2 + (net.layers != net._modules["other"]),
    "class": lambda net: 2 + isinstance(net.layers, Layers),
    "text": lambda net: len(repr(net.layers)),
    "with": entered,
    "set": noted,
    "del": deleted,
}


@pytest.mark.parametrize("name", USES)
def test_cells_are_used_as_modules_while_instances_are_recorded(name: str) -> None:
    net = Net()

    def run(x: Tensor) -> Any:
        return net.layers(x) * USES[name](net)

    xs = list(torch.randn(3, 2))
    found = abt.batched(run, module=net, backend="reference")(xs)
    torch.testing.assert_close(found, torch.stack([net.layers(x) for x in xs]) * USES[name](net))
