"""Test second derivatives of batched losses, and gradients within functions: equal to torch's for single instances."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, autograd, nn
from torch.autograd import functional

import autobatch.torch as abt
from autobatch.errors import GraphError

pytestmark = pytest.mark.filterwarnings("ignore:Using backward:UserWarning")

Trees = list[tuple[Any, int]]
TREES: Trees = [((1, (2, 3)), 0), (((4, 1), (0, 2)), 1), (3, 0)]


class Merge(nn.Module):
    """A cell that merges two states."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * dim, dim)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.tanh(self.linear(torch.cat((left, right))))


class TreeNet(nn.Module):
    """Merges, an LSTM step with one state in both places, dropout, and an unused parameter."""

    def __init__(self, dim: int = 4, runs: str = "auto") -> None:
        super().__init__()
        self.word, self.merge = abt.cell(nn.Embedding(5, dim)), abt.cell(Merge(dim), runs=runs)
        self.step, self.output = abt.cell(nn.LSTMCell(dim, dim)), nn.Linear(dim, 2)
        self.drop, self.idle = nn.Dropout(0.3), nn.Parameter(torch.ones(2))

    def state(self, tree: Any) -> Tensor:
        if isinstance(tree, int):
            return self.word(tree)  # type: ignore[no-any-return]
        left, right = tree
        return self.merge(self.state(left), self.state(right))  # type: ignore[no-any-return]

    def loss(self, item: tuple[Any, int]) -> Tensor:
        tree, label = item
        state = self.state(tree)
        return self.classify(self.step(state, (state, state))[0], label)

    @abt.cell
    def classify(self, state: Tensor, label: Any) -> Tensor:
        return nn.functional.cross_entropy(self.output(self.drop(state)), label)


