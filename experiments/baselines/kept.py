"""Shared code of the expert's versions: reusable arrays, products, and the parts of a sweep and its gradient.

tanh takes more than ten times as long as sigmoid here, so a sweep computes tanh(x) as 2 sigmoid(2x) - 1. The factors
cost nothing: they are multiplied into the gate rows of a weight once per mini-batch (`scaled`), and the arrays named c
hold twice the cell state. The row block of gates named u is that of the update, the third of all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from baselines.baseline import Baseline

LARGE = 1 << 20  # multiplications, from which oneDNN's speed outweighs its overhead
PART = 1024  # rows
MINUS_TWO, MINUS_ONE = torch.tensor(-2.0), torch.tensor(-1.0)


class Kept(Baseline):
    """Reuses arrays from one mini-batch to the next, and overwrites the last step's gradients in place."""

    output: nn.Linear

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kept: dict[str, Tensor] = {}

    def backward(self, minibatch: Any) -> None:
        """Compute the gradients of the mean loss, in place of the last ones."""
        for parameter in self.parameters():
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
        torch.autograd.backward(self.losses(minibatch).mean())

    def rows(self, name: str, n_rows: int, width: int) -> Tensor:
        """Return rows of a reusable array, which is reallocated if it is too short; their contents are arbitrary."""
        kept = self.kept.get(name)
        if kept is None or len(kept) < n_rows:
            with torch.inference_mode(False):  # so that training can use it too
                kept = self.kept[name] = next(self.parameters()).new_empty(n_rows + n_rows // 4, width)
        return kept[:n_rows]

    def multiply(self, x: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute x @ weight.T + bias, in `out` or elsewhere."""
        return torch.mm(x, weight.t(), out=out) if bias is None else torch.addmm(bias, x, weight.t(), out=out)

    def add_product(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """Add x @ weight.T to `out`."""
        out.addmm_(x, weight.t())

    def sum_products(self, d: Tensor, x: Tensor, out: Tensor) -> None:
        """Compute d.T @ x, the gradient of a weight from those of its products."""
        torch.mm(d.t(), x, out=out)


class OneDnn(Kept):
    """Uses matrix products of oneDNN, which PyTorch includes but does not use here: on AMD, MKL has half its speed."""

    def multiply(self, x: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute x @ weight.T + bias."""
        return one_dnn(x, weight, bias) if is_large(x, weight) else super().multiply(x, weight, out, bias)

    def add_product(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """Add x @ weight.T to `out`."""
        if is_large(x, weight):
            out.add_(one_dnn(x, weight))
        else:
            super().add_product(x, weight, out)

    def sum_products(self, d: Tensor, x: Tensor, out: Tensor) -> None:
        """Compute d.T @ x, transposed and in parts, which was fastest here: 1.5 times as fast as one product."""
        if not is_large(d.t(), x):
            super().sum_products(d, x, out)
            return
        parts = zip(torch.split(d, PART), torch.split(x, PART), strict=True)
        first, *others = (one_dnn(x_part.t(), d_part.t()) for d_part, x_part in parts)
        out.copy_(sum(others, first).t())


def is_large(x: Tensor, weight: Tensor) -> bool:
    """Return whether oneDNN, which does not support float64, is worth its overhead."""
    return len(x) * weight.numel() >= LARGE and x.dtype == torch.float32


def one_dnn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x @ weight.T + bias with the operator that torch.compile uses."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


def scaled(model: Kept, name: str, array: Tensor, factor: float, dim: int) -> Tensor:
    """Copy gate rows of a weight or bias, those of u times a factor."""
    flat = array.view(len(array), -1)
    copy = model.rows(name, *flat.shape)
    copy.copy_(flat)
    copy[2 * dim : 3 * dim] *= factor
    return copy.view(array.shape)


def finish_state(o: Tensor, c: Tensor, t: Tensor, h: Tensor) -> None:
    """Compute t = tanh(c / 2) and h = o t."""
    torch.sigmoid(c, out=t)
    torch.mul(o, torch.add(MINUS_ONE, t, alpha=2.0, out=t), out=h)


def state_backward(
    i: Tensor, o: Tensor, u: Tensor, t: Tensor, d_h: Tensor, d_c: Tensor, d_i: Tensor, d_o: Tensor, d_u: Tensor
) -> None:
    """Differentiate h = o t, t = tanh(c / 2), c = i u + ...: complete d_c, and write the gradients of gates i, o, u."""
    torch.mul(d_h, t, out=d_o)
    d_c.add_(d_h.mul_(o), alpha=0.5)
    d_c.addcmul_(d_h.mul_(t), t, value=-0.5)
    torch.mul(d_c, u, out=d_i)
    torch.mul(d_c, i, out=d_u)


def sigmoid_backward(d: Tensor, z: Tensor) -> None:
    """Multiply gradients of sigmoids by z (1 - z), in place; those of u still lack a factor of 8."""
    d.mul_(z)
    d.addcmul_(d, z, value=-1.0)


def gates_backward(model: Kept, weight: Tensor, biases: tuple[Tensor, ...], d: Tensor, x: Tensor, dim: int) -> None:
    """Write the gradients of a weight and of its biases, over all rows at once."""
    assert weight.grad is not None
    model.sum_products(d, x, weight.grad)
    weight.grad[2 * dim : 3 * dim] *= 8.0
    for bias in biases:
        assert bias.grad is not None
        torch.sum(d, 0, out=bias.grad)
        bias.grad[2 * dim : 3 * dim] *= 8.0


def table_backward(table: Tensor, ids: Tensor, d: Tensor) -> None:
    """Write the gradient of a table from those of the rows that were read."""
    assert table.grad is not None
    table.grad.zero_().index_add_(0, ids, d)


def put(place: Tensor, product: Tensor) -> None:
    """Copy a product to its place, unless it is there already."""
    if product is not place:
        place.copy_(product)


def compare(model: Kept, h: Tensor, labels: Tensor, owners: Tensor, n_owners: int) -> Tensor:
    """Sum the cross-entropies of each owner. Scores are stored by class, which makes log_softmax ten times as fast."""
    scores = torch.addmm(model.output.bias[:, None], model.output.weight, h.t())
    logs = model.kept["logs"] = torch.log_softmax(scores, dim=0)
    losses = logs.gather(0, labels[None])[0].neg_()
    return losses.new_zeros(n_owners).index_add_(0, owners, losses)


def compare_backward(model: Kept, h: Tensor, labels: Tensor, weights: Tensor, dh: Tensor) -> None:
    """Differentiate `compare`, each loss with its weight: gradients of the output layer, and dh."""
    d = model.kept.pop("logs").exp_()
    d.scatter_add_(0, labels[None], d.new_full((1, 1), -1.0).expand(1, len(labels)))
    d *= weights
    torch.mm(d.t(), model.output.weight, out=dh)
    torch.mm(d, h, out=model.output.weight.grad)
    torch.sum(d, 1, out=model.output.bias.grad)
