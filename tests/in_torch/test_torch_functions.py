"""Test torch functions in cells and on recorded values: values and gradients equal torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, autograd, nn
from torch.nn import functional

import autobatch.torch as abt
from autobatch.errors import GraphError

MATRIX = torch.linspace(-1.0, 1.0, 24, dtype=torch.float64).reshape(6, 4)
ROWS = torch.linspace(0.5, 2.0, 12, dtype=torch.float64).reshape(3, 4)

Function = Callable[[Tensor, Tensor], Any]
OURS: dict[str, Function] = {
    "add": lambda x, y: x + 2 * y + 1.5,
    "add alpha": lambda x, y: torch.add(x, y, alpha=0.5),
    "sub": lambda x, y: 1 - x - torch.sub(y, x, alpha=2),
    "rsub": lambda x, y: torch.rsub(x, y, alpha=3),
    "mul": lambda x, y: x * y * 0.5,
    "div": lambda x, y: x / (1 + y * y) + 1 / (2 + x.abs()),
    "pow": lambda x, y: x**2 + (1 + y * y) ** 0.5 + torch.pow(1 + x * x, y),
    "neg": lambda x, y: -x,
    "exp": lambda x, y: torch.exp(x) + torch.log(1 + x * x) + torch.sqrt(1 + y * y),
    "rsqrt": lambda x, y: torch.rsqrt(1 + x * x) + torch.reciprocal(2 + y * y),
    "trigonometry": lambda x, y: torch.sin(x) * torch.cos(y) + torch.erf(x),
    "gates": lambda x, y: torch.sigmoid(x) * torch.tanh(y),
    "relu": lambda x, y: functional.relu(x) + torch.relu(y) + nn.ReLU()(x - y),
    "gelu": lambda x, y: functional.gelu(x) + functional.gelu(y, approximate="tanh"),
    "silu": lambda x, y: functional.silu(x) + functional.elu(y, 0.7) + functional.leaky_relu(x - y, 0.2),
    "softplus": lambda x, y: functional.softplus(30 * x, beta=2.0) + functional.logsigmoid(y) + functional.selu(x),
    "hardtanh": lambda x, y: functional.hardtanh(3 * x) + y.clamp(min=-0.5) + x.clamp(max=0.1) + y.clamp(-0.2, 0.9),
    "maximum": lambda x, y: torch.maximum(x, y) + torch.minimum(x, 2 * y),
    "where": lambda x, y: torch.where((x > y) & ~(x > 1) | (y <= -1), x, 2 * y),
    "masked": lambda x, y: x * (x >= 0) + y * (y != 0.0).to(y.dtype) + (x < y).double(),
    "masked fill": lambda x, y: x.masked_fill(x > y, 2.0) + y.masked_fill(torch.arange(6) > 3, 0.5),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.3) + torch.addcdiv(x, y, 2 + x * x) + torch.lerp(x, y, 0.3),
    "softmax": lambda x, y: torch.softmax(x, 0) + functional.log_softmax(y, dim=-1),
    "sums": lambda x, y: x.sum() + y.mean(0) + (x * y).sum(dim=-1, keepdim=True) + torch.sum(x) * torch.mean(y),
    "largest": lambda x, y: x.amax() + y.amin(0) + torch.max(x) + x.max(dim=0).values + x.max(0)[0],
    "logsumexp": lambda x, y: torch.logsumexp(x, 0) + y.var() + y.std() + x.var(0, unbiased=False) + y.norm(),
    "chunk": lambda x, y: [part.tanh() for part in (*x.chunk(3), *torch.split(y, 4), *torch.split(y, [1, 2, 3]))],
    "cat": lambda x, y: torch.cat((x, y, x[:2]), dim=-1) + torch.hstack((x, y, y[4:])),
    "stack": lambda x, y: torch.stack((x, y), dim=1) @ MATRIX[:2] + torch.stack([x, y]).sum(0).unsqueeze(1),
    "slices": lambda x, y: x[1:4] + y[::2] + x[-3:] + y[3] + x.narrow(0, 1, 3) + x.unsqueeze(0)[0, 2:5] + y[..., 1:4],
    "shapes": lambda x, y: x.view(2, 3).t() @ y.reshape(-1, 3) + torch.unflatten(x, 0, (3, 2)) @ y.view(2, 3).mT.T,
    "squeeze": lambda x, y: x.unsqueeze(0).squeeze() + y[None, :, None].squeeze(0).flatten() + x.view(1, 6).squeeze(0),
    "permute": lambda x, y: x.view(1, 2, 3).permute(2, 0, 1).contiguous() + y.view(3, 2, 1).transpose(1, 2),
    "expand": lambda x, y: x.unsqueeze(1).expand(6, 2) + y.view(6, 1).expand(-1, 2) + x[:, None].repeat(1, 2),
    "unbind": lambda x, y: sum(part * part.sum() for part in x.view(2, 3).unbind(0)) + torch.unbind(y)[2],
    "products": lambda x, y: x @ MATRIX + torch.matmul(y, MATRIX) + torch.mv(MATRIX.T, x) + MATRIX.T @ y,
    "matrices": lambda x, y: x.view(2, 3) @ ROWS + torch.addmm(ROWS[:2], torch.mm(y.view(2, 3), ROWS[:, :3]), ROWS),
    "stacks": lambda x, y: torch.bmm(x.view(2, 1, 3), y.view(2, 3, 1)) + torch.matmul(x.view(2, 1, 3), y.view(2, 3, 1)),
    "dot": lambda x, y: torch.dot(x, y) + x @ y + torch.inner(x, y) + torch.outer(x, y).sum(),
    "einsum": lambda x, y: torch.einsum("i,j->ij", x, y) + torch.einsum("i,ij->j", x, torch.outer(y, y)),
    "linear": lambda x, y: functional.linear(x, MATRIX.T) + functional.linear(y.view(1, 6), MATRIX.T, ROWS[0])[0],
    "linear of rows": lambda x, y: functional.linear(torch.stack((x, y)), MATRIX.T, ROWS[1]),
    "layer norm": lambda x, y: functional.layer_norm(x, (6,)) + functional.layer_norm(y, (6,), x, y, 1e-3),
    "layer norm of two axes": lambda x, y: functional.layer_norm(x.view(2, 3), (2, 3)) + y.view(2, 3),
    "losses": lambda x, y: functional.mse_loss(x, y) + functional.mse_loss(x, y, reduction="sum"),
    "two classes": lambda x, y: functional.binary_cross_entropy_with_logits(x, torch.sigmoid(y)),
    "classes": lambda x, y: functional.cross_entropy(x.view(2, 3), torch.tensor([1, 2])) + functional.nll_loss(
        functional.log_softmax(y, 0), torch.tensor(4)),
    "distances": lambda x, y: functional.cosine_similarity(x, y, dim=0) + functional.l1_loss(x, y),
    "constants": lambda x, y: x + torch.zeros_like(x) + torch.ones_like(y) + x.new_zeros(6) + y.new_full((6,), 0.5)
    + torch.full_like(x, 2.0) + torch.arange(6, dtype=torch.float64) + torch.eye(6, dtype=torch.float64)[1],
    "detach": lambda x, y: x.detach() * y + x.clone(),
    "loops": lambda x, y: sum((part * k for k, part in enumerate(x.chunk(3))), torch.zeros(2, dtype=x.dtype)) + y[:2],
}  # fmt: skip
BY_TORCH: dict[str, Function] = {
    "cumsum": lambda x, y: torch.cumsum(x, 0) * y,
    "sort": lambda x, y: torch.msort(x) + y,
    "logarithm": lambda x, y: y.exp().log1p() * x,
    "zero times a logarithm": lambda x, y: torch.xlogy(y * (x > 0), 2 + x * x),
    "divergence": lambda x, y: (
        functional.kl_div(functional.log_softmax(x, 0), torch.softmax(y, 0), reduction="sum") * y
    ),
    "atan2": lambda x, y: torch.atan2(x, 1 + y * y),
    "convolution": lambda x, y: functional.conv1d(x.view(1, 1, 6), y[:3].view(1, 1, 3)).flatten(),
    "prod": lambda x, y: x.prod() + torch.trapezoid(y),
    "a condition that it reads": lambda x, y: torch.cumsum(x > 0, 0) * y,
    "norm of order 1": lambda x, y: x.norm(1) * y + functional.normalize(y, p=3.0, dim=0),
    "weights of classes": lambda x, y: (
        functional.nll_loss(
            functional.log_softmax(x.view(2, 3), -1), torch.tensor([1, 2]), weight=torch.arange(3.0, dtype=x.dtype)
        )
        * y
    ),
    "weights and smoothing": lambda x, y: (
        functional.cross_entropy(
            x.view(2, 3), torch.tensor([1, 2]), weight=torch.arange(3.0, dtype=x.dtype), label_smoothing=0.1
        )
        * y
    ),
    "positive weight": lambda x, y: functional.binary_cross_entropy_with_logits(x, y, pos_weight=2 + 0 * y.detach()),
    "inside of gates": lambda x, y: torch.tanh(torch.cumsum(torch.sigmoid(x) * y, 0) @ MATRIX),
}
IN_CELLS: dict[str, Function] = {
    "an axis of a scalar": lambda x, y: x.sum().sum(0) * y,
    "ints that it gives": lambda x, y: torch.topk(x, 3).values + y[:3],
    "in place": lambda x, y: (x + 0).cumprod_(0) + y,
}
FIRST = "pow", "logsumexp", "layer norm", "losses", "where"
"""Functions whose second derivatives are tested even in quick runs."""
WHOLE = {"sort", "ints that it gives", "weights of classes", "weights and smoothing"}
"""Functions that torch runs as a whole."""


class Applied(nn.Module):
    """A module that applies a function inside or outside a cell."""

    def __init__(self, function: Function, runs: str = "auto") -> None:
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 6, dtype=torch.float64))
        self.inside = abt.cell(Inside(function), runs=runs)

    def cell(self, instance: tuple[Tensor, Tensor]) -> Any:
        return self.inside(instance[0] * self.scale, instance[1] * self.scale)

    def plain(self, instance: tuple[Tensor, Tensor]) -> Any:
        return self.function(instance[0] * self.scale, instance[1] * self.scale)


class Inside(nn.Module):
    """A function as a module."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.function(x, y)


