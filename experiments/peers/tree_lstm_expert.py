"""Tree-LSTM as an expert writes it: the fastest that plain PyTorch gave on a CPU.

Against the version of a good user (`tree_lstm_levels.py`): states, gates and gradients lie in arrays that are kept from
one mini-batch to the next; one function has the whole sweep and its hand-written gradient, so autograd records one node;
weight gradients are one product each; a level is cut into blocks that stay in cache; and, since tanh costs more than ten
times what sigmoid costs here, tanh(x) is 2 sigmoid(2x) - 1. Its factors cost nothing: they are multiplied into the
weights once per mini-batch, and the arrays named c hold twice the cell state.

Rows are ordered by height. Both ways rows are read by index and written in order, for index_select is several times as
fast as index_copy_ and index_add_: a node has one parent, so its gradient is read from its slot among the children.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from peers.forest import Forest
from peers.tree_lstm_levels import LevelTreeLSTM

BLOCK = 1 << 18  # gates (rows × 5H) that a level is cut into at most


class ExpertTreeLSTM(LevelTreeLSTM):
    """The same parameters as a good user's; gradients are written over those of the last step, in place."""

    by_depth = False

    def __init__(self, n_words: int, dim: int, n_classes: int) -> None:
        super().__init__(n_words, dim, n_classes)
        self.kept: dict[str, Tensor] = {}

    def losses(self, minibatch: Forest) -> Tensor:
        """Sum the cross-entropies of the nodes of each tree: (B,)."""
        losses: Tensor = _Sweep.apply(self, minibatch, *self.parameters())  # type: ignore[no-untyped-call]
        return losses

    def backward(self, minibatch: Forest) -> None:
        """Compute the gradients of the mean loss, in place of those that are there."""
        torch.autograd.backward(self.losses(minibatch).mean())

    def rows(self, name: str, n_rows: int, width: int) -> Tensor:
        """Give rows of an array that is kept, and made anew where it is too short; what they hold is arbitrary."""
        kept = self.kept.get(name)
        if kept is None or len(kept) < n_rows:
            with torch.inference_mode(False):  # for training as well
                kept = self.kept[name] = torch.empty(n_rows + n_rows // 4, width, dtype=self.embedding.dtype)
        return kept[:n_rows]

    def blocks(self, forest: Forest) -> Iterator[tuple[int, int]]:
        """Cut the rows of inner nodes, level by level: (first, end), counted from the first inner node."""
        most = max(1, BLOCK // (5 * self.embedding.shape[1]))
        first = 0
        for _, inner in forest.levels:
            for start in range(first, first + inner, most):
                yield start, min(start + most, first + inner)
            first += inner

    def leaf_blocks(self, forest: Forest) -> Iterator[tuple[int, int]]:
        """Cut the rows of leaves: (first, end)."""
        most = max(1, BLOCK // (3 * self.embedding.shape[1]))
        for start in range(0, len(forest.words), most):
            yield start, min(start + most, len(forest.words))


class _Sweep(torch.autograd.Function):
    """All losses of a forest, and their gradients."""

    @staticmethod
    def forward(ctx: Any, model: ExpertTreeLSTM, forest: Forest, *parameters: Tensor) -> Tensor:
        ctx.model, ctx.forest = model, forest
        read_leaves(model, forest)
        read_inner(model, forest)
        return compare(model, forest)

    @staticmethod
    def backward(ctx: Any, *weights: Tensor) -> tuple[None, ...]:
        model, forest = ctx.model, ctx.forest
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
        compare_backward(model, forest, weights[0])
        inner_backward(model, forest)
        leaves_backward(model, forest)
        return (None,) * (2 + len(list(model.parameters())))


def doubled(model: ExpertTreeLSTM, name: str, array: Tensor, factor: float) -> Tensor:
    """Copy gate rows i, o, u, ... of a weight or bias, those of u times a factor."""
    dim = model.embedding.shape[1]
    flat = array.view(len(array), -1)
    copy = model.rows(name, *flat.shape)
    copy.copy_(flat)
    copy[2 * dim : 3 * dim] *= factor
    return copy.view(array.shape)


def read_leaves(model: ExpertTreeLSTM, forest: Forest) -> None:
    """Compute the states of the leaves: rows 0 to L - 1 of h and c."""
    n_leaves, dim = len(forest.words), model.embedding.shape[1]
    n_nodes = len(forest.labels)
    h, c, t = (model.rows(name, n_nodes, dim) for name in "hct")
    x, z, u = (model.rows(f"leaf_{n}", n_leaves, k * dim) for n, k in (("x", 1), ("z", 3), ("u", 1)))
    weight = doubled(model, "leaf_w2", model.leaf_gates.weight, 2.0).t()
    bias = doubled(model, "leaf_b2", model.leaf_gates.bias, 2.0)
    minus_two, minus_one = x.new_tensor(-2.0), x.new_tensor(-1.0)
    for s, e in model.leaf_blocks(forest):
        torch.index_select(model.embedding, 0, forest.words[s:e], out=x[s:e])
        zs = z[s:e]
        torch.addmm(bias, x[s:e], weight, out=zs).sigmoid_()
        us = torch.add(minus_two, zs[:, 2 * dim :], alpha=4.0, out=u[s:e])
        cs = torch.mul(zs[:, :dim], us, out=c[s:e])
        ts = torch.sigmoid(cs, out=t[s:e])
        torch.add(minus_one, ts, alpha=2.0, out=ts)
        torch.mul(zs[:, dim : 2 * dim], ts, out=h[s:e])


def read_inner(model: ExpertTreeLSTM, forest: Forest) -> None:
    """Compute the states of the inner nodes, level by level: rows L to N - 1 of h and c."""
    n_leaves, n_nodes, dim = len(forest.words), len(forest.labels), model.embedding.shape[1]
    n_inner = n_nodes - n_leaves
    h, c, t = (model.rows(name, n_nodes, dim) for name in "hct")
    x, cc = (model.rows(name, 2 * n_inner, dim) for name in ("x", "cc"))
    z, u = model.rows("z", n_inner, 5 * dim), model.rows("u", n_inner, dim)
    weight = doubled(model, "w2", model.gates.weight, 2.0).t()
    bias = doubled(model, "b2", model.gates.bias, 2.0)
    minus_two, minus_one = x.new_tensor(-2.0), x.new_tensor(-1.0)
    for s, e in model.blocks(forest):
        rows, children = slice(n_leaves + s, n_leaves + e), forest.children[2 * s : 2 * e]
        xs = torch.index_select(h, 0, children, out=x[2 * s : 2 * e])
        c_lr = torch.index_select(c, 0, children, out=cc[2 * s : 2 * e]).view(-1, 2 * dim)
        zs = z[s:e]
        torch.addmm(bias, xs.view(-1, 2 * dim), weight, out=zs).sigmoid_()
        us = torch.add(minus_two, zs[:, 2 * dim : 3 * dim], alpha=4.0, out=u[s:e])
        cs = torch.mul(zs[:, :dim], us, out=c[rows])
        cs.addcmul_(zs[:, 3 * dim : 4 * dim], c_lr[:, :dim]).addcmul_(zs[:, 4 * dim :], c_lr[:, dim:])
        ts = torch.sigmoid(cs, out=t[rows])
        torch.add(minus_one, ts, alpha=2.0, out=ts)
        torch.mul(zs[:, dim : 2 * dim], ts, out=h[rows])


def compare(model: ExpertTreeLSTM, forest: Forest) -> Tensor:
    """Sum the cross-entropies of each tree; scores lie class by class, where log_softmax is ten times as fast."""
    h = model.rows("h", len(forest.labels), model.embedding.shape[1])
    scores = torch.addmm(model.output.bias[:, None], model.output.weight, h.t())
    logs = torch.log_softmax(scores, dim=0)
    model.kept["logs"] = logs
    losses = logs.gather(0, forest.labels[None])[0].neg_()
    return losses.new_zeros(forest.n_trees).index_add_(0, forest.trees, losses)


def compare_backward(model: ExpertTreeLSTM, forest: Forest, weights: Tensor) -> None:
    """Differentiate `compare`: gradients of the output layer, and dh of all nodes."""
    n_nodes, dim = len(forest.labels), model.embedding.shape[1]
    d = model.kept.pop("logs").exp_()
    d.scatter_add_(0, forest.labels[None], d.new_full((1, 1), -1.0).expand(1, n_nodes))
    d *= weights.index_select(0, forest.trees)
    h, dh = model.rows("h", n_nodes, dim), model.rows("dh", n_nodes, dim)
    torch.mm(d.t(), model.output.weight, out=dh)
    torch.mm(d, h, out=model.output.weight.grad)
    torch.sum(d, 1, out=model.output.bias.grad)


def inner_backward(model: ExpertTreeLSTM, forest: Forest) -> None:
    """Differentiate `read_inner`: gradients of its weights, and, in the slots of children, of h and c."""
    n_leaves, n_nodes, dim = len(forest.words), len(forest.labels), model.embedding.shape[1]
    n_inner = n_nodes - n_leaves
    t, dh = model.rows("t", n_nodes, dim), model.rows("dh", n_nodes, dim)
    x, cc = (model.rows(name, 2 * n_inner, dim) for name in ("x", "cc"))
    z, dz, u = (model.rows(n, n_inner, k * dim) for n, k in (("z", 5), ("dz", 5), ("u", 1)))
    dx, dc = (model.rows(name, 2 * n_inner + 1, dim) for name in ("dx", "dc"))
    dx[-1] = dc[-1] = 0.0
    weight = doubled(model, "w8", model.gates.weight, 8.0)
    for s, e in reversed(list(model.blocks(forest))):
        rows, zs, ds = slice(n_leaves + s, n_leaves + e), z[s:e], dz[s:e]
        d_h, d_c = take_gradients(model, forest, dx, dc, dh, rows)
        state_backward(zs, ds, u[s:e], t[rows], d_h, d_c, dim)
        d_lr = d_c[:, None]
        torch.mul(d_lr, cc[2 * s : 2 * e].view(-1, 2, dim), out=ds[:, 3 * dim :].unflatten(1, (2, dim)))
        torch.mul(d_lr, zs[:, 3 * dim :].unflatten(1, (2, dim)), out=dc[2 * s : 2 * e].view(-1, 2, dim))
        sigmoid_backward(ds, zs)
        torch.mm(ds, weight, out=dx[2 * s : 2 * e].view(-1, 2 * dim))
    weight_backward(model.gates.weight, model.gates.bias, dz, x.view(-1, 2 * dim), dim)


def leaves_backward(model: ExpertTreeLSTM, forest: Forest) -> None:
    """Differentiate `read_leaves`: gradients of its weights and of the embeddings."""
    n_leaves, n_nodes, dim = len(forest.words), len(forest.labels), model.embedding.shape[1]
    n_inner = n_nodes - n_leaves
    t, dh = model.rows("t", n_nodes, dim), model.rows("dh", n_nodes, dim)
    dx, dc = (model.rows(name, 2 * n_inner + 1, dim) for name in ("dx", "dc"))
    z, dz = (model.rows(name, n_leaves, 3 * dim) for name in ("leaf_z", "leaf_dz"))
    x, d_x, u = (model.rows(name, n_leaves, dim) for name in ("leaf_x", "leaf_dx", "leaf_u"))
    weight = doubled(model, "leaf_w8", model.leaf_gates.weight, 8.0)
    for s, e in model.leaf_blocks(forest):
        zs, ds = z[s:e], dz[s:e]
        d_h, d_c = take_gradients(model, forest, dx, dc, dh, slice(s, e))
        state_backward(zs, ds, u[s:e], t[s:e], d_h, d_c, dim)
        sigmoid_backward(ds, zs)
        torch.mm(ds, weight, out=d_x[s:e])
    weight_backward(model.leaf_gates.weight, model.leaf_gates.bias, dz, x, dim)
    assert model.embedding.grad is not None
    model.embedding.grad.zero_().index_add_(0, forest.words, d_x)


def take_gradients(
    model: ExpertTreeLSTM, forest: Forest, dx: Tensor, dc: Tensor, dh: Tensor, rows: slice
) -> tuple[Tensor, Tensor]:
    """Read dh and dc of rows from their slots; to dh is added what the loss gave."""
    slots, dim = forest.slots[rows], dx.shape[1]
    d_h = torch.index_select(dx, 0, slots, out=model.rows("d_h", len(slots), dim))
    d_c = torch.index_select(dc, 0, slots, out=model.rows("d_c", len(slots), dim))
    return d_h.add_(dh[rows]), d_c


def state_backward(z: Tensor, dz: Tensor, u: Tensor, t: Tensor, d_h: Tensor, d_c: Tensor, dim: int) -> None:
    """Differentiate h = o t, t = tanh(c / 2), c = i u + ...: completes d_c, writes the gradients of gates i, o, u."""
    torch.mul(d_h, t, out=dz[:, dim : 2 * dim])
    d_h.mul_(z[:, dim : 2 * dim])
    d_c.add_(d_h, alpha=0.5)
    d_c.addcmul_(d_h.mul_(t), t, value=-0.5)
    torch.mul(d_c, u, out=dz[:, :dim])
    torch.mul(d_c, z[:, :dim], out=dz[:, 2 * dim : 3 * dim])


def sigmoid_backward(dz: Tensor, z: Tensor) -> None:
    """Multiply gradients of sigmoids by z (1 - z), in place."""
    dz.mul_(z)
    dz.addcmul_(dz, z, value=-1.0)


def weight_backward(weight: Tensor, bias: Tensor, dz: Tensor, x: Tensor, dim: int) -> None:
    """Write the gradients of a weight and a bias, over all rows at once; those of u still lack their factor."""
    assert weight.grad is not None
    assert bias.grad is not None
    torch.mm(dz.t(), x, out=weight.grad)
    torch.sum(dz, 0, out=bias.grad)
    weight.grad[2 * dim : 3 * dim] *= 8.0
    bias.grad[2 * dim : 3 * dim] *= 8.0
