"""Lattice-LSTM batched over lattices by an agenda, each batch of arcs by index_select and index_add, with autograd.

Products of embeddings with input weights do not depend on states, so they are computed at once for all arcs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from autobatch.models.data.lattice import Lattice
from baselines.baseline import Baseline
from baselines.lattice import Arcs, Lattices, Listed, list_arcs, merge_lattices


class AgendaLatticeLSTM(Baseline):
    """Sums over arcs of LSTM steps (after Zhang and Yang 2018)."""

    def __init__(self, n_characters: int, n_words: int, n_tags: int, dim: int) -> None:
        super().__init__()
        self.characters = nn.Parameter(torch.zeros(n_characters, dim))
        self.words = nn.Parameter(torch.zeros(n_words, dim))
        self.character_lstm = nn.LSTMCell(dim, dim)
        self.word_lstm = nn.LSTMCell(dim, dim)
        self.first_h = nn.Parameter(torch.zeros(dim))
        self.first_c = nn.Parameter(torch.zeros(dim))
        self.output = nn.Linear(dim, n_tags)

    def prepare(self, instance: Lattice[int]) -> Listed:
        """List the arcs of a lattice."""
        return list_arcs(instance)

    def merge(self, prepared: Sequence[Listed]) -> Lattices:
        """Decide what runs together."""
        return merge_lattices(prepared)

    def losses(self, minibatch: Lattices) -> Tensor:
        """Sum the cross-entropies of the positions of each lattice: (B,)."""
        scores = self.output(self.hidden(minibatch).index_select(0, minibatch.tagged))
        losses = nn.functional.cross_entropy(scores, minibatch.tags, reduction="none")
        return losses.new_zeros(len(minibatch.firsts)).index_add(0, minibatch.lattices, losses)

    def hidden(self, lattices: Lattices) -> Tensor:
        """Compute the hidden states of all positions: (P, H)."""
        zeros = self.first_h.new_zeros(lattices.n_positions, len(self.first_h))
        n_firsts = len(lattices.firsts)
        h = zeros.index_add(0, lattices.firsts, self.first_h.expand(n_firsts, -1))
        c = zeros.index_add(0, lattices.firsts, self.first_c.expand(n_firsts, -1))
        lstms = (self.character_lstm, self.word_lstm)
        inputs = [
            read_all(table, lstm, arcs)
            for table, lstm, arcs in zip((self.characters, self.words), lstms, lattices.arcs, strict=True)
        ]
        done = [0, 0]
        for kind, n_arcs in lattices.batches:
            rows = slice(done[kind], done[kind] + n_arcs)
            done[kind] += n_arcs
            arcs = lattices.arcs[kind]
            starts, ends = arcs.starts[rows], arcs.ends[rows]
            gates = torch.addmm(inputs[kind][rows], h.index_select(0, starts), lstms[kind].weight_hh.t())
            i, f, g, o = gates.chunk(4, dim=1)
            step_c = torch.sigmoid(f) * c.index_select(0, starts) + torch.sigmoid(i) * torch.tanh(g)
            h.index_add_(0, ends, torch.sigmoid(o) * torch.tanh(step_c))
            c.index_add_(0, ends, step_c)
        return h


def read_all(table: Tensor, lstm: nn.LSTMCell, arcs: Arcs) -> Tensor:
    """Compute the inputs' part of the gates: (number of arcs, 4H)."""
    return nn.functional.linear(table.index_select(0, arcs.ids), lstm.weight_ih, lstm.bias_ih + lstm.bias_hh)
