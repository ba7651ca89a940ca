"""Test torch's own differentiation tools: gradcheck, jacobian, hessian, and several backward calls on one result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, autograd, nn

import autobatch.torch as abt
from autobatch.errors import GraphError


class Net(nn.Module):
    """A layer, a recurrent step and a table."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.step = abt.cell(nn.Linear(3, 3)), abt.cell(nn.GRUCell(3, 3))
        self.scale = nn.Parameter(torch.ones(3))
        self.double()

    def chain(self, x: Tensor) -> Any:
        h = self.layer(x)
        for _ in range(1 + int(x.detach()[0] > 0)):
            h = self.step(x[None], h[None])[0].tanh() * self.scale
        return h


FUNCTIONS: dict[str, Callable[[Any, Tensor], Any]] = {
    "vectors": lambda net, x: net.chain(x),
    "a scalar": lambda net, x: net.chain(x).pow(2).sum(),
    "a layer": lambda net, x: net.layer(x),
    "a matrix": lambda net, x: torch.outer(net.layer(x), x),
}
functional: Any = autograd.functional
TOOLS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "jacobian": lambda f, x: functional.jacobian(f, x),
    "jacobian that is differentiated": lambda f, x: functional.jacobian(f, x, create_graph=True),
    "hessian": lambda f, x: functional.hessian(lambda y: f(y).sin().sum(), x),
    "vjp": lambda f, x: functional.vjp(f, x, torch.ones_like(f(x))),
    "jvp": lambda f, x: functional.jvp(f, x, torch.ones_like(x)),
    "vhp": lambda f, x: functional.vhp(lambda y: f(y).sin().sum(), x, torch.ones_like(x)),
    "hvp": lambda f, x: functional.hvp(lambda y: f(y).sin().sum(), x, torch.ones_like(x)),
}
X = torch.tensor([0.4, -0.3, 1.0], dtype=torch.float64)


def of_one(net: Net, name: str) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Return a function of a tensor that makes two instances of it: batched, and one at a time."""
    run = abt.batched(lambda x: FUNCTIONS[name](net, x), module=net, backend="reference")
    return lambda x: run([x, -2 * x]), lambda x: torch.stack([FUNCTIONS[name](net, y) for y in (x, -2 * x)])


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradcheck(name: str, fast: bool) -> None:
    batched, _ = of_one(Net(), name)
    assert autograd.gradcheck(batched, (X.clone().requires_grad_(),), fast_mode=fast)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradgradcheck(name: str) -> None:
    batched, _ = of_one(Net(), name)
    assert autograd.gradgradcheck(batched, (X.clone().requires_grad_(),), fast_mode=True)


def test_gradcheck_of_parameters_and_of_what_torch_runs() -> None:
    net = Net()
    cells = abt.cell(nn.Sequential(nn.Linear(3, 3), nn.Softsign()).double(), runs="torch")
    own = abt.batched(lambda x: net.chain(x), module=net, backend="reference")
    theirs = abt.batched(cells, backend="reference")
    assert autograd.gradcheck(lambda weight, x: own([x, x + 1]), (net.layer.weight, X.clone().requires_grad_()))
    assert autograd.gradcheck(lambda x, *ps: theirs([x, -x]), (X.clone().requires_grad_(), *cells.parameters()))


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("name", ["vectors", "a scalar"])
def test_tools_of_torch(name: str, tool: str) -> None:
    batched, alone = of_one(Net(), name)
    torch.testing.assert_close(TOOLS[tool](batched, X), TOOLS[tool](alone, X))


@pytest.mark.parametrize("runs", ["auto", "torch"])
def test_several_backward_calls(runs: str) -> None:
    """On one result, with other runs in between; dropout masks stay those of the forward pass."""
    torch.manual_seed(0)
    net = abt.cell(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Linear(3, 1)).double(), runs=runs)
    run = abt.batched(net, backend="reference")
    xs = [X.clone().requires_grad_(), -X]
    y = run(xs)
    parameters = [xs[0], *net.parameters()]
    first = autograd.grad(y.sum(), parameters, retain_graph=True)
    run(xs).sum().backward()
    for _ in range(3):
        torch.testing.assert_close(autograd.grad(y.sum(), parameters, retain_graph=True), first)
    doubled = autograd.grad(y.sum() * 2, parameters)
    torch.testing.assert_close(doubled, tuple(2 * g for g in first))
    with pytest.raises(RuntimeError, match="a second time"):
        autograd.grad(y.sum(), parameters)


def test_a_parameter_that_changes_between_two_backward_calls_is_noticed() -> None:
    net = Net()
    y = of_one(net, "a scalar")[0](X).sum()
    autograd.backward(y, retain_graph=True)
    with torch.no_grad():
        net.scale.mul_(2)
    with pytest.raises(GraphError, match="parameter 'scale' has changed since the mini-batch ran forward"):
        autograd.backward(y)


def test_many_gradients_at_a_time_are_refused() -> None:
    batched, _ = of_one(Net(), "vectors")
    with pytest.raises(GraphError, match="is_grads_batched=True"):
        functional.jacobian(batched, X, vectorize=True)


LOOKS: dict[str, Callable[[Any, Any], Any]] = {
    "explain": lambda f, xs: f.explain(xs).types,
    "explain, in training": lambda f, xs: f.explain(xs, training=True).types,
    "profile": lambda f, xs: f.profile(xs).calls,
    "profile, in training": lambda f, xs: f.profile(xs, training=True).calls,
    "prepare": lambda f, xs: f.prepare(xs).parts,
    "merged": lambda f, xs: f.merged(xs).n_nodes,
    "learn_policy": lambda f, xs: f.learn_policy([xs], seed=0) or f.policy,
    "check_batched": lambda f, xs: abt.check_batched(f, xs) or True,
}


@pytest.mark.parametrize("runs", ["auto", "torch"])
@pytest.mark.parametrize("name", LOOKS)
def test_what_looks_at_a_mini_batch_takes_tensors_that_ask_for_gradients(name: str, runs: str) -> None:
    net = nn.Module()
    net.cell = abt.cell(nn.Linear(3, 3).double(), runs=runs)
    f = abt.batched(lambda x: net.cell(x).sum(), module=net, backend="reference")  # type: ignore[operator]
    leaf = X.clone().requires_grad_()
    for xs in ([leaf, -X], [leaf * 2, leaf]):
        assert LOOKS[name](f, xs)
        assert leaf.grad is None
        f(xs).sum().backward()
        leaf.grad = None


def test_a_recorded_graph_would_lose_gradients() -> None:
    f = abt.batched(abt.cell(nn.Linear(3, 3).double()), backend="reference")
    with pytest.raises(GraphError, match="which a recorded graph would lose; give the instances themselves"):
        f.record_all([X.clone().requires_grad_()])
    with torch.no_grad():
        f.record_all([X.clone().requires_grad_()])
