"""Test cells within cells: a module that is a cell works on its own and in other bodies, however it is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autobatch.torch as abt
from helpers.runs.recorded import traced

RUNS = ["auto", "autobatch", "torch"]


class Net(nn.Module):
    """Cells stored in each way that modules store others, called in cells and outside cells."""

    def __init__(self, outer: str, inner: str) -> None:
        super().__init__()
        torch.manual_seed(0)

        def cell(module: Any) -> Any:
            return abt.cell(module, runs=inner)

        self.word = cell(nn.Embedding(9, 3))
        self.row = nn.Sequential(cell(nn.Linear(3, 3)), nn.Tanh(), cell(nn.LayerNorm(3)))
        self.many = nn.ModuleList([cell(nn.Linear(3, 3)), cell(nn.Sequential(nn.Linear(3, 3), cell(nn.Linear(3, 3))))])
        self.named = nn.ModuleDict({"gate": cell(nn.Linear(6, 3)), "step": cell(nn.GRUCell(3, 3))})
        self.plain, self.drop = nn.Linear(3, 3), cell(nn.Dropout(0.5))
        self.tied = nn.Linear(3, 9)
        self.tied.weight = self.word.weight
        for name in ("score", "pair", "gated", "stepped", "summed", "deep", "dropped", "constant"):
            setattr(self, name, abt.cell(getattr(self, name), runs=outer))
        self.whole = abt.cell(Block(self.row, self.many), runs=outer)

    def score(self, word: Tensor, h: Tensor) -> Any:
        return self.tied(self.plain(self.word(word) + h)).logsumexp(0)

    def pair(self, h: Tensor, g: Tensor) -> Any:
        return self.row(h), [self.many[0](g), self.many[1](self.many[0](g))]

    def gated(self, h: Tensor, g: Tensor) -> Any:
        return h * torch.sigmoid(self.named["gate"](torch.cat([h, g])))

    def stepped(self, h: Tensor, g: Tensor) -> Any:
        return self.named["step"](h[None], g[None])[0]

    def summed(self, children: list[Tensor]) -> Any:
        return sum((self.many[0](child) for child in children), torch.zeros(3))

    def deep(self, h: Tensor) -> Any:
        return self.gated(self.row(h), self.stepped(h, self.plain(h)))

    def dropped(self, h: Tensor) -> Any:
        return self.drop(self.row(h))

    def constant(self, h: Tensor) -> Any:
        return self.word(3) * h


class Block(nn.Module):
    """A module whose parts are cells."""

    def __init__(self, row: nn.Module, many: nn.ModuleList) -> None:
        super().__init__()
        self.row, self.many = row, many

    def forward(self, h: Tensor) -> Any:
        for layer in (self.row, *self.many):
            h = torch.relu(layer(h)) + h
        return h


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "an embedding within and at leaves": lambda net, k: net.score(k, net.word(k + 1)),
    "a Sequential and a ModuleList": lambda net, k: net.pair(net.word(k), net.row(net.word(k)))[1][1].sum(),
    "two results": lambda net, k: net.pair(net.word(k), net.word(0)),
    "a ModuleDict": lambda net, k: net.gated(net.word(k), net.named["gate"](torch.cat([net.word(k), net.word(1)]))),
    "a step of a recurrence": lambda net, k: net.stepped(net.word(k), net.stepped(net.word(1), net.word(2))),
    "a list": lambda net, k: net.summed([net.many[0](net.word(j)) for j in range(1 + k % 3)]),
    "cells of cells of cells": lambda net, k: net.deep(net.deep(net.word(k))),
    "a module of cells": lambda net, k: net.whole(net.many[1](net.word(k))),
    "dropout in eval": lambda net, k: net.dropped(net.drop(net.word(k))),
    "an int in a body": lambda net, k: net.constant(net.word(k)),
}
DATA = [1, 3, 5, 4]


@pytest.mark.cases(12, 60)
@pytest.mark.parametrize("inner", RUNS)
@pytest.mark.parametrize("outer", RUNS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_cells_within_cells(name: str, outer: str, inner: str) -> None:
    """Values and gradients must equal torch's, and each body must be traced only once."""
    net = Net(outer, inner).eval()
    run = abt.batched(lambda k: FUNCTIONS[name](net, k), module=net, backend="reference")
    abt.check_batched(run, DATA)
    n_traced = traced(run)
    graphs = run.record_all(DATA)
    for found, expected in zip(leaves(run(graphs)), leaves(run(DATA)), strict=True):
        torch.testing.assert_close(found, expected)
    assert traced(run) == n_traced


def leaves(y: Any) -> list[Tensor]:
    return [y] if isinstance(y, Tensor) else [leaf for part in y for leaf in leaves(part)]


@pytest.mark.parametrize("outer", RUNS)
def test_hooks_of_a_cell_within_a_cell_run(outer: str) -> None:
    net = Net(outer, "auto")
    run = abt.batched(lambda k: net.whole(net.word(k)), module=net, backend="reference")
    abt.check_batched(run, DATA)
    net.many[0].register_forward_hook(lambda module, given, result: result * 2)
    net.many[1].register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    abt.check_batched(run, DATA)


@pytest.mark.parametrize("outer", RUNS)
def test_a_cell_within_a_cell_that_is_replaced(outer: str) -> None:
    net = Net(outer, "auto")
    run = abt.batched(lambda k: net.deep(net.word(k)), module=net, backend="reference")
    abt.check_batched(run, DATA)
    for layer in (abt.cell(nn.Linear(6, 3)), nn.Linear(6, 3), abt.cell(nn.Linear(6, 3), runs="torch")):
        net.named["gate"] = layer
        abt.check_batched(run, DATA)


def test_dropout_within_a_cell_draws() -> None:
    net = Net("auto", "auto").train()
    run = abt.batched(lambda k: net.dropped(net.word(k)), module=net, backend="reference")
    dropped = torch.stack([run([1, 1, 1]) == 0 for _ in range(10)])
    assert 0.2 < dropped.double().mean() < 0.8
    assert not torch.equal(dropped[:, 0], dropped[:, 1])


def test_a_module_that_is_compiled_afterwards() -> None:
    net = Net("auto", "auto")
    run = abt.batched(lambda k: net.score(k, net.word(k)), module=net, backend="reference")
    expected = run(DATA)
    net.plain._compiled_call_impl = net.plain._call_impl
    torch.testing.assert_close(run(DATA), expected)