def draw() -> list[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, 6, generator=random, dtype=torch.float64)
    return [(one[0], one[1].requires_grad_()) for one in x]


def flat(x: Any) -> Tensor:
    parts = x if isinstance(x, (list, tuple)) else [x]
    return torch.cat([part.reshape(-1) if isinstance(part, Tensor) else flat(part) for part in parts])


def check(function: Function, runs: str, ways: tuple[str, ...]) -> Any:
    expected_of, instances = Applied(function), draw()
    eager = torch.stack([flat(expected_of.plain(one)) for one in instances])
    weights = torch.linspace(0.3, 1.0, eager.numel(), dtype=torch.float64).reshape(eager.shape)
    autograd.backward((eager * weights).sum())
    gradients = [expected_of.scale.grad, *(y.grad for _, y in instances)]
    for way in ways:
        model, again = Applied(function, runs), draw()
        batched = abt.batched(getattr(model, way), backend="reference")
        outputs = batched(again)
        found = torch.stack(list(map(flat, outputs)))
        assert found.shape == eager.shape, way
        torch.testing.assert_close(found, eager, rtol=1e-9, atol=1e-10)
        autograd.backward((found * weights).sum())
        for got, wanted in zip([model.scale.grad, *(y.grad for _, y in again)], gradients, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-10)
    return batched


