"""Ints among the tensors of a program: lists of ids, and what ints that were computed number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autobatch.torch as abt
from autobatch.errors import GraphError


class Of(nn.Module):
    """A function of an embedding and of the instance."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.table, self.function = nn.Embedding(9, 3).double(), function

    def forward(self, x: Any) -> Any:
        return self.function(self.table, x)


OF_LISTS: dict[str, Callable[[Any, Any], Tensor]] = {
    "tensor": lambda e, ws: e(torch.tensor(ws)).sum(0),
    "tensor with a dtype": lambda e, ws: e(torch.tensor(ws, dtype=torch.long)).sum(0),
    "as_tensor": lambda e, ws: e(torch.as_tensor(ws)).sum(0),
    "of a tuple": lambda e, ws: e(torch.tensor(tuple(ws))).prod(0),
    "of one": lambda e, ws: e(torch.tensor([ws[-1]]))[0],
    "of some": lambda e, ws: e(torch.tensor([[ws[0], 3], [0, ws[-1]]])).sum((0, 1)),
    "cut": lambda e, ws: e(torch.tensor(ws)[1:]).sum(0),
    "of ints and floats": lambda e, ws: torch.tensor([ws[0], 0.5, True]).double() * e.weight[0],
    "of floats": lambda e, ws: torch.tensor([w / 2 for w in ws]).double().sum() * e.weight[0],
}


@pytest.mark.parametrize("name", OF_LISTS)
@pytest.mark.parametrize("runs", ["auto", "torch"])
def test_lists_of_ints_become_tensors_in_cells(name: str, runs: str) -> None:
    model = Of(OF_LISTS[name])
    lists = [[1, 2], [3], [2, 2, 8], [0]]
    want = torch.stack([model(ws) for ws in lists])
    (gradient,) = torch.autograd.grad(want.square().sum(), model.table.weight)
    abt.cell(model, runs=runs)
    found = abt.batched(model)(lists)
    torch.testing.assert_close(found, want)
    (got,) = torch.autograd.grad(found.square().sum(), model.table.weight)
    torch.testing.assert_close(got, gradient)


@pytest.mark.parametrize("runs", ["auto", "torch"])
def test_tensors_of_one_int_and_of_values_are_constants_to_torch(runs: str) -> None:
    def function(e: Any, w: Any) -> Any:
        first = e.weight.detach()[:, 0]
        return e(torch.tensor([w]))[0] * torch.tensor([first[w], first[1:2], 1.0], dtype=torch.float64)

    model = Of(function)
    want = torch.stack([model(w) for w in (1, 5)])
    (gradient,) = torch.autograd.grad(want.sum(), model.table.weight)
    abt.cell(model, runs=runs)
    found = abt.batched(model)([1, 5])
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), model.table.weight)[0], gradient)


@pytest.mark.parametrize("runs", ["auto", "autobatch", "torch"])
def test_legacy_constructors_of_values_are_refused_in_a_sentence(runs: str) -> None:
    model = abt.cell(Of(lambda e, w: e(torch.LongTensor([w]))[0]), runs=runs)
    with pytest.raises(GraphError, match=r"torch\.LongTensor\(\.\.\.\) reads numbers .* write torch\.tensor\("):
        abt.batched(model)([1, 2])
