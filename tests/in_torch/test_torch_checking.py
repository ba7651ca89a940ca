"""Test `abt.check_batched`: correct functions pass, wrong ones raise a readable error, and nothing is changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import autobatch as ab
import autobatch.torch as abt
from autobatch.errors import GraphError, NumericError
from autobatch.torch.cells import TorchCell


class Net(nn.Module):
    """A network that sums along rows and counts what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.step = abt.cell(nn.GRUCell(3, 3))
        self.output = nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(2))

    def state(self, rows: Tensor) -> Tensor:
        h = torch.zeros(3)
        for row in rows:
            h = self.step(row, h)
        return h

    def loss(self, rows: Tensor) -> Any:
        y = self.read(self.state(rows))
        return {"loss": y.pow(2).sum(), "logits": y, "all": [y[0], y[1]]}

    @abt.cell
    def read(self, h: Tensor) -> Tensor:
        y: Tensor = self.output(h) + self.seen
        return y

    @abt.batched  # type: ignore[arg-type]
    def total(self, rows: Tensor) -> Tensor:
        return self.read(self.state(rows)).sum()

    async def longest(self, rows: Tensor) -> Tensor:
        h = self.state(rows)
        return h if await ab.value(h.sum()) > 0 else self.step(rows[0], h)


def chains() -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(n, 3, generator=draw).requires_grad_() for n in (3, 1, 4)]


def test_functions_that_are_right_pass() -> None:
    net, rows = Net(), chains()
    abt.check_batched(net.loss, rows)
    abt.check_batched(net.total, rows)
    abt.check_batched(net.longest, rows)
    abt.check_batched(lambda x: net.state(x), rows, module=net, policy="agenda")
    abt.check_batched(net.total, [])
    with pytest.raises(GraphError, match="'<lambda>' must be a method of a module"):
        abt.check_batched(lambda x: x, rows)


def test_complex_numbers_are_compared_with_the_tolerance_of_their_parts() -> None:
    cell: Any = abt.cell(lambda x: torch.fft.rfft(x))
    abt.check_batched(lambda x: cell(x), [torch.rand(5, requires_grad=True)], module=nn.Linear(1, 1))


def test_options_of_a_function_that_has_its_own_are_refused() -> None:
    net = Net()
    given: list[dict[str, Any]] = [{"policy": "agenda"}, {"module": net}]
    for options in given:
        with pytest.raises(GraphError, match=r"already batched; give the options to abt\.batched"):
            abt.check_batched(net.total, chains(), **options)


def test_nothing_is_changed() -> None:
    net, rows = Net(), chains()
    norm = nn.BatchNorm1d(3).eval()
    net.register_module("norm", norm)
    net.output.weight.grad = torch.ones(2, 3)
    before, state = {name: x.clone() for name, x in net.state_dict().items()}, torch.get_rng_state()
    abt.check_batched(net.loss, rows)
    torch.testing.assert_close(dict(net.state_dict()), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(net.output.weight.grad, torch.ones(2, 3))
    assert [x.grad for x in (net.output.bias, *rows)] == [None] * (1 + len(rows))


class Doubled(torch.autograd.Function):
    """The identity, with a doubled gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2


double: Any = Doubled.apply


def with_defect(monkeypatch: pytest.MonkeyPatch, change: Any) -> Any:
    """Return a function whose cell computes something else when it runs alone."""
    cell = abt.cell(lambda x: functional.softplus(x))
    monkeypatch.setattr(cell, "eager", lambda x: change(functional.softplus(x)))
    assert isinstance(cell, TorchCell)
    return lambda x: cell(x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y: y + 1e-3, r"instance 0: batched differs from torch alone by 0\.001, of numbers up to "),
        (lambda y: y.double(), r"instance 0: batched it is torch.float32 of shape .*, torch alone gives torch.float64"),
        (lambda y: y[:1], r"instance 0: batched it is torch.float32 of shape \(2, 3\), torch alone gives .* \(1, 3\)"),
        (double, r"the gradient of a tensor of shape \(2, 3\), not a parameter: batched differs"),
    ],
)  # fmt: skip
def test_defects_are_told(change: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(NumericError, match=message):
        abt.check_batched(with_defect(monkeypatch, change), [x], module=nn.Linear(1, 1))


def test_a_wrong_gradient_of_a_parameter_is_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    cell: Any = net.read.cell  # type: ignore[attr-defined]
    weight = net.output.weight
    monkeypatch.setattr(cell, "eager", lambda self, h: functional.linear(h, double(weight), self.output.bias))
    with pytest.raises(NumericError, match=r"the gradient of parameter 'output.weight': batched differs"):
        abt.check_batched(net.total, chains())


def test_functions_that_draw_are_refused() -> None:
    dropout = abt.cell(nn.Dropout(0.5))
    with pytest.raises(GraphError, match="draws random numbers"):
        abt.check_batched(dropout, [torch.ones(3)])
    abt.check_batched(dropout.eval(), [torch.ones(3)])
