"""Test that gradients are None where torch's are: optimizers also move parameters whose gradient is zero."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, autograd, nn

import autobatch.torch as abt
from autobatch.errors import NumericError


class Net(nn.Module):
    """Two layers, a table, and parameters that are read in several ways."""

    def __init__(self, runs: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = abt.cell(nn.Linear(2, 2), runs=runs), abt.cell(nn.Linear(2, 2), runs=runs)
        self.plain = nn.Linear(2, 2)
        self.table = abt.cell(nn.Embedding(5, 2), runs=runs)
        self.w, self.v = nn.Parameter(torch.ones(2)), nn.Parameter(torch.full((2,), 2.0))
        self.unread = nn.Parameter(torch.ones(2))
        self.two = abt.cell(self._two, runs=runs)
        self.cut = abt.cell(self._cut, runs=runs)
        self.quiet = abt.cell(self._quiet, runs=runs)
        self.steps = abt.cell(self._steps, runs=runs)

    def _two(self, x: Tensor) -> Any:
        return x * self.w, {"other": (x + self.v).sin(), "count": x.argmax()}

    def _cut(self, x: Tensor) -> Any:
        return (x * self.w).detach() + x * self.v

    def _quiet(self, x: Tensor) -> Any:
        with torch.no_grad():
            held = self.plain(x)
        return held * self.w

    def _steps(self, x: Tensor) -> Any:
        return (x * self.w).floor() + (x * self.v > 1).to(x.dtype)


def without(net: Any, x: Tensor) -> Any:
    """Apply a layer under no_grad, outside cells."""
    with torch.no_grad():
        held = net.plain(x)
    return (held * net.b(x)).sum()


FUNCTIONS: dict[str, Callable[[Any, Tensor], Any]] = {
    "all is used": lambda net, x: (net.a(x) + net.b(x)).sum(),
    "detached": lambda net, x: (net.a(x).detach() - net.b(x)).square().sum(),
    "detached in between": lambda net, x: (net.b(net.a(x).detach()) * net.w).sum(),
    "under no_grad": without,
    "computed and not used": lambda net, x: (net.a(x), net.b(x))[1].sum(),
    "one of two results": lambda net, x: net.two(x)[0].sum(),
    "the other": lambda net, x: net.two(x)[1]["other"].sum(),
    "ints alone": lambda net, x: net.two(x)[1]["count"] + net.a(x).sum(),
    "detached in a cell": lambda net, x: net.cut(x).sum(),
    "under no_grad in a cell": lambda net, x: net.quiet(x).sum(),
    "steps": lambda net, x: net.steps(x).sum(),
    "compared": lambda net, x: torch.where(net.a(x) > 0, net.b(x), net.w).sum(),
    "through others": lambda net, x: net.two(net.a(x))[0].sum() + net.two(net.b(x).detach())[1]["other"].sum(),
    "outside of cells": lambda net, x: (net.plain(x) * net.w.detach()).sum(),
    "some instances": lambda net, x: net.a(x).sum() if x[0] > 0 else (net.b(x) * net.v).sum(),
    "a table": lambda net, x: net.table(1).sum() if x[0] > 0 else net.w.sum(),
    "a weight of zero": lambda net, x: (0.0 * net.a(x) + net.b(x)).sum(),
    "several results": lambda net, x: (net.a(x), [net.b(x).detach(), net.w * 2]),
}


def leaves(y: Any) -> list[Tensor]:
    return [y] if isinstance(y, Tensor) else [leaf for part in y for leaf in leaves(part)]


def gradients_of(net: nn.Module, xs: list[Tensor], results: Any) -> dict[str, Tensor | None]:
    """Return the gradients of the sum of all results that require grad."""
    for x in (*net.parameters(), *xs):
        x.grad = None
    torch.stack([part.sum() for part in leaves(results) if part.requires_grad]).sum().backward()  # type: ignore[no-untyped-call]
    return {f"x{k}": x.grad for k, x in enumerate(xs)} | {name: p.grad for name, p in net.named_parameters()}


def data() -> list[Tensor]:
    return [torch.tensor(x, requires_grad=True) for x in ([1.0, 2.0], [0.5, -1.0])]


@pytest.mark.cases(20)
@pytest.mark.parametrize("runs", ["auto", "torch"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_gradient_is_none_where_that_of_torch_is(name: str, runs: str) -> None:
    net, xs = Net(runs), data()
    function = FUNCTIONS[name]
    run = abt.batched(lambda x: function(net, x), module=net, backend="reference")
    for instances in (xs, xs[:1], xs[1:]):
        expected = gradients_of(net, instances, [function(net, x) for x in instances])
        found = gradients_of(net, instances, run(instances))
        assert {key for key, g in found.items() if g is None} == {key for key, g in expected.items() if g is None}
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_check_batched_compares_it(name: str) -> None:
    net = Net("auto")
    abt.check_batched(lambda x: FUNCTIONS[name](net, x), data(), module=net, backend="reference")


def test_check_batched_finds_zeros_where_torch_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from autobatch.torch.flow import Reaching

    net = Net("auto")
    everything = {id(p) for p in abt.batched(net.a).recorder.module.parameters().values()}
    found = Reaching.parameters
    monkeypatch.setattr(Reaching, "parameters", lambda *args: found(*args) | everything)
    with pytest.raises(
        NumericError, match=r"the gradient of parameter 'a\.weight': batched it is a tensor, torch alone"
    ):
        abt.check_batched(lambda x: (net.a(x).detach() * net.b(x)).sum(), data(), module=net, backend="reference")


def test_steps_of_an_optimizer_with_decay_are_those_of_torch() -> None:
    """Teachers and heads that a mini-batch does not use must stay where they are."""

    def train(batched: bool) -> dict[str, Tensor]:
        net = Net("auto").double()
        functions = [FUNCTIONS[name] for name in ("detached", "one of two results", "under no_grad", "some instances")]
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.5)
        xs = [x.double() for x in data()]
        for step in range(8):
            function = functions[step % len(functions)]
            run = abt.batched(partial(function, net), module=net, backend="reference")
            optimizer.zero_grad()
            (run(xs) if batched else torch.stack([function(net, x) for x in xs])).sum().backward()
            optimizer.step()
        return {name: p.detach() for name, p in net.named_parameters()}

    torch.testing.assert_close(train(True), train(False))


def test_autograd_grad_and_several_backward_calls() -> None:
    net, xs = Net("auto"), data()
    run = abt.batched(lambda x: FUNCTIONS["several results"](net, x), module=net, backend="reference")
    parameters = [*net.parameters()]
    of_each = []
    y, rows = run(xs), [FUNCTIONS["several results"](net, x) for x in xs]
    for first, lists in (y, (torch.stack([row[0] for row in rows]), [row[1] for row in rows])):
        last = torch.stack([parts[1] for parts in lists])
        with pytest.raises(RuntimeError, match="appears to not have been used in the graph"):
            autograd.grad(first.sum(), parameters, retain_graph=True)
        one = autograd.grad(first.sum(), parameters, retain_graph=True, allow_unused=True)
        zeros = autograd.grad(first.sum(), parameters, retain_graph=True, materialize_grads=True)
        net.zero_grad()
        first.sum().backward(retain_graph=True)
        before = [p.grad is None for p in parameters]
        first.pow(2).sum().backward(retain_graph=True)
        autograd.backward(last.sum())
        of_each.append((one, zeros, before, [p.grad for p in parameters]))
    for found, expected in zip(*of_each, strict=True):
        assert [x is None for x in found] == [x is None for x in expected]
        torch.testing.assert_close(
            [x for x in found if isinstance(x, Tensor)], [x for x in expected if isinstance(x, Tensor)]
        )


def test_second_derivatives_of_what_nothing_depends_on() -> None:
    net, xs = Net("auto").double(), [x.detach().double().requires_grad_() for x in data()]
    function = FUNCTIONS["through others"]
    run = abt.batched(lambda x: function(net, x), module=net, backend="reference")
    of_each = []
    for y in (run(xs), torch.stack([function(net, x) for x in xs])):
        first = autograd.grad(y.pow(2).sum(), [*net.parameters()], create_graph=True, allow_unused=True)
        total = sum(g.pow(2).sum() for g in first if g is not None)
        second = autograd.grad(total, [*net.parameters(), *xs], allow_unused=True)  # type: ignore[arg-type]
        of_each.append([*first, *second])
    found, expected = of_each
    assert [x is None for x in found] == [x is None for x in expected]
    torch.testing.assert_close([x for x in found if x is not None], [x for x in expected if x is not None])


def test_a_sparse_table_that_is_not_read() -> None:
    net = nn.ModuleDict({"used": nn.Embedding(4, 2, sparse=True), "unused": nn.Embedding(4, 2, sparse=True)})
    used, unused = abt.cell(net["used"]), abt.cell(net["unused"])
    run = abt.batched(lambda k: used(k).sum() + unused(k).detach().sum(), module=net, backend="reference")
    run([1, 2]).sum().backward()
    of_used = net["used"].weight.grad
    assert isinstance(of_used, Tensor)
    assert of_used.is_sparse
    assert net["unused"].weight.grad is None
