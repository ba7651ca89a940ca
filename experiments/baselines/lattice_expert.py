"""Lattice-LSTM batched by the same agenda, as an expert writes it.

It differs from `lattice_agenda.py` as explained in `tree_lstm_expert.py`, except for the order of rows. If several arcs
end or start at a position, their values or gradients are added up by index_add_.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from baselines.kept import (
    MINUS_TWO,
    Kept,
    OneDnn,
    compare,
    compare_backward,
    finish_state,
    gates_backward,
    scaled,
    sigmoid_backward,
    state_backward,
    table_backward,
)
from baselines.lattice import Arcs, Lattices
from baselines.lattice_agenda import AgendaLatticeLSTM


class ExpertLatticeLSTM(Kept, AgendaLatticeLSTM):
    """The parameters of `AgendaLatticeLSTM`, without autograd."""

    def losses(self, minibatch: Lattices) -> Tensor:
        """Sum the cross-entropies of the positions of each lattice: (B,)."""
        losses: Tensor = _Sweep.apply(self, minibatch, *self.parameters())  # type: ignore[no-untyped-call]
        return losses


class OneDnnLatticeLSTM(OneDnn, ExpertLatticeLSTM):
    """The expert's version with oneDNN."""


class Kind(NamedTuple):
    """The data of A arcs of one kind: parameters, and rows for each arc in the order of running."""

    table: Tensor
    lstm: nn.LSTMCell
    arcs: Arcs
    x: Tensor
    h: Tensor
    c: Tensor
    z: Tensor
    u: Tensor
    step_c: Tensor
    t: Tensor
    step_h: Tensor
    dz: Tensor


def make_kinds(model: ExpertLatticeLSTM, lattices: Lattices) -> list[Kind]:
    """Collect the data of characters and of words."""
    dim = len(model.first_h)
    kinds = []
    tables, lstms = (model.characters, model.words), (model.character_lstm, model.word_lstm)
    for kind, (table, lstm, arcs) in enumerate(zip(tables, lstms, lattices.arcs, strict=True)):
        x, h, c, u, step_c, t, step_h = (model.rows(f"{n}{kind}", len(arcs.ids), dim) for n in "xhcuste")
        z, dz = (model.rows(f"{n}{kind}", len(arcs.ids), 4 * dim) for n in ("z", "dz"))
        kinds.append(Kind(table, lstm, arcs, x, h, c, z, u, step_c, t, step_h, dz))
    return kinds


def batches_of(lattices: Lattices, arrays: list[list[Tensor]]) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
    """Cut arrays of each kind into batches, in the order of running."""
    sizes: list[list[int]] = [[n_arcs for k, n_arcs in lattices.batches if k == kind] for kind in range(len(arrays))]
    cuts = [
        zip(*(torch.split(array, of_kind) for array in of), strict=True) if of_kind else iter(())
        for of_kind, of in zip(sizes, arrays, strict=True)
    ]
    for kind, _ in lattices.batches:
        yield kind, next(cuts[kind])


class _Sweep(torch.autograd.Function):
    """All losses of lattices, and their gradients."""

    @staticmethod
    def forward(ctx: Any, model: ExpertLatticeLSTM, lattices: Lattices, *parameters: Tensor) -> Tensor:
        ctx.model, ctx.lattices = model, lattices
        h = sweep(model, lattices)
        read = model.rows("tagged", len(lattices.tags), h.shape[1])
        torch.index_select(h, 0, lattices.tagged, out=read)
        return compare(model, read, lattices.tags, lattices.lattices, len(lattices.firsts))

    @staticmethod
    def backward(ctx: Any, *weights: Tensor) -> tuple[None, ...]:
        model, lattices = ctx.model, ctx.lattices
        sizes = len(lattices.tags), len(model.first_h)
        read, d_read = model.rows("tagged", *sizes), model.rows("d_tagged", *sizes)
        compare_backward(model, read, lattices.tags, weights[0].index_select(0, lattices.lattices), d_read)
        sweep_backward(model, lattices, d_read)
        return (None,) * (2 + len(list(model.parameters())))


