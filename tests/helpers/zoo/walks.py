"""Cells that iterate over a list: gates per child, additive attention, gated edges, paths through a lattice."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import maps
from helpers.zoo.case import Case, Weights, gru, linear

DIM = 3


def child_sum(w: Weights, tree: maps.Tree) -> Tensor:
    """Compute a child-sum Tree-LSTM, with all children of a node at once."""

    def visit(t: maps.Tree) -> tuple[Tensor, Tensor]:
        x = w["embedding.weight"][t.word]
        states = [visit(child) for child in t.children]
        if not states:
            states = [(torch.zeros(DIM, dtype=torch.float64),) * 2]
        h, c = (torch.stack(part) for part in zip(*states, strict=True))
        forget = torch.sigmoid(linear(w, "x_f", x) + linear(w, "h_f", h))
        i, o, u = (linear(w, "x_iou", x) + linear(w, "h_iou", h.sum(0))).chunk(3)
        new = torch.sigmoid(i) * torch.tanh(u) + (forget * c).sum(0)
        return torch.sigmoid(o) * torch.tanh(new), new

    h, c = visit(tree)
    return (h * h).sum() + c.sum()


def attention(w: Weights, pair: Any) -> Tensor:
    """Compute additive attention, with all words of the source at once."""
    values = w["source.weight"][pair[0]]
    keys, h, losses = linear(w, "keys", values), torch.zeros(DIM, dtype=torch.float64), []
    for word in pair[1]:
        scores = torch.tanh(linear(w, "query", h) + keys) @ w["v"]
        context = torch.softmax(scores, 0) @ values
        h = gru(w, "decoder", torch.cat((w["target.weight"][word], context)), h)
        losses.append(F.cross_entropy(linear(w, "output", h), torch.tensor(word)))
    return torch.stack(losses).sum()


def gated_graph(w: Weights, graph: Any) -> Tensor:
    """Compute a gated graph network over all pairs of nodes, masked by the edges."""
    h = w["start.weight"][[word for word, _ in graph]]
    edges = torch.zeros(len(graph), len(graph), 1, dtype=torch.float64)
    for i, (_, neighbours) in enumerate(graph):
        edges[i, neighbours] = 1.0
    for _ in range(maps.ROUNDS):
        gates = torch.sigmoid(linear(w, "mine", h)[:, None] + linear(w, "theirs", h)[None])
        heard = (edges * gates * linear(w, "message", h)[None]).sum(1)
        h = h + torch.relu(linear(w, "own", h) + heard)
    return torch.tanh(h.mean(0)).sum()


def lattice_crf(w: Weights, lattice: Any) -> Tensor:
    """Compute the forward recursion, over all predecessors of a word at once."""
    alphas: list[Tensor] = []
    for word, before in lattice:
        emitted = linear(w, "emit", w["embedding.weight"][word])
        if before:
            moves = torch.cat([alphas[j] + w["transitions"] for j in before], 1)
            emitted = emitted + torch.logsumexp(moves, 1)
        alphas.append(emitted)
    return torch.logsumexp(alphas[-1], 0)


CASES = [
    Case("gates of children", lambda rng: maps.ChildSum(rng, DIM), lambda rng: maps.draw_tree(rng, 2), child_sum),
    Case("additive attention in a cell", lambda rng: maps.Attention(rng, DIM), maps.draw_pair, attention),
    Case("gated edges", lambda rng: maps.GatedGraph(rng, DIM), maps.draw_graph, gated_graph),
    Case("crf over a lattice", lambda rng: maps.LatticeCRF(rng, DIM), maps.draw_lattice, lattice_crf),
]
