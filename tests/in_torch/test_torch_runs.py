"""Test cells that torch runs: how often they run, with which draws, and what is differentiated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, autograd, nn
from torch.nn import functional

import autobatch.torch as abt
from autobatch.errors import GraphError
from autobatch.ir.builder import NeedsData
from autobatch.torch.analysis import Analysis, Kind, Way
from helpers.runs.ways import each

every_backend = each("backend", ("reference", "cpu"))


class Counted(nn.Module):
    """A cell `_step` that torch runs and that notes its calls, summed along a chain."""

    def __init__(self, runs: str = "torch") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 4)
        self.note = list[None]().append  # a list attribute would be read, and the cell retraced as the list grows
        self.take = abt.cell(self._step, runs=runs)

    @property
    def calls(self) -> list[None]:
        return self.note.__self__  # type: ignore[attr-defined,no-any-return]

    def _step(self, h: Tensor, x: Tensor) -> Tensor:
        self.note(None)
        return torch.tanh(self.linear(torch.cat((h, x), -1)))

    def loss(self, rows: Tensor) -> Tensor:
        h = torch.zeros(4, dtype=rows.dtype)
        for row in rows:
            h = self.take(h, row)
        return h.pow(2).sum()


def chains(*lengths: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(n, 4, generator=draw, dtype=torch.float64) for n in lengths]


@every_backend
def test_a_step_of_training_calls_a_cell_once_per_batch(backend: str) -> None:
    model = Counted().double()
    loss = abt.batched(model.loss, module=model, backend=backend)
    instances = chains(3, 2, 3)
    autograd.backward(loss(instances).sum())
    model.calls.clear()
    autograd.backward(loss(instances).sum())
    assert len(model.calls) == 3
    model.calls.clear()
    with torch.no_grad():
        loss(instances)
    assert len(model.calls) == 3


class Noisy(nn.Module):
    """A cell that torch runs: linear except for dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6, dtype=torch.float64))
        self.drop = abt.cell(self._drop, runs="torch")

    def _drop(self, x: Tensor) -> Tensor:
        return functional.dropout(torch.cumsum(x * self.scale, 0), 0.5, self.training)

    def run(self, rows: list[Tensor]) -> list[Tensor]:
        return [self.drop(row) for row in rows]


@every_backend
@pytest.mark.parametrize("max_bytes", [None, 2000])
def test_gradients_are_those_of_the_mask_that_was_drawn(backend: str, max_bytes: int | None) -> None:
    model = Noisy()
    run = abt.batched(model.run, module=model, backend=backend, max_bytes=max_bytes)
    instances = [[row] * 4 for row in torch.ones(4, 6, dtype=torch.float64)]
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        model.scale.grad = None
        found = torch.stack([row for rows in run(instances) for row in rows])
        drawn.append(found.detach())
        kept = (found.detach() != 0).double()
        assert 0.3 < kept.mean() < 0.7
        assert len(set(map(tuple, kept.tolist()))) > 8, "rows that are equal draw their own"
        autograd.backward(found.sum())
        wanted = torch.stack([2.0 * kept[:, k:].sum() for k in range(6)])
        torch.testing.assert_close(model.scale.grad, wanted)
    assert run.last.parts == (1 if max_bytes is None else 4)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    before = torch.get_rng_state()
    model.eval()
    assert torch.stack([row for rows in run(instances) for row in rows]).ne(0).all()
    assert torch.equal(torch.get_rng_state(), before)