def sweep(model: ExpertLatticeLSTM, lattices: Lattices) -> Tensor:
    """Compute the hidden states of all positions: (P, H)."""
    dim = len(model.first_h)
    h, c = (model.rows(name, lattices.n_positions, dim).zero_() for name in ("h", "c"))
    h[lattices.firsts] = model.first_h
    c[lattices.firsts] = 2.0 * model.first_c
    arrays, weights = [], []
    for number, kind in enumerate(make_kinds(model, lattices)):
        lstm = kind.lstm
        torch.index_select(kind.table, 0, kind.arcs.ids, out=kind.x)
        weight = scaled(model, f"w_x{number}", lstm.weight_ih, 2.0, dim)
        bias = scaled(model, f"b{number}", lstm.bias_ih + lstm.bias_hh, 2.0, dim)
        product = model.multiply(kind.x, weight, kind.z, bias)
        if product is not kind.z:
            kind.z.copy_(product)
        weights.append(scaled(model, f"w_h{number}", lstm.weight_hh, 2.0, dim))
        rows = [kind.h, kind.c, kind.z, *torch.split(kind.z, dim, 1), kind.u, kind.step_c, kind.t, kind.step_h]
        arrays.append([kind.arcs.starts, kind.arcs.ends, *rows])
    for number, batch in batches_of(lattices, arrays):
        starts, ends, h_, c_, z, i, f, g, o, u, step_c, t, step_h = batch
        torch.index_select(h, 0, starts, out=h_)
        torch.index_select(c, 0, starts, out=c_)
        model.add_product(h_, weights[number], z)
        z.sigmoid_()
        torch.mul(i, torch.add(MINUS_TWO, g, alpha=4.0, out=u), out=step_c)
        step_c.addcmul_(f, c_)
        finish_state(o, step_c, t, step_h)
        h.index_add_(0, ends, step_h)
        c.index_add_(0, ends, step_c)
    return h


def sweep_backward(model: ExpertLatticeLSTM, lattices: Lattices, d_read: Tensor) -> None:
    """Differentiate `sweep`: compute gradients of all parameters except the output layer's."""
    dim = len(model.first_h)
    dh, dc = (model.rows(name, lattices.n_positions, dim).zero_() for name in ("dh", "dc"))
    dh.index_add_(0, lattices.tagged, d_read)
    kinds = make_kinds(model, lattices)
    arrays, weights = [], []
    for number, kind in enumerate(kinds):
        weights.append(scaled(model, f"w_h{number}", kind.lstm.weight_hh, 8.0, dim).t())
        gates = (*torch.split(kind.z, dim, 1), *torch.split(kind.dz, dim, 1))
        arrays.append([kind.arcs.starts, kind.arcs.ends, kind.c, kind.z, kind.dz, *gates, kind.u, kind.t])
    for number, batch in reversed(list(batches_of(lattices, arrays))):
        starts, ends, c, z, d_z, i, f, _, o, d_i, d_f, d_g, d_o, u, t = batch
        d_h, d_c = (model.rows(name, len(starts), dim) for name in ("d_h", "d_c"))
        torch.index_select(dh, 0, ends, out=d_h)
        torch.index_select(dc, 0, ends, out=d_c)
        state_backward(i, o, u, t, d_h, d_c, d_i, d_o, d_g)
        torch.mul(d_c, c, out=d_f)
        dc.index_add_(0, starts, d_c.mul_(f))
        sigmoid_backward(d_z, z)
        dh.index_add_(0, starts, model.multiply(d_z, weights[number], d_h))
    for number, kind in enumerate(kinds):
        lstm = kind.lstm
        gates_backward(model, lstm.weight_hh, (lstm.bias_ih, lstm.bias_hh), kind.dz, kind.h, dim)
        gates_backward(model, lstm.weight_ih, (), kind.dz, kind.x, dim)
        weight = scaled(model, f"w_x{number}", lstm.weight_ih, 8.0, dim).t()
        table_backward(kind.table, kind.arcs.ids, model.multiply(kind.dz, weight, kind.x))
    assert model.first_h.grad is not None
    assert model.first_c.grad is not None
    torch.sum(dh.index_select(0, lattices.firsts), 0, out=model.first_h.grad)
    torch.sum(dc.index_select(0, lattices.firsts), 0, out=model.first_c.grad).mul_(2.0)
