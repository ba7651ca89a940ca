"""Tree-LSTM as an expert writes it: the fastest version in plain PyTorch on a CPU.

Differences from the good user's version (`tree_lstm_levels.py`): states, gates and gradients are in arrays that are
reused for the next mini-batch; one function has the whole sweep and its hand-written gradient, so autograd records one
node; weight gradients are one product each; levels are cut into blocks that fit in the cache; and there is no tanh, see
`kept.py`.

Rows are ordered by height. Forward and backward, rows are read by index and written in order, because index_select is
several times as fast as index_copy_ and index_add_: a node has one parent, so its gradient is read from its slot among
the children.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from baselines.forest import Forest
from baselines.kept import (
    MINUS_TWO,
    Kept,
    OneDnn,
    compare,
    compare_backward,
    finish_state,
    gates_backward,
    put,
    scaled,
    sigmoid_backward,
    state_backward,
    table_backward,
)
from baselines.tree_lstm_levels import LevelTreeLSTM


class ExpertTreeLSTM(Kept, LevelTreeLSTM):
    """The parameters of the good user's version, without autograd."""

    by_depth = False
    block = 1 << 18  # most gates (rows × 5H) in a block of a level

    def losses(self, minibatch: Forest) -> Tensor:
        """Sum the cross-entropies of the nodes of each tree: (B,)."""
        losses: Tensor = _Sweep.apply(self, minibatch, *self.parameters())  # type: ignore[no-untyped-call]
        return losses

    def block_sizes(self, forest: Forest) -> list[int]:
        """Return the sizes of blocks of inner nodes, level by level."""
        most = max(1, self.block // (5 * self.embedding.shape[1]))
        return [min(most, inner - start) for _, inner in forest.levels for start in range(0, inner, most)]

    def leaf_block_sizes(self, forest: Forest) -> list[int]:
        """Return the sizes of blocks of leaves."""
        most, n_leaves = max(1, self.block // (3 * self.embedding.shape[1])), len(forest.words)
        return [min(most, n_leaves - start) for start in range(0, n_leaves, most)]


class OneDnnTreeLSTM(OneDnn, ExpertTreeLSTM):
    """The expert's version with oneDNN."""


class _Sweep(torch.autograd.Function):
    """All losses of a forest, and their gradients."""

    @staticmethod
    def forward(ctx: Any, model: ExpertTreeLSTM, forest: Forest, *parameters: Tensor) -> Tensor:
        ctx.model, ctx.forest = model, forest
        read_leaves(model, forest)
        read_inner(model, forest)
        h = model.rows("h", len(forest.labels), model.embedding.shape[1])
        return compare(model, h, forest.labels, forest.trees, forest.n_trees)

    @staticmethod
    def backward(ctx: Any, *weights: Tensor) -> tuple[None, ...]:
        model, forest = ctx.model, ctx.forest
        h, dh = (model.rows(name, len(forest.labels), model.embedding.shape[1]) for name in ("h", "dh"))
        compare_backward(model, h, forest.labels, weights[0].index_select(0, forest.trees), dh)
        inner_backward(model, forest)
        leaves_backward(model, forest)
        return (None,) * (2 + len(list(model.parameters())))


def read_leaves(model: ExpertTreeLSTM, forest: Forest) -> None:
    """Compute the states of the leaves: rows 0 to L - 1 of h and c."""
    n_leaves, dim = len(forest.words), model.embedding.shape[1]
    h, c, t = (model.rows(name, len(forest.labels), dim)[:n_leaves] for name in "hct")
    x, z, u = (model.rows(f"leaf_{n}", n_leaves, k * dim) for n, k in (("x", 1), ("z", 3), ("u", 1)))
    weight = scaled(model, "leaf_w2", model.leaf_gates.weight, 2.0, dim)
    bias = scaled(model, "leaf_b2", model.leaf_gates.bias, 2.0, dim)
    for words, x_, z_, i, o, s, u_, c_, t_, h_ in cut(
        model.leaf_block_sizes(forest), forest.words, x, z, *torch.split(z, dim, 1), u, c, t, h
    ):
        torch.index_select(model.embedding, 0, words, out=x_)
        torch.sigmoid(model.multiply(x_, weight, z_, bias), out=z_)
        torch.mul(i, torch.add(MINUS_TWO, s, alpha=4.0, out=u_), out=c_)
        finish_state(o, c_, t_, h_)


def read_inner(model: ExpertTreeLSTM, forest: Forest) -> None:
    """Compute the states of the inner nodes, level by level: rows L to N - 1 of h and c."""
    n_leaves, n_nodes, dim = len(forest.words), len(forest.labels), model.embedding.shape[1]
    n_inner = n_nodes - n_leaves
    h, c, t = (model.rows(name, n_nodes, dim) for name in "hct")
    x, cc, z, u = (model.rows(n, n_inner, k * dim) for n, k in (("x", 2), ("cc", 2), ("z", 5), ("u", 1)))
    weight = scaled(model, "w2", model.gates.weight, 2.0, dim)
    bias = scaled(model, "b2", model.gates.bias, 2.0, dim)
    inner = (a[n_leaves:] for a in (c, t, h))
    for children, x_, cc_, c_l, c_r, z_, i, o, s, f_l, f_r, u_, c_, t_, h_ in cut(
        model.block_sizes(forest),
        forest.children.view(-1, 2),
        x,
        cc,
        *torch.split(cc, dim, 1),
        z,
        *torch.split(z, dim, 1),
        u,
        *inner,
    ):
        torch.index_select(h, 0, children.view(-1), out=x_.view(-1, dim))
        torch.index_select(c, 0, children.view(-1), out=cc_.view(-1, dim))
        torch.sigmoid(model.multiply(x_, weight, z_, bias), out=z_)
        torch.mul(i, torch.add(MINUS_TWO, s, alpha=4.0, out=u_), out=c_)
        c_.addcmul_(f_l, c_l).addcmul_(f_r, c_r)
        finish_state(o, c_, t_, h_)


def cut(sizes: list[int], *arrays: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut arrays into blocks of rows; torch.split makes views faster than slicing."""
    return zip(*(torch.split(array, sizes) for array in arrays), strict=True)


def inner_backward(model: ExpertTreeLSTM, forest: Forest) -> None:
    """Differentiate `read_inner`: compute gradients of its weights, and of h and c in the children's slots."""
    n_leaves, n_nodes, dim = len(forest.words), len(forest.labels), model.embedding.shape[1]
    n_inner = n_nodes - n_leaves
    t, dh = model.rows("t", n_nodes, dim), model.rows("dh", n_nodes, dim)
    x, cc, z, u, dz = (model.rows(n, n_inner, k * dim) for n, k in (("x", 2), ("cc", 2), ("z", 5), ("u", 1), ("dz", 5)))
    dx, dc = (model.rows(name, 2 * n_inner + 1, dim) for name in ("dx", "dc"))
    dx[-1] = dc[-1] = 0.0
    of_children = (a[:-1].view(-1, 2 * dim) for a in (dx, dc))
    inner = (a[n_leaves:] for a in (forest.slots, dh, t))
    weight = scaled(model, "w8", model.gates.weight, 8.0, dim).t()
    z_i, z_o, *_ = torch.split(z, dim, 1)
    forgets = (a.view(-1, 2, dim) for a in (z[:, 3 * dim :], cc, dz[:, 3 * dim :]))
    blocks = cut(
        model.block_sizes(forest),
        *inner,
        z,
        z_i,
        z_o,
        u,
        *forgets,
        dz,
        *torch.split(dz[:, : 3 * dim], dim, 1),
        *of_children,
    )
    for slots, dh_, t_, z_, i, o, u_, f_lr, c_lr, d_f, d_z, d_i, d_o, d_u, dx_, dc_ in reversed(list(blocks)):
        d_h, d_c = take_gradients(model, slots, dx, dc, dh_)
        state_backward(i, o, u_, t_, d_h, d_c, d_i, d_o, d_u)
        torch.mul(d_c[:, None], c_lr, out=d_f)
        torch.mul(d_c[:, None], f_lr, out=dc_.view(-1, 2, dim))
        sigmoid_backward(d_z, z_)
        put(dx_, model.multiply(d_z, weight, dx_))
    gates_backward(model, model.gates.weight, (model.gates.bias,), dz, x, dim)


def leaves_backward(model: ExpertTreeLSTM, forest: Forest) -> None:
    """Differentiate `read_leaves`: compute gradients of its weights and of the embeddings."""
    n_leaves, n_nodes, dim = len(forest.words), len(forest.labels), model.embedding.shape[1]
    t, dh = (model.rows(name, n_nodes, dim)[:n_leaves] for name in ("t", "dh"))
    dx, dc = (model.rows(name, 2 * (n_nodes - n_leaves) + 1, dim) for name in ("dx", "dc"))
    z, dz = (model.rows(name, n_leaves, 3 * dim) for name in ("leaf_z", "leaf_dz"))
    x, d_x, u = (model.rows(name, n_leaves, dim) for name in ("leaf_x", "leaf_dx", "leaf_u"))
    weight = scaled(model, "leaf_w8", model.leaf_gates.weight, 8.0, dim).t()
    z_i, z_o, _ = torch.split(z, dim, 1)
    for slots, dh_, t_, z_, i, o, u_, d_z, d_i, d_o, d_u, dx_ in cut(
        model.leaf_block_sizes(forest),
        forest.slots[:n_leaves],
        dh,
        t,
        z,
        z_i,
        z_o,
        u,
        dz,
        *torch.split(dz, dim, 1),
        d_x,
    ):
        d_h, d_c = take_gradients(model, slots, dx, dc, dh_)
        state_backward(i, o, u_, t_, d_h, d_c, d_i, d_o, d_u)
        sigmoid_backward(d_z, z_)
        put(dx_, model.multiply(d_z, weight, dx_))
    gates_backward(model, model.leaf_gates.weight, (model.leaf_gates.bias,), dz, x, dim)
    table_backward(model.embedding, forest.words, d_x)


def take_gradients(model: ExpertTreeLSTM, slots: Tensor, dx: Tensor, dc: Tensor, dh: Tensor) -> tuple[Tensor, Tensor]:
    """Read dh and dc of rows from their slots, and add the loss's gradient to dh."""
    d_h, d_c = (model.rows(name, len(slots), dx.shape[1]) for name in ("d_h", "d_c"))
    torch.index_select(dx, 0, slots, out=d_h)
    torch.index_select(dc, 0, slots, out=d_c)
    return d_h.add_(dh), d_c