class Rows(nn.Module):
    """An LSTM over rows that returns lists, values and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.step = abt.cell(nn.Linear(3, 6)), abt.cell(nn.LSTMCell(6, 6))
        self.norm = abt.cell(nn.LayerNorm(6))

    def states(self, rows: Tensor) -> dict[str, Any]:
        state, seen = (torch.zeros(6, dtype=rows.dtype),) * 2, []
        for row in rows:
            state = self.step(self.read(row), state)
            seen.append(self.norm(state[0]))
        return {"h": state[0], "all": seen, "rows": torch.stack(seen), "n": len(rows), "best": state[1].argmax()}

    def loss(self, rows: Tensor) -> Tensor:
        return torch.stack([h.pow(3).sum() for h in self.states(rows)["all"]]).sum()


def make(runs: str = "auto") -> TreeNet:
    torch.manual_seed(0)
    return TreeNet(runs=runs).double().eval()


def make_rows() -> tuple[Rows, list[Tensor]]:
    torch.manual_seed(0)
    return Rows().double(), [torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (2, 3, 1)]


def one_by_one(function: Callable[[Any], Tensor]) -> Callable[[Sequence[Any]], Tensor]:
    return lambda instances: torch.stack([function(x) for x in instances])


def assert_close(found: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> None:
    for one, other in zip(found, expected, strict=True):
        if one is None or other is None:
            assert one is None or not one.any()
            assert other is None or not other.any()
        else:
            assert (one - other).abs().max() <= 1e-9 * other.abs().max()


def orders(losses: Tensor, tensors: Sequence[Tensor], n: int = 2) -> list[Tensor | None]:
    """Return the gradients of the losses, of functions of these gradients, and so on, up to order n."""
    weights = torch.linspace(1.0, -0.5, len(losses), dtype=losses.dtype)
    value, found = (losses.sin() * weights).sum(), list[Tensor | None]()
    for k in range(n):
        gradients = autograd.grad(value, tensors, create_graph=k < n - 1, allow_unused=True)
        found += gradients
        value = value + sum(g.sin().sum() + (g**2).sum() for g in gradients if g is not None)
    return found


@pytest.mark.cases(1)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_derivatives_of_any_order_by_shared_and_unused_parameters(backend: str) -> None:
    net = make()
    found = orders(abt.batched(net.loss, backend=backend)(TREES), [*net.parameters()], 3)
    assert_close(found, orders(one_by_one(net.loss)(TREES), [*net.parameters()], 3))


@pytest.mark.parametrize("by", ["parameters", "inputs", "both"])
def test_results_in_lists_and_inputs_below_and_above(by: str) -> None:
    net, instances = make_rows()
    below = nn.Linear(3, 3).double()
    tensors = [*(instances if by != "parameters" else ()), *(net.parameters() if by != "inputs" else ())]
    batched = abt.batched(net.states, backend="reference")

    def ours() -> Tensor:
        found = batched([below(x).tanh() for x in instances])
        sums = [h.pow(3).sum() for rows in found["all"] for h in rows] + [rows.cos().sum() for rows in found["rows"]]
        return torch.stack([*sums, found["h"].sin().sum()])

    def theirs() -> Tensor:
        found = [net.states(below(x).tanh()) for x in instances]
        sums = [h.pow(3).sum() for one in found for h in one["all"]] + [one["rows"].cos().sum() for one in found]
        return torch.stack([*sums, torch.stack([one["h"] for one in found]).sin().sum()])

    assert_close(orders(ours(), tensors), orders(theirs(), tensors))


def test_products_of_a_hessian_and_a_vector_as_torch_computes_them() -> None:
    net, instances = make_rows()
    batched, (x, *_) = abt.batched(net.loss, backend="reference"), [rows.detach() for rows in instances]
    v = torch.randn_like(x)

    def ours(y: Tensor) -> Tensor:
        return batched([y])[0]  # type: ignore[no-any-return]

    for product in (functional.hvp, functional.vhp, functional.jvp):
        assert_close(product(ours, x, v), product(net.loss, x, v))  # type: ignore[no-untyped-call]
    assert_close([functional.hessian(ours, x)], [functional.hessian(net.loss, x)])  # type: ignore[no-untyped-call]
    parameters = [*net.parameters()]
    rows = []
    for function in (batched, one_by_one(net.loss)):
        (g, *_) = autograd.grad(function(instances).sum(), parameters, create_graph=True)
        found = [autograd.grad(g[0, k], parameters, retain_graph=True, allow_unused=True) for k in range(2)]
        rows.append([part for row in found for part in row])
    assert_close(*rows)


def test_gradient_penalties_with_the_loss_in_one_backward() -> None:
    nets = [make_rows()[0] for _ in range(2)]
    _, (real, _, fake) = make_rows()
    critics = abt.batched(nets[0].loss, backend="reference"), one_by_one(nets[1].loss)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.01) for net in nets]
    for _ in range(3):
        for net, critic, optimizer in zip(nets, critics, optimizers, strict=True):
            optimizer.zero_grad()
            between = (0.3 * real[:1] + 0.7 * fake).detach().requires_grad_()
            scores = critic([between, real])
            (slope,) = autograd.grad(scores.sum(), between, create_graph=True)
            autograd.backward(scores.mean() + 10 * (slope.norm() - 1) ** 2)
            optimizer.step()
            assert all(p.grad is not None for p in net.parameters())
        assert_close([*nets[0].parameters()], [*nets[1].parameters()])


def test_gradients_that_keep_their_graph_in_grad() -> None:
    net, alone = make(), make()
    for model, losses in ((net, abt.batched(net.loss, backend="reference")), (alone, one_by_one(alone.loss))):
        losses(TREES).sum().backward(create_graph=True)
        weight = model.merge.linear.weight
        gradient, weight.grad = weight.grad, None
        assert gradient is not None
        autograd.backward(gradient.pow(2).sum())
    assert_close([net.merge.linear.weight.grad], [alone.merge.linear.weight.grad])


def test_dropout_has_the_masks_of_the_first_run() -> None:
    net = make().train()
    losses, weight = abt.batched(net.loss, backend="reference"), net.merge.linear.weight

    def slope(direction: Tensor | None = None) -> Tensor:
        torch.manual_seed(3)
        (gradient,) = autograd.grad(losses(TREES).sum(), weight, create_graph=direction is not None)
        if direction is None:
            return gradient
        torch.manual_seed(4)
        return autograd.grad(gradient, weight, direction)[0]

    direction = torch.randn_like(weight)
    found, eps = slope(direction), 1e-5
    with torch.no_grad():
        weight += eps * direction
        above = slope_without_graph(slope)
        weight -= 2 * eps * direction
        below = slope_without_graph(slope)
    torch.testing.assert_close(found, (above - below) / (2 * eps), rtol=1e-5, atol=1e-7)


def slope_without_graph(slope: Callable[[], Tensor]) -> Tensor:
    with torch.enable_grad():
        return slope()


def test_a_table_with_sparse_gradients() -> None:
    torch.manual_seed(0)
    table = abt.cell(nn.Embedding(9, 4, sparse=True).double())
    dense = nn.Embedding(9, 4).double()
    dense.load_state_dict(table.state_dict())

    def loss(of: nn.Module) -> Callable[[list[int]], Tensor]:
        return lambda words: torch.stack([of(torch.tensor(w)) for w in words]).sum(0).pow(3).sum()

    batched = abt.batched(lambda words: torch.stack([table(w) for w in words]).sum(0).pow(3).sum(), module=table)
    (gradient,) = autograd.grad(batched([[1, 2, 3], [2]]).sum(), table.weight, create_graph=True)
    assert gradient.is_sparse
    (expected,) = autograd.grad(sum(map(loss(dense), ([1, 2, 3], [2]))), dense.weight, create_graph=True)  # type: ignore[arg-type]
    found = autograd.grad(gradient.to_dense().pow(2).sum(), table.weight)[0]
    assert_close([found.to_dense()], [autograd.grad(expected.pow(2).sum(), dense.weight)[0]])


def test_threads_and_parts_share_a_second_function() -> None:
    net = make()
    tensors, found = [*net.parameters()], list[list[Tensor | None]]()
    losses = abt.batched(net.loss, backend="reference", max_bytes=40_000)
    expected = orders(one_by_one(net.loss)(TREES), tensors, 3)
    with ThreadPoolExecutor(3) as pool:
        found += pool.map(lambda n: orders(losses(TREES), tensors, n), (2, 3, 2, 3))
    for derivatives in found:
        assert_close(derivatives, expected[: len(derivatives)])


def test_calls_without_create_graph_make_no_second_function() -> None:
    net = make()
    losses = abt.batched(net.loss, backend="reference")
    autograd.backward(losses(TREES).sum())
    assert losses._derivative is None
    kept = losses(TREES).sum()
    autograd.grad(kept, net.output.weight, create_graph=True)
    assert losses._derivative is None
    twin = copy.deepcopy(losses)
    (gradient,) = autograd.grad(kept, net.output.weight, create_graph=True)
    autograd.grad(gradient.sum(), net.output.weight)
    assert losses._derivative is not None
    assert twin._derivative is None


def change_results(net: TreeNet, losses: Tensor) -> None:
    losses.detach().mul_(2.0)


def change_parameter(net: TreeNet, losses: Tensor) -> None:
    with torch.no_grad():
        net.output.bias.add_(1.0)


CHANGES: dict[str, tuple[Callable[[TreeNet, Tensor], Any], str]] = {
    "results": (change_results, "its results differ from the first ones"),
    "a parameter": (change_parameter, "parameter .* has changed"),
    "the mode": (lambda net, losses: net.train(), "its results differ from the first ones"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_has_changed_since_is_noticed(name: str) -> None:
    net, (change, told) = make(), CHANGES[name]
    losses = abt.batched(net.loss, backend="reference")(TREES)
    (gradient,) = autograd.grad(losses.sum(), net.output.weight, create_graph=True)
    change(net, losses)
    with pytest.raises(GraphError, match=told):
        autograd.grad(gradient.sum(), net.output.weight)


def test_what_has_no_second_derivative_is_refused() -> None:
    net = make("torch")
    losses = abt.batched(net.loss, backend="reference")
    (gradient,) = autograd.grad(losses(TREES).sum(), net.merge.linear.weight, create_graph=True)
    with pytest.raises(GraphError, match="as for second derivatives, but torch runs it"):
        autograd.grad(gradient.sum(), net.merge.linear.weight)
    graphs = losses.record_all(TREES)
    (gradient,) = autograd.grad(losses(graphs).sum(), net.merge.linear.weight, create_graph=True)
    with pytest.raises(GraphError, match="a mini-batch of recorded graphs are not available"):
        autograd.grad(gradient.sum(), net.merge.linear.weight)

    async def waits(item: tuple[Any, int]) -> Tensor:
        state = net.step(net.word(1), (net.word(2), net.word(2)))[0]
        return state.sum()  # type: ignore[no-any-return]

    losses = abt.batched(waits, module=net, backend="reference")
    (gradient,) = autograd.grad(losses(TREES).sum(), net.word.weight, create_graph=True)
    with pytest.raises(GraphError, match="of an async function are not available"):
        autograd.grad(gradient.sum(), net.word.weight)
    functions: tuple[Callable[[int], Tensor], ...] = (
        lambda k: net.word(k).float().pow(2).double().sum(),
        lambda k: torch.view_as_complex(net.word(k).reshape(2, 2)).abs().sum(),
    )
    for function in functions:  # with other dtypes in between; the gradient must not get lost silently
        losses = abt.batched(function, module=net, backend="reference")
        (gradient,) = autograd.grad(losses([1, 2]).pow(2).sum(), net.word.weight, create_graph=True)
        with pytest.raises(GraphError, match="its derivative is needed inside the program"):
            autograd.grad(gradient.sum(), net.word.weight)
    x = torch.ones(4, 4, dtype=torch.float64, requires_grad=True)
    y = abt.batched(lambda x: net.step(x, (x, x))[0].sum(), module=net, backend="reference")(list(x))
    with pytest.raises(GraphError, match="is_grads_batched=True"):
        autograd.grad(y, x, torch.eye(4, dtype=torch.float64), is_grads_batched=True)
    (gradient,) = autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(GraphError, match="vectorize=True"):
        autograd.grad(gradient, x, torch.ones(2, 4, 4, dtype=torch.float64), is_grads_batched=True)


class Potential(nn.Module):
    """A pair energy, and losses that use its gradients within the function."""

    def __init__(self, runs: str = "auto") -> None:
        super().__init__()
        self.first = nn.Linear(3, 5)
        self.pair = abt.cell(nn.Sequential(self.first, nn.Tanh(), nn.Linear(5, 1)), runs=runs)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def energy(self, positions: Tensor) -> Tensor:
        n = len(positions)
        pairs = [(positions[i] - positions[j]) * self.scale for i in range(n) for j in range(i)]
        return torch.stack([self.pair(x).sum() for x in pairs]).sum()

    def loss(self, positions: Tensor) -> Tensor:
        positions = positions.detach().clone().requires_grad_()
        energy = self.energy(positions)
        (gradient,) = autograd.grad(energy, positions, create_graph=True)
        return energy + (gradient + 0.1).pow(2).sum()

    def made_here(self, positions: Tensor) -> Tensor:
        positions = torch.tensor(positions.tolist(), dtype=torch.float64, requires_grad=True)
        energy = self.energy(positions)
        found = autograd.grad(
            [energy, energy * 2], [positions], [torch.tensor(0.5).double(), energy], create_graph=True
        )
        return found[0].sin().sum()

    def of_inputs(self, positions: Tensor) -> Tensor:
        positions = positions.requires_grad_()
        (gradient,) = autograd.grad(self.energy(positions), positions, create_graph=True)
        return gradient.pow(2).sum() + positions.pow(2).sum()

    def of_parameters(self, positions: Tensor) -> Tensor:
        weight, energy = self.first.weight, self.energy(positions)
        found = autograd.grad(energy, (weight, self.scale), create_graph=True)
        return found[0].pow(2).sum() * found[1]

    def of_values(self, positions: Tensor) -> Tensor:
        h = self.pair(positions[0])
        energy = (h**3).sum() + self.pair(positions[1]).sum() * h.sum()
        (first,) = autograd.grad(energy, h, create_graph=True)
        (second,) = autograd.grad(first.sum(), h, create_graph=True)
        (detached,) = autograd.grad(energy, h, retain_graph=True)
        assert autograd.grad(energy, self.pair(positions[2]), allow_unused=True, retain_graph=True) == (None,)
        by_name = autograd.grad(
            energy, {"zeros": self.pair(positions[2]), "h": h}, materialize_grads=True, retain_graph=True
        )
        total: Tensor = (first * second * detached * by_name["h"]).sum() + by_name["zeros"].sum()
        return total


@pytest.mark.parametrize("name", ["loss", "made_here", "of_inputs", "of_parameters", "of_values"])
def test_gradients_within_a_function(name: str) -> None:
    torch.manual_seed(0)
    model: Any = Potential().double()
    instances = [torch.randn(n, 3, dtype=torch.float64, requires_grad=name == "of_inputs") for n in (3, 4)]
    tensors = [*model.parameters(), *(instances if name == "of_inputs" else ())]
    function = getattr(model, name)
    batched = abt.batched(function, backend="reference")
    assert_close([batched(instances)], [one_by_one(function)(instances)])
    assert_close(orders(batched(instances), tensors), orders(one_by_one(function)(instances), tensors))
    with torch.no_grad():
        assert_close([batched(instances)], [one_by_one(torch.enable_grad()(function))(instances)])


def refused(function: Callable[[Any, Tensor], Any], runs: str = "auto") -> Any:
    model = Potential(runs)
    return abt.batched(lambda x: function(model, x), module=model, backend="reference")([torch.ones(3, 3)])


def of_plain(model: Any, x: Tensor) -> Any:
    x.requires_grad_()
    return autograd.grad(model.energy(x), x, create_graph=True)[0].sum()


def of_unused(model: Any, x: Tensor) -> Any:
    x = x.requires_grad_()
    return autograd.grad(model.pair(x[0]).sum(), model.pair(x[1]))[0]


async def of_async(model: Any, x: Tensor) -> Any:
    h = model.pair(x[0])
    return autograd.grad(h.sum(), h)[0]


REFUSED: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "a tensor that is not recorded": (of_plain, r"call x = x.requires_grad_\(\) within the function"),
    "nothing depends on it": (of_unused, "on which no output depends"),
    "no scalar": (
        lambda m, x: autograd.grad(m.pair(x[0]).expand(5), m.scale),
        r"must be a scalar, got shape \(5,\); sum it",
    ),
    "another shape": (
        lambda m, x: autograd.grad(m.energy(x), m.scale, torch.ones(2)),
        r"the shape of its value, \(\), got \(2,\)",
    ),
    "batched": (
        lambda m, x: autograd.grad(m.energy(x), m.scale, is_grads_batched=True),
        "call torch.autograd.grad in a loop",
    ),
    "backward": (lambda m, x: m.energy(x).backward(), "on the result of the batched function"),
    "torch.func": (lambda m, x: torch.func.grad(m.energy)(x).sum(), "cells within torch.func"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_gradients_within_a_function_that_are_refused(name: str) -> None:
    function, told = REFUSED[name]
    with pytest.raises(GraphError, match=told):
        refused(function)


def test_gradients_within_a_function_of_what_torch_runs_or_what_waits() -> None:
    with pytest.raises(GraphError, match="its derivative is needed inside the program"):
        refused(lambda model, x: model.loss(x), runs="torch")
    model = Potential()

    async def function(x: Tensor) -> Any:
        return await of_async(model, x)

    with pytest.raises(GraphError, match="not available in an async function"):
        abt.batched(function, module=model, backend="reference")([torch.ones(3, 3)])
