"""Modules with a few parameters, in every place where a parameter may be."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from autobatch.nn.layers import Linear
from autobatch.params.module import Module
from autobatch.params.parameter import Parameter


class Head(Module):
    """One parameter of shape (3,), named `scale`."""

    def __init__(self, value: float = 0.0) -> None:
        self.scale = Parameter(np.full(3, value))


class Pair(NamedTuple):
    left: Head
    right: Head


class Model(Module):
    """Parameters in every place that is searched, and other values."""

    def __init__(self) -> None:
        self.table = Parameter(np.arange(6.0).reshape(3, 2))
        self.layers = [Head(1.0), Head(2.0)]
        self.by_name = {"gate": Parameter(3.0), 7: Head(4.0), "none": None}
        self.pair = Pair(Head(5.0), Head(6.0))
        self.nested = [[Parameter([7.0])], ()]
        self.array = np.ones(3)
        self.size = 3
        self.function = Head
        self.frozen = Parameter([8, 9], trainable=False)


NAMES = [
    "table",
    "layers.0.scale",
    "layers.1.scale",
    "by_name.gate",
    "by_name.7.scale",
    "pair.0.scale",
    "pair.1.scale",
    "nested.0.0",
    "frozen",
]


class Tied(Module):
    """One parameter under three names: `embedding`, `output.weight` and `again.weight`."""

    def __init__(self) -> None:
        self.embedding = Parameter(np.arange(4.0).reshape(2, 2))
        self.output = Linear(2, 2, rng=np.random.default_rng(0), bias=False)
        self.output.weight = self.embedding
        self.again = self.output


def values_of(module: Module) -> dict[str, Any]:
    return {name: parameter.data.tolist() for name, parameter in module.parameters().items()}