class Roots(nn.Module):
    """A cell that torch runs, whose derivative at zero is infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(1.0, 2.0, 3, dtype=torch.float64))
        self.root = abt.cell(self._root)

    def _root(self, x: Tensor) -> Tensor:
        return torch.cumsum(self.scale * x, 0).sqrt()

    def run(self, pair: tuple[Tensor, Tensor]) -> dict[str, Any]:
        return {"used": self.root(pair[0]), "unused": self.root(pair[1])}


@pytest.mark.slow
@every_backend
def test_rows_that_nothing_depends_on_have_no_gradient_even_where_it_is_infinite(backend: str) -> None:
    model = Roots()
    pairs = [(x, torch.zeros(3, dtype=torch.float64)) for x in 1 + torch.rand(4, 3, dtype=torch.float64)]
    run = abt.batched(model.run, module=model, backend=backend)
    (found,) = autograd.grad(run(pairs)["used"].sum(), model.scale)
    (wanted,) = autograd.grad(sum(model.run(pair)["used"].sum() for pair in pairs), model.scale)
    torch.testing.assert_close(found, wanted)


class Hypotenuses(nn.Module):
    """Two cells that have the same function of torch, whose derivative at zero is not a number."""

    def __init__(self) -> None:
        super().__init__()
        self.side = nn.Parameter(torch.tensor([0.0, 1.0], dtype=torch.float64))
        self.one, self.two, self.twice = abt.cell(self._one), abt.cell(self._two), abt.cell(self._twice)

    def _one(self, x: Tensor) -> Tensor:
        return torch.hypot(x, self.side)

    def _two(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.hypot(x, self.side) + torch.hypot(y, self.side)

    def _twice(self, x: Tensor) -> Tensor:
        return 2 * torch.hypot(x, self.side)

    def run(self, rows: Tensor) -> dict[str, Any]:
        x, y, zero = rows[0], rows[1], torch.zeros_like(rows[0])
        used = self.two(x, y) + self.one(y) + self.twice(x) + self.two(self.one(x), y)
        return {"used": used, "unused": [self.two(x, zero), self.one(zero), self.twice(zero), self.two(zero, x)]}


@pytest.mark.slow
@every_backend
def test_uses_of_one_function_do_not_lose_the_gradients_of_others(backend: str) -> None:
    model = Hypotenuses()
    instances = list(1 + torch.rand(4, 2, 2, dtype=torch.float64))
    run = abt.batched(model.run, module=model, backend=backend)
    (found,) = autograd.grad(run(instances)["used"].sum(), model.side)
    (wanted,) = autograd.grad(sum(model.run(instance)["used"].sum() for instance in instances), model.side)
    torch.testing.assert_close(found, wanted)


def test_autocast_holds_for_what_torch_runs() -> None:
    ours, theirs = Counted("autobatch"), Counted()
    theirs.load_state_dict(ours.state_dict())
    instances = [rows.float() for rows in chains(3, 2, 3)]
    losses = {}
    for model in (ours, theirs):
        loss = abt.batched(model.loss, module=model, backend="reference")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            losses[model] = loss(instances)
        autograd.backward(losses[model].sum())
    assert losses[ours].dtype == losses[theirs].dtype == torch.float32
    assert not torch.equal(losses[ours], losses[theirs])
    torch.testing.assert_close(losses[ours], losses[theirs], rtol=0.05, atol=0.05)
    torch.testing.assert_close(ours.linear.weight.grad, theirs.linear.weight.grad, rtol=0.1, atol=0.1)


class Changing(nn.Module):
    """A cell that torch runs, which reads attributes of its module and of others."""

    def __init__(self, runs: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.drop, self.act = nn.Linear(4, 32), nn.Dropout(0.5), nn.ReLU()
        self.scale, self.n = 0.5, 20
        self.take = abt.cell(self._take, runs=runs)

    def _take(self, x: Tensor) -> Tensor:
        return torch.cumsum(self.act(self.drop(self.linear(x))) * self.scale, 0)[: self.n]

    def loss(self, x: Tensor) -> Tensor:
        return self.take(x).sum()


@every_backend
@pytest.mark.parametrize("runs", ["torch", "auto"])
def test_what_a_body_reads_takes_effect(runs: str, backend: str) -> None:
    model, instances = Changing(runs).eval(), [torch.ones(4), torch.arange(4.0)]
    loss = abt.batched(model.loss, module=model, backend=backend)
    for name, value in (("scale", 0.7), ("n", 30), ("act", nn.Tanh())):
        setattr(model, name, value)
        torch.testing.assert_close(loss(instances), torch.stack([model.loss(x) for x in instances]))
    model.train()
    found = []
    for _ in range(2):
        torch.manual_seed(1)
        found.append(loss([torch.ones(4)] * 3))
    assert torch.equal(*found)
    assert len(set(found[0].tolist())) == 3


def kind(*shape: int, dtype: torch.dtype = torch.float32) -> Kind:
    return Kind(shape, dtype, dtype.is_floating_point)


def count_places(x: Tensor) -> Tensor:
    return x / (x > 0).nonzero().shape[0]


LAYER, HEAD = nn.Linear(4, 3), nn.MultiheadAttention(4, 2, batch_first=True)
WAYS: dict[str, tuple[Any, Sequence[Kind], Way]] = {
    "a layer": (LAYER, [kind(4)], Way.WHOLE),
    "a loss of a layer": (
        lambda x, label: functional.cross_entropy(LAYER(x), label),
        [kind(4), kind(dtype=torch.int64)],
        Way.MAPPED,
    ),
    "attention": (lambda x: HEAD(x, x, x)[0], [kind(2, 4)], Way.MAPPED),
    "a sum over all": (lambda x: LAYER(x).sum(), [kind(4)], Way.MAPPED),
    "a place": (lambda x, start: x.narrow(0, start, 2), [kind(4), kind(dtype=torch.int64)], Way.MAPPED),
    "combinations": (torch.combinations, [kind(4)], Way.MAPPED),
    "a product": (lambda x: LAYER(x).prod(), [kind(4)], Way.ONE_BY_ONE),
    "a loss that checks numbers": (functional.gaussian_nll_loss, [kind(4)] * 3, Way.ONE_BY_ONE),
}


@each("name", WAYS)
def test_what_a_function_calls_decides_how_it_computes_many_rows(name: str) -> None:
    function, kinds, way = WAYS[name]
    assert Analysis(function, kinds).way is way


HUNDRED, MILLION = torch.tensor(100), torch.tensor(1e6)
OF_TWO_DTYPES: dict[str, tuple[Any, list[Any]]] = {
    "a sum": (lambda i: i.to(torch.uint8) + HUNDRED, [200, 220]),
    "a comparison": (lambda i: i.to(torch.uint8) > 3 * HUNDRED, [200, 220]),
    "the larger one": (lambda i: torch.maximum(i.to(torch.uint8), 3 * HUNDRED), [200, 220]),
    "a choice": (lambda i: torch.where(i > 3, i.to(torch.uint8), 3 * HUNDRED), [2, 1]),
    "a product": (lambda x: x.half() * MILLION, [3.0, 4.0]),
    "a choice of rows": (lambda x: torch.where(x > 3, x, x * torch.ones(2).half()), [3.0, 4.1]),
}


@each("name", OF_TWO_DTYPES)
@each("runs", ("auto", "torch"))
def test_numbers_of_many_rows_have_the_dtype_that_one_has_alone(name: str, runs: str) -> None:
    function, numbers = OF_TWO_DTYPES[name]
    cell, instances = abt.cell(function, runs=runs), [torch.tensor(number) for number in numbers]
    found = abt.batched(lambda x: cell(x), module=nn.Linear(1, 1))(instances)
    for got, want in zip(found, map(function, instances), strict=True):
        assert got.dtype is want.dtype
        assert torch.equal(got, want)


def test_numbers_are_asked_for_only_by_functions_that_check_them() -> None:
    with pytest.raises(NeedsData, match="the places where a condition holds"):
        Analysis(count_places, [kind(4)])
    variance = [torch.ones(3), torch.tensor([1.0, -1.0, 1.0])]
    loss = abt.cell(lambda x: functional.gaussian_nll_loss(x, 2 * x, x))
    batched = abt.batched(lambda x: loss(x), module=nn.Linear(1, 1))  # type: ignore[no-untyped-call]
    assert torch.equal(
        batched(variance[:1])[0], functional.gaussian_nll_loss(variance[0], 2 * variance[0], variance[0])
    )
    with pytest.raises(ValueError, match="negative"):
        batched(variance)


def test_sparse_tensors_are_refused_in_a_sentence() -> None:
    cell = abt.cell(lambda x: x.to_dense())
    batched = abt.batched(lambda x: cell(x), module=nn.Linear(1, 1))  # type: ignore[no-untyped-call]
    with pytest.raises(GraphError, match=r"must be dense, got layout torch.sparse_coo; call .to_dense()"):
        batched([torch.eye(2).to_sparse()])


TABLE, NORM = nn.Embedding(9, 3), nn.GroupNorm(1, 3)
ROWS: dict[str, Any] = {
    "a constant number": lambda x: x.sum() + TABLE(torch.full_like(x.std(), 2.7, dtype=torch.long).abs() % 9).sum(),
    "rows that are not next to each other": lambda x: NORM(x[-1].reshape(1, -1)).pow(3).sum(),
}


@each("name", ROWS)
def test_rows_that_torch_is_given_lie_in_memory_as_they_may(name: str) -> None:
    body = ROWS[name]
    cell = abt.cell(body)
    batched = abt.batched(lambda x: cell(x), module=nn.ModuleList([TABLE, NORM]))
    inputs = [torch.randn(2, 3, requires_grad=True) for _ in range(3)]
    torch.testing.assert_close(batched(inputs), torch.stack([body(x) for x in inputs]))
    found = autograd.grad(batched(inputs).sum(), inputs)
    torch.testing.assert_close(found, autograd.grad(sum(body(x) for x in inputs), inputs))


def test_what_only_an_argument_that_is_not_used_depends_on_has_no_gradient() -> None:
    leaf = abt.cell(lambda x: torch.hypot(x, x), runs="torch")
    merge = abt.cell(lambda a, b: b * 2, runs="torch")
    batched = abt.batched(lambda x: merge(leaf(x), x), module=nn.Linear(1, 1))  # type: ignore[no-untyped-call]
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    (found,) = autograd.grad(batched([x]).sum(), x)
    assert torch.equal(found, torch.full_like(x, 2))  # not NaN, the product of zero and the derivative at 0
