"""Test ints among the tensors of a program: lists of ids, and computed ints used as indices."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import autobatch.torch as abt
from autobatch.errors import GraphError, NumericError
from autobatch.torch.structures import leaves_of


class Of(nn.Module):
    """A function of an embedding and the instance."""

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


def check_as_torch(function: Callable[[Any], Any], runs: str) -> None:
    """Compare results and gradients with torch: outside cells, in a cell, and in a cell that torch runs."""
    torch.manual_seed(0)
    model = nn.Linear(3, 4).double()
    xs = [torch.randn(3).double() for _ in range(6)]
    want = torch.stack([function(model(x)) for x in xs])
    cell: Any = abt.cell(function, runs=runs) if runs else function
    found = abt.batched(lambda x: cell(model(x)), module=model)(xs)
    torch.testing.assert_close(found, want)
    if want.requires_grad:
        seed = torch.randn_like(want)
        gradients = [torch.autograd.grad(y, [*model.parameters()], seed) for y in (found, want)]
        torch.testing.assert_close(*gradients)


BIG = torch.tensor([2**24 + 1, 2**25 + 1, 3, -7])
OF_INTS: dict[str, Callable[[Any], Any]] = {
    "a table": lambda v: BIG[v.argmax()],
    "a table twice": lambda v: torch.stack([BIG, BIG.flip(0)])[(v[0] > 0).long()][v.argmin()],
    "the places of maxima": lambda v: (v[:, None] + v.flip(0)).max(0)[1][v.argmax()],
    "the places of minima": lambda v: (v[:, None] * v).min(1).indices[v.argmax()],
    "topk": lambda v: v.topk(3)[1][v[:3].argmax()],
    "argsort twice": lambda v: v.argsort()[v.argsort()[v.argmax()]],
    "a mask": lambda v: (v > 0).long()[v.argmax()],
    "sums of a mask": lambda v: (v > 0).long().cumsum(0)[v.argmin()],
    "a product of ints": lambda v: nn.functional.one_hot(v.argmax(), 4) @ torch.arange(4),
    "a product with a table": lambda v: nn.functional.one_hot(v.argsort(), 4) @ BIG,
    "a sum of products": lambda v: torch.einsum("i,i->", nn.functional.one_hot(v.argmax(), 4), torch.arange(4)),
    "numbers of rows": lambda v: torch.arange(8).view(4, 2)[v.argmax()],
    "an id of floats": lambda v: torch.arange(4.0).double()[v.argsort()[v.argmax()]],
}


def backtrace(v: Any) -> Any:
    """Find the best path through three positions with the Viterbi algorithm."""
    best, first = (v[:, None] + v.flip(0)).max(0)
    best, second = (best[:, None] + torch.outer(v, v)).max(0)
    last = best.argmax()
    middle = second[last]
    return torch.stack([first[middle], middle, last])


@pytest.mark.parametrize("name", [*OF_INTS, "a backtrace"])
@pytest.mark.parametrize("runs", ["", "auto", "torch"])
def test_ints_that_computed_ints_number_stay_ints(name: str, runs: str) -> None:
    check_as_torch(OF_INTS.get(name, backtrace), runs)


RETURNED: dict[str, Callable[[Any, Any], Any]] = {
    "the data": lambda v, ints: ints,
    "views": lambda v, ints: (ints[1:], ints[0], ints[None]),
    "a constant": lambda v, ints: BIG,
    "of a table": lambda v, ints: BIG[v.argmax()],
    "of the data": lambda v, ints: ints[v.argmax()],
    "a choice": lambda v, ints: torch.where(v > 0, ints, 0),
}


@pytest.mark.parametrize("name", RETURNED)
def test_cells_refuse_ints_that_floats_would_round(name: str) -> None:
    model = nn.Linear(3, 4)
    model.weight.data.fill_(1.0)
    model.bias.data = torch.tensor([3.0, 2.0, 1.0, 0.0])
    cell: Any = abt.cell(RETURNED[name])
    batched = abt.batched(lambda ints: cell(model(torch.ones(3)), ints), module=model)
    with pytest.raises(NumericError, match=r"at most 16777216, because they are stored as torch.float32, got \d+;"):
        batched([BIG, BIG + 1])
    model.double()
    ones = torch.ones(3).double()
    doubled = abt.batched(lambda ints: cell(model(ones), ints), module=model)
    for got, want in zip(leaves_of(doubled([BIG])), leaves_of(RETURNED[name](model(ones), BIG)), strict=True):
        torch.testing.assert_close(got[0], want)


ONE, TWO, BYTE = torch.tensor(1), torch.tensor(2), torch.tensor(200, dtype=torch.uint8)
WITH_INTS: dict[str, Callable[[Any], Any]] = {
    "stack": lambda v: torch.stack([v.argmax(), ONE]),
    "stack behind": lambda v: torch.stack((ONE, v.argmax(), TWO)),
    "stack of floats": lambda v: torch.stack([v[0], torch.tensor(0.5).double(), v[1]]),
    "stack of bools": lambda v: torch.stack([v[0] > 0, torch.tensor(True)]),
    "stack along the last axis": lambda v: torch.stack([ONE, v.argmax()], -1),
    "hstack": lambda v: torch.hstack([v.argmax(), TWO]),
    "vstack": lambda v: torch.vstack([v.argmax(), TWO]),
    "cat": lambda v: torch.cat([v.argmax()[None], ONE[None]]),
    "cat with a number of torch": lambda v: torch.hstack([v, torch.tensor(2.0).double()]),
    "index_select": lambda v: v.index_select(0, ONE),
    "index_select of ints": lambda v: v.argsort().index_select(0, ONE),
    "index_select along columns": lambda v: torch.outer(v, v).index_select(1, v.argmax()),
    "gather": lambda v: v.gather(0, TWO),
    "a sum of bytes": lambda v: (v > -99) * BYTE + BYTE,
    "a sum of 32 bits": lambda v: v.argmax().int() + ONE.int(),
    "an index of 32 bits": lambda v: v[ONE.int()],
}


@pytest.mark.parametrize("name", WITH_INTS)
@pytest.mark.parametrize("runs", ["", "auto", "torch"])
def test_tensors_of_one_int_stand_beside_values(name: str, runs: str) -> None:
    check_as_torch(WITH_INTS[name], runs)


INDICES: dict[str, Callable[[Any], Any]] = {
    "from the end": lambda v: v[v.argmax() - 4],
    "a row from the end": lambda v: torch.outer(v, v)[v.argmin() - 4],
    "an int from the end": lambda v: v.argsort()[v.argmax() - 4],
    "i, 0": lambda v: torch.outer(v, v)[v.argmax(), 0],
    "0, i": lambda v: torch.outer(v, v)[0, v.argmax()],
    ":, i": lambda v: torch.outer(v, v)[:, v.argmax()],
    "i, j": lambda v: torch.outer(v, v.exp())[v.argmax(), v.argmin()],
    "i, j from the end": lambda v: torch.outer(v, v.exp())[v.argmax() - 4, v.argmin() - 2],
    "i of 32 bits": lambda v: v[v.argmax().int()],
    "i, j of few bits": lambda v: torch.outer(v, v.exp())[v.argmax().short() - 4, v.argmin().char()],
    "(i,)": lambda v: torch.outer(v, v)[(v.argmax(),)],
    "..., i": lambda v: torch.outer(v, v.exp())[..., v.argmax()],
    "..., i, 1:": lambda v: torch.outer(v, v.exp())[..., v.argmax(), 1:],
    "None, i, 1:": lambda v: torch.outer(v, v.exp())[None, v.argmax(), 1:],
    "i, a constant": lambda v: torch.outer(v, v.exp())[v.argmax(), TWO],
    "i, constants": lambda v: torch.outer(v, v.exp())[v.argmax(), torch.tensor([0, 3])],
    "i, a list": lambda v: torch.outer(v, v.exp())[v.argmax(), [0, 3]],
    "i, bools": lambda v: torch.outer(v, v.exp())[v.argmax(), torch.tensor([True, False, True, True])],
    "i, ints": lambda v: torch.outer(v, v.exp())[v.argmax(), v.argsort()],
    "ints, i": lambda v: torch.outer(v, v.exp())[v.argsort()[1:], v.argmax()],
    "ints, i, ints": lambda v: torch.einsum("i,j,k->ijk", v, v.exp(), v.sin())[v.argsort(), v.argmax(), v.argsort()],
    "i, :, j": lambda v: torch.einsum("i,j,k->ijk", v, v.exp(), v.sin())[v.argmax(), :, v.argmin() - 1],
    "a stack": lambda v: torch.stack([v, v.exp()])[:, v.argmax()],
    "ints of a table": lambda v: torch.arange(16).view(4, 4)[v.argmax(), v.argmin()],
}


@pytest.mark.parametrize("name", INDICES)
@pytest.mark.parametrize("runs", ["", "auto", "torch"])
def test_ints_index_any_axis(name: str, runs: str) -> None:
    check_as_torch(INDICES[name], runs)


class Tables(nn.Module):
    """Tables that are indexed by ints outside cells."""

    pe: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(300, 3)
        self.maps, self.scores = nn.Parameter(torch.randn(9, 3, 2)), nn.Parameter(torch.randn(7))
        self.register_buffer("pe", torch.randn(8, 3))
        self.double()


TABLES = Tables()
OF_PARAMETERS: dict[str, tuple[Callable[[Any, int], Any], int]] = {
    "an int": (lambda m, k: m.table.weight[k], 1),
    "an int of NumPy": (lambda m, k: m.table.weight[np.int8(k)], 1),
    "matrices": (lambda m, k: m.maps[k], 1),
    "numbers": (lambda m, k: m.scores[k], 1),
    "a buffer": (lambda m, k: m.pe[k] * m.scores[:3], 3),
    "a list": (lambda m, k: m.table.weight[[k, -2, 4, k]], 1),
    "a list of one": (lambda m, k: m.table.weight[[k]], 1),
    "a list of ints of NumPy": (lambda m, k: m.table.weight[[np.int8(k), 3]], 1),
    "lists of two lengths": (lambda m, k: m.table.weight[[k, 3][k % 2 :]].sum(0), 4),
    "a tuple of one": (lambda m, k: m.table.weight[(k,)], 1),
    "k, 1:": (lambda m, k: m.table.weight[k, 1:], 2),
    "k, :": (lambda m, k: m.maps[k, :, 1], 2),
    "k, ...": (lambda m, k: m.maps[k, ..., 1], 2),
    "k, None": (lambda m, k: m.maps[k, None], 2),
    "k, j": (lambda m, k: m.maps[k, k % 3], 2),
    "k, j, i": (lambda m, k: m.maps[k, k % 3, -1 - k % 2], 3),
    "k, a list": (lambda m, k: m.maps[k, [k % 3, 0]], 2),
    "a row of a row": (lambda m, k: m.maps[k][0], 2),
    "a slice": (lambda m, k: m.maps[k % 2 : 3 + k % 2], 2),
    "a bool": (lambda m, k: m.maps[k > 0].sum(0), 4),
    "None": (lambda m, k: m.scores[None] * m.scores[k], 3),
}


@pytest.mark.parametrize("name", OF_PARAMETERS)
def test_ints_that_index_a_parameter_are_data(name: str) -> None:
    function, n_types = OF_PARAMETERS[name]
    batched, ks = abt.batched(lambda k: function(TABLES, k).square(), module=TABLES), [0, 3, 6, -1, 2, -7, 6]
    want, found = torch.stack([function(TABLES, k).square() for k in ks]), batched(ks)
    torch.testing.assert_close(found, want)
    seed = torch.randn_like(want)
    gradients = [torch.autograd.grad(y, [*TABLES.parameters()], seed, materialize_grads=True) for y in (found, want)]
    torch.testing.assert_close(*gradients)
    assert len(list(batched.recorder.types)) == n_types + 1  # one for the square


@pytest.mark.parametrize("name", ["an int", "a list", "k, j", "numbers"])
@pytest.mark.parametrize("k", [500, -501])
def test_ints_beyond_a_parameter_are_refused_as_in_torch(name: str, k: int) -> None:
    function, _ = OF_PARAMETERS[name]
    with pytest.raises(IndexError) as refused:
        function(TABLES, k)
    with pytest.raises(IndexError, match=re.escape(str(refused.value))):
        abt.batched(lambda k: function(TABLES, k), module=TABLES)([1, k])


@pytest.mark.parametrize("index", [2, np.int64(2), (2, slice(1, 3)), (2, 1)])
def test_rows_of_a_parameter_are_views(index: Any) -> None:
    with pytest.raises(GraphError, match=r"mul_ changes a recorded value in place that is a view"):
        abt.batched(lambda x: TABLES.table.weight[index].mul_(x), module=TABLES)([0.5])


def test_rows_of_a_parameter_that_a_list_takes_are_a_copy() -> None:
    batched = abt.batched(lambda k: TABLES.table.weight[[k, 1]].mul_(2), module=TABLES)
    torch.testing.assert_close(batched([5, -1]), 2 * TABLES.table.weight[torch.tensor([[5, 1], [-1, 1]])])
