"""Test parameters that share memory with others: views, transposes, other processes; their numbers stay where they are.

Each is compared with torch, before and after changes through either tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autobatch as ab
import autobatch.torch as abt


class Tied(nn.Module):
    """A module whose parameters are views of one."""

    def __init__(self, body: Callable[..., Tensor] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.whole = nn.Parameter(torch.randn(5, 6))
        self.turned = nn.Parameter(self.whole.detach().t())
        self.columns = nn.Parameter(self.whole.detach()[:, 1:5])
        self.column = nn.Parameter(self.whole.detach()[:, 2])
        self.row = nn.Parameter(self.whole.detach()[1])
        self.u, self.v = nn.Linear(6, 5), nn.Linear(6, 5)
        self.body = body

    @abt.cell
    def cell(self, x: Tensor, i: Tensor) -> Tensor:
        assert self.body is not None
        return self.body(self, x, i)

    def run(self, item: tuple[Tensor, Tensor]) -> Any:
        return self.cell(*item)


BODIES: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "stacked": lambda m, x, i: torch.tanh(F.linear(x, m.whole)) * torch.sigmoid(m.u(x)) + m.v(x),
    "turned": lambda m, x, i: F.linear(x[:5], m.turned) + torch.tanh(F.linear(m.u(x), m.turned)),
    "side by side": lambda m, x, i: torch.tanh(F.linear(x[:4], m.columns) + m.u(x)),
    "from the left": lambda m, x, i: x @ m.turned,
    "column": lambda m, x, i: F.layer_norm(x[:5], (5,), m.column, m.column),
    "row": lambda m, x, i: x * m.row + m.row.tanh(),
    "numbers": lambda m, x, i: (m.turned * x[:5]).sum(0) + m.turned.reshape(-1)[:5],
    "lookup": lambda m, x, i: F.embedding(i, m.columns) + x[:4],
    "by torch": lambda m, x, i: torch.logcumsumexp(m.turned @ x[:5], 0),
}


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", BODIES)
def test_views_of_parameters_stay_tied(name: str, backend: str) -> None:
    net = Tied(BODIES[name])
    items = [(torch.randn(6), torch.tensor(k)) for k in range(4)]
    run, parameters = abt.batched(net.run, backend=backend), list(net.parameters())
    for changed in (net.whole, net.turned, net.columns):
        found, expected = run(items), torch.stack([net.run(item) for item in items])
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        ours, theirs = (
            torch.autograd.grad(y.pow(2).sum(), parameters, allow_unused=True, materialize_grads=True)
            for y in (found, expected)
        )
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
        with torch.no_grad():
            changed.mul_(0.5)
        assert torch.equal(net.turned, net.whole.t())
        assert torch.equal(net.columns, net.whole[:, 1:5])
        assert torch.equal(net.column, net.whole[:, 2])
        assert torch.equal(net.row, net.whole[1])


def test_tables_whose_rows_are_not_contiguous_are_refused() -> None:
    net = Tied(lambda m, x, i: F.embedding(i, m.turned) + x[:5])
    with pytest.raises(ab.GraphError, match=r"rows of a table of shape \(6, 5\) must be contiguous to be looked up"):
        abt.batched(net.run, backend="cpu")([(torch.randn(6), torch.tensor(1))])


@pytest.mark.parametrize("is_warm", [False, True])
def test_parameters_stay_in_memory_that_processes_share(is_warm: bool) -> None:
    net = Tied(BODIES["stacked"])
    items = [(torch.randn(6), torch.tensor(k)) for k in range(4)]
    run = abt.batched(net.run)
    if is_warm:
        run(items)
    net.share_memory()
    for _ in range(3):
        torch.testing.assert_close(run(items), torch.stack([net.run(item) for item in items]))
        assert all(p.untyped_storage().is_shared() for p in net.parameters())
        with torch.no_grad():
            net.u.weight.mul_(0.5)


def test_tensors_made_from_a_parameter_before_the_first_call_still_share_its_memory() -> None:
    net = Tied(BODIES["stacked"])
    items = [(torch.randn(6), torch.tensor(0))]
    view, target = net.u.weight.detach(), nn.Linear(6, 5)
    target.weight.data = net.v.weight.data
    abt.batched(net.run)(items)
    view.zero_()
    target.weight.data.zero_()
    assert not net.u.weight.any()
    assert not net.v.weight.any()
    torch.testing.assert_close(abt.batched(net.run)(items), torch.stack([net.run(item) for item in items]))