def twice(values: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """Return the gradients of values and of a function of these gradients, with zeros for missing ones."""
    gradients = autograd.grad(values.sin().sum(), tensors, create_graph=True, allow_unused=True)
    found = [torch.zeros_like(x) if g is None else g for g, x in zip(gradients, tensors, strict=True)]
    total = sum(g.sin().sum() for g in found)
    again = autograd.grad(total, tensors, allow_unused=True) if total.requires_grad else ()  # type: ignore[union-attr, arg-type]
    return [*found, *(torch.zeros_like(x) if g is None else g for g, x in zip(again, tensors, strict=False))]


@pytest.mark.cases(5)
@pytest.mark.parametrize("name", [*FIRST, *(name for name in OURS if name not in FIRST)])
def test_second_derivatives_are_those_of_torch(name: str) -> None:
    model, instances = Applied(OURS[name]), draw()
    tensors = [model.scale, *(y for _, y in instances)]
    expected = twice(torch.stack([flat(model.plain(one)) for one in instances]), tensors)
    for way in ("plain", "cell"):
        outputs = abt.batched(getattr(model, way), backend="reference")(instances)
        found = twice(torch.stack(list(map(flat, outputs))), tensors)
        for got, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", OURS)
def test_functions_are_programs_of_our_ops(name: str) -> None:
    batched = check(OURS[name], "autobatch", ("plain", "cell"))
    assert not batched.explain([(x, y.detach()) for x, y in draw()]).notes


def test_totals_begin_with_numbers_and_tensors_stay_as_they_are() -> None:
    def total(x: Tensor, y: Tensor) -> Tensor:
        found: Any = 0.0
        found += x * y
        found -= 0.5 * y
        found *= x
        found /= 2.0
        return found + torch.ones(6, dtype=x.dtype) / (2.0 + y * y) - torch.tensor(1.0, dtype=x.dtype) * x  # type: ignore[no-any-return]

    def in_place(x: Tensor, y: Tensor) -> Tensor:
        found = torch.zeros(6, dtype=x.dtype)
        found += x * y
        return found

    check(total, "auto", ("plain", "cell"))
    with pytest.raises(GraphError, match=r"start sums with 0.0"):
        check(in_place, "auto", ("plain",))


def test_results_may_be_changed_in_place_inside_of_cells() -> None:
    check(lambda x, y: (x + 0).mul_(y).add_(1.0).relu_() + functional.relu(x * 2, inplace=True), "auto", ("cell",))


@pytest.mark.cases(8)
@pytest.mark.parametrize("name", [*BY_TORCH, *IN_CELLS])
def test_what_we_lack_is_run_by_torch_and_named(name: str) -> None:
    function = {**BY_TORCH, **IN_CELLS}[name]
    batched = check(function, "auto", ("plain", "cell") if name in BY_TORCH else ("cell",))
    ((cell, note),) = batched.explain([(x, y.detach()) for x, y in draw()]).notes
    assert cell == "Inside"
    assert note.endswith("has no counterpart here.")
    assert note.startswith("is run by torch:") == (name in WHOLE), note
    if name not in WHOLE:
        check(function, "autobatch", ("cell",))
        return
    with pytest.raises(GraphError, match="has no counterpart here"):
        check(function, "autobatch", ("cell",))


def test_gradients_of_norms_at_zero_are_torchs() -> None:
    def norms(x: Tensor, y: Tensor) -> Any:
        zero = 0 * x
        return zero.norm() + zero.std() + zero.view(2, 3).norm(dim=1).sum() + functional.cosine_similarity(zero, y, 0)

    check(norms, "autobatch", ("plain", "cell"))


@pytest.mark.parametrize(
    "noisy",
    [
        lambda x, y: x + torch.randn(6, dtype=x.dtype),
        lambda x, y: torch.normal(x, 1.0),
        lambda x, y: x + functional.gumbel_softmax(0 * x),
    ],
)
def test_each_node_has_draws_of_its_own(noisy: Function, capfd: pytest.CaptureFixture[str]) -> None:
    model = Applied(noisy)
    row = torch.ones(6, dtype=torch.float64)
    batched = abt.batched(lambda pair: [model.cell(pair), model.cell(pair)], module=model, backend="reference")
    torch.manual_seed(0)
    found = [x for pair in batched([(row, row)] * 3) for x in pair]
    assert len({tuple(x.tolist()) for x in found}) == 6
    autograd.backward(torch.stack(found).sum())
    assert model.scale.grad is not None
    assert not capfd.readouterr().err


@pytest.mark.parametrize("name", ["gates", "softmax", "chunk", "sums", "slices"])
def test_torch_can_be_asked_to_run_it(name: str) -> None:
    batched = check(OURS[name], "torch", ("cell",))
    ((_, note),) = batched.explain([(x, y.detach()) for x, y in draw()]).notes
    assert note == "is run by torch: the cell asks for it"


HALF, ONE = torch.tensor(0.5, dtype=torch.float64), torch.tensor(1)
WITH_CONSTANTS: dict[str, Function] = {
    "quantile": lambda x, y: torch.quantile(x, HALF) * y,
    "index_add": lambda x, y: x.index_add(0, ONE, y[:1]),
    "index_fill": lambda x, y: x.index_fill(0, ONE, 2.0) * y,
    "copysign": lambda x, y: torch.copysign(x, -HALF) * y,
    "prelu": lambda x, y: functional.prelu(x, HALF) * y,
}


@pytest.mark.parametrize("runs", ["auto", "torch"])
@pytest.mark.parametrize("name", WITH_CONSTANTS)
def test_constants_without_axes_stand_beside_values(name: str, runs: str) -> None:
    check(WITH_CONSTANTS[name], runs, ("cell",))
