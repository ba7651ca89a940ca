"""Test torch's function transforms and compilers, which batched functions refuse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, func, nn
from torch.autograd import forward_ad, functional

import autobatch.torch as abt
from autobatch.errors import GraphError

pytestmark = pytest.mark.filterwarnings("ignore:::torch", "ignore:Using backward:UserWarning")


class Net(nn.Module):
    """A cell and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.a = abt.cell(nn.Linear(4, 4))

    @abt.batched(backend="reference")
    def loss(self, x: Tensor) -> Tensor:
        return self.a(x).pow(2).sum()  # type: ignore[no-any-return]


def of_dual(net: Any, x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        return net.loss([forward_ad.make_dual(x, x)])  # type: ignore[no-any-return, no-untyped-call]


USES: dict[str, tuple[str, Callable[[Any, Tensor], Any]]] = {
    "hessian": ("vectorize=True", lambda n, x: functional.hessian(lambda y: n.loss([y])[0], x, vectorize=True)),  # type: ignore[no-untyped-call]
    "grad": ("torch.func", lambda n, x: func.grad(lambda y: n.loss([y])[0])(x)),
    "jvp": ("torch.func", lambda n, x: func.jvp(lambda y: n.loss([y])[0], (x,), (x,))),
    "vmap": ("torch.func", lambda n, x: func.vmap(lambda y: n.loss([y])[0])(x[None])),
    "trace": ("torch.jit.trace", lambda n, x: torch.jit.trace(lambda y: n.loss([y]), x)),  # type: ignore[no-untyped-call]
    "dual": ("torch.autograd.forward_ad", of_dual),
}


@pytest.mark.parametrize("case", USES)
def test_transforms_are_refused(case: str) -> None:
    told, use = USES[case]
    with pytest.raises(GraphError, match=told.replace(".", r"\.")):
        use(Net(), torch.ones(4))


@pytest.mark.slow
def test_the_compiler_of_torch_is_refused() -> None:
    net = Net()
    with pytest.raises(GraphError, match=r"torch\.compile cannot transform a batched function"):
        torch.compile(net.loss)([torch.ones(4)])  # type: ignore[no-untyped-call]


@pytest.mark.slow
def test_the_compiler_of_torch_is_not_imported() -> None:
    program = "import sys, autobatch.torch; print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("runs", ["auto", "torch"])
@pytest.mark.parametrize("change", [
    lambda p: setattr(p, "data", p.data * 3),
    lambda p: p.detach().mul_(3),
])  # fmt: skip
def test_a_parameter_that_changes_before_backward_is_noticed(change: Callable[[Tensor], Any], runs: str) -> None:
    model = nn.Module()
    model.a = abt.cell(nn.Linear(2, 2), runs=runs)
    f = abt.batched(lambda x: model.a(x), module=model, backend="reference")  # type: ignore[operator]
    y = f([torch.ones(2, requires_grad=True)]).sum()
    change(model.a.weight)
    with pytest.raises(GraphError, match=r"parameter .* has changed since the mini-batch ran forward"):
        y.backward()


def doubled(module: nn.Module) -> dict[str, Tensor]:
    return {name: 2 * x for name, x in module.state_dict().items()}


REPLACED: dict[str, Callable[[Any], Any]] = {
    "assigned by load_state_dict": lambda m: m.load_state_dict(doubled(m), assign=True),
    "another parameter": lambda m: setattr(m.a, "weight_ih", nn.Parameter(torch.zeros(2, 2))),
    "all of another dtype, assigned": lambda m: m.load_state_dict(
        {name: x.double() for name, x in m.state_dict().items()}, assign=True
    ),
}


def stacked() -> tuple[Any, Any]:
    model: Any = nn.Module()
    model.a = abt.cell(nn.RNNCell(2, 2))  # its parameters are stacked
    return model, abt.batched(lambda x: model.a(x, x), module=model)


@pytest.mark.parametrize("name", REPLACED)
def test_a_mini_batch_differentiates_the_parameters_that_it_ran_with(name: str) -> None:
    """As in torch, parameters assigned after the forward pass are not involved."""
    model, f = stacked()
    before, xs = dict(model.named_parameters()), [torch.ones(2), torch.zeros(2)]
    y, expected = f(xs), torch.stack([model.a(x, x) for x in xs])
    wanted = torch.autograd.grad(expected.pow(2).sum(), [*before.values()])
    REPLACED[name](model)
    dtype = next(model.parameters()).dtype
    z = f([x.to(dtype) for x in xs])
    torch.testing.assert_close(torch.autograd.grad(y.pow(2).sum(), [*before.values()]), wanted)
    z.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_module_that_is_replaced_before_backward_is_noticed() -> None:
    model, f = stacked()
    y = f([torch.ones(2)]).sum()
    model.a = abt.cell(nn.RNNCell(2, 2))
    f([torch.ones(2)])
    with pytest.raises(GraphError, match=r"parameter .* has changed since the mini-batch ran forward"):
        y.backward()


class Twice(nn.Module):
    """A recurrent step that takes the same value as input and state; its parameters are stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.RNNCell(2, 2)

    def forward(self, x: Tensor) -> Any:
        h = self.step(x, x)
        return h, h > 0.1


def test_parameters_that_are_replaced_while_types_of_before_stay() -> None:
    model: Any = nn.Module()
    model.twice = abt.cell(Twice())
    f = abt.batched(lambda x: model.twice(x)[0], module=model, backend="reference")
    f([torch.ones(2)])
    model.twice.step.register_full_backward_hook(lambda module, given, got: None)  # torch runs the cell from now on
    model.load_state_dict(doubled(model), assign=True)
    abt.check_batched(f, [torch.ones(2, requires_grad=True), torch.zeros(2, requires_grad=True)])


def test_a_plan_that_moves_parameters_changes_nothing() -> None:
    net = Net()
    y = net.loss([torch.ones(4)]).sum()
    other = abt.batched(lambda x: net.a(x) + net.a.weight[0], module=net)
    other([torch.ones(4)] * 3).sum().backward()
    net.zero_grad()
    y.backward()
    found, net.a.weight.grad = net.a.weight.grad, None
    net.a(torch.ones(4)).pow(2).sum().backward()
    torch.testing.assert_close(found, net.a.weight.grad)
