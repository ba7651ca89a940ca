"""Test the cached walk of modules: it is repeated exactly where a new one would find something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import GraphError
from autobatch.params.known import KnownModule


class Net(ab.Module):
    """Parameters in attributes, lists, dicts and tuples, one of them twice."""

    def __init__(self) -> None:
        self.weight, self.scale = ab.Parameter(np.zeros(1)), 2.0
        self.layers: Any = [ab.Linear(1, 1, rng=np.random.default_rng(0)), [self.weight]]
        self.by_name: Any = {"a": ab.Parameter(np.zeros(2)), 1: (ab.Parameter(np.zeros(3)), {})}


CHANGES: dict[str, Callable[[Net], object]] = {
    "an attribute": lambda net: setattr(net, "weight", ab.Parameter(np.ones(1))),
    "another attribute": lambda net: setattr(net, "extra", ab.Parameter(np.ones(1))),
    "an attribute of a layer": lambda net: setattr(net.layers[0], "bias", None),
    "an attribute renamed": lambda net: vars(net).update(other=vars(net).pop("weight")),
    "all attributes": lambda net: setattr(net, "__dict__", dict(reversed(vars(net).items()))),
    "in a list": lambda net: net.layers[1].append(ab.Parameter(np.ones(1))),
    "the order of a list": lambda net: net.layers.reverse(),
    "in a dict": lambda net: net.by_name.update(b=ab.Parameter(np.ones(1))),
    "a key of a dict": lambda net: net.by_name.update(c=net.by_name.pop("a")),
    "in a dict in a tuple": lambda net: net.by_name[1][1].update(deep=ab.Parameter(np.ones(1))),
    "gone": lambda net: net.layers.clear(),
}


def test_another_walk_finds_the_same() -> None:
    for what, change in CHANGES.items():
        net = Net()
        known = KnownModule(net)
        before = known.parameters()
        assert known.parameters() is before, what
        change(net)
        found, expected = known.parameters(), net.parameters()
        assert [(name, id(one)) for name, one in found.items()] == [
            (name, id(one)) for name, one in expected.items()
        ], what
        assert known.parameters() is found, what


def test_a_walk_that_fails_is_repeated() -> None:
    net = Net()
    known = KnownModule(net)
    known.parameters()
    net.by_name["1"] = [ab.Parameter(np.zeros(1))]
    net.by_name["1.0"] = ab.Parameter(np.zeros(1))
    for _ in range(2):
        with pytest.raises(GraphError, match="two parameters"):
            known.parameters()
    del net.by_name["1.0"]
    del net.by_name["1"]
    assert list(known.parameters()) == list(net.parameters())
