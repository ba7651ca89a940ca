"""Graph networks: messages between the nodes of small random graphs, with sums, means, maxima and attention."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import autobatch as ab
from helpers.zoo.case import Case, Rng, Weights, gru, linear

DIM, ROUNDS = 4, 2


class Graph(NamedTuple):
    """`senders[i]` are the nodes that send to node i, possibly none."""

    features: Any
    senders: list[list[int]]
    target: float


def draw_graph(rng: Rng, loops: bool = False) -> Graph:
    n = int(rng.integers(1, 5))
    edges = rng.random((n, n)) < 0.5
    if loops:
        np.fill_diagonal(edges, True)
    senders = [[int(j) for j in np.flatnonzero(row)] for row in edges]
    return Graph(rng.standard_normal((n, DIM)), senders, float(rng.standard_normal()))


def adjacency(graph: Graph) -> Tensor:
    """Return 1 where a node (row) receives from another one (column)."""
    a = torch.zeros(len(graph.senders), len(graph.senders), dtype=torch.float64)
    for i, senders in enumerate(graph.senders):
        a[i, senders] = 1.0
    return a


class SumNetwork(ab.Module):
    """A gated graph network (Li et al. 2016): sums of messages, a GRU step per node, and a gated sum at the end."""

    def __init__(self, rng: Rng) -> None:
        self.message = ab.Linear(DIM, DIM, rng=rng)
        self.update = ab.GRUCell(DIM, DIM, rng=rng)
        self.gate = ab.Linear(DIM, 1, rng=rng)
        self.value = ab.Linear(DIM, 1, rng=rng)

    @ab.cell
    def send(self, h: Any) -> Any:
        return self.message(h)

    @ab.cell
    def receive(self, h: Any, messages: Any) -> Any:
        return self.update(ab.sum_n(messages, shape=(DIM,)), h)

    @ab.cell
    def read(self, h: Any) -> Any:
        return ab.sigmoid(self.gate(h)) * self.value(h)

    @ab.cell
    def error(self, parts: Any, target: Any) -> Any:
        return ab.squared_error(ab.sum_n(parts)[0], target)

    def loss(self, graph: Graph) -> Any:
        states = list(graph.features)
        for _ in range(ROUNDS):
            sent = [self.send(h) for h in states]
            states = [self.receive(h, [sent[j] for j in js]) for h, js in zip(states, graph.senders, strict=True)]
        return self.error([self.read(h) for h in states], graph.target)


def sum_network(w: Weights, graph: Graph) -> Tensor:
    h, a = torch.tensor(graph.features), adjacency(graph)
    for _ in range(ROUNDS):
        messages = a @ linear(w, "message", h)
        h = torch.stack([gru(w, "update", m, one) for m, one in zip(messages, h, strict=True)])
    out = (torch.sigmoid(linear(w, "gate", h)) * linear(w, "value", h)).sum()
    return (out - graph.target) ** 2


class MeanNetwork(ab.Module):
    """GraphSAGE (Hamilton, Ying, Leskovec 2017): a node joined with the mean of its neighbours, scaled to length 1."""

    def __init__(self, rng: Rng) -> None:
        self.layers = [ab.Linear(2 * DIM, DIM, rng=rng) for _ in range(ROUNDS)]
        self.output = ab.Linear(DIM, 1, rng=rng)

    @ab.cell
    def receive(self, layer: Any, h: Any, others: Any) -> Any:
        z = ab.tanh(layer(ab.concat((h, ab.mean_n(others, shape=(DIM,))))))
        return z / ab.sqrt(ab.sum(z * z))

    @ab.cell
    def readout(self, states: Any) -> Any:
        return self.output(ab.mean_n(states))

    def loss(self, graph: Graph) -> Any:
        states = list(graph.features)
        for layer in self.layers:
            states = [
                self.receive(layer, h, [states[j] for j in js]) for h, js in zip(states, graph.senders, strict=True)
            ]
        return ab.sum(ab.softplus(self.readout(states) - graph.target))


def mean_network(w: Weights, graph: Graph) -> Tensor:
    h, a = torch.tensor(graph.features), adjacency(graph)
    for layer in range(ROUNDS):
        means = a @ h / a.sum(1, keepdim=True).clamp(min=1)
        h = F.normalize(torch.tanh(linear(w, f"layers.{layer}", torch.cat((h, means), 1))), dim=1)
    return F.softplus(linear(w, "output", h.mean(0)) - graph.target).sum()


class MaxNetwork(ab.Module):
    """Maxima of messages that read both ends of an edge, and the maximum over all nodes at the end."""

    def __init__(self, rng: Rng) -> None:
        self.first = ab.Linear(2 * DIM, DIM, rng=rng)
        self.second = ab.Linear(DIM, DIM, rng=rng)
        self.norm = ab.LayerNorm(DIM)
        self.output = ab.Linear(DIM, 1, rng=rng)

    @ab.cell
    def message(self, h: Any, other: Any) -> Any:
        return self.second(ab.relu(self.first(ab.concat((h, other - h)))))

    @ab.cell
    def update(self, h: Any, messages: Any) -> Any:
        return self.norm(h + ab.max_n(messages, shape=DIM))

    @ab.cell
    def error(self, states: Any, target: Any) -> Any:
        return ab.squared_error(self.output(ab.max_n(states)), target)

    def loss(self, graph: Graph) -> Any:
        states = list(graph.features)
        for _ in range(ROUNDS):
            states = [
                self.update(h, [self.message(h, states[j]) for j in js])
                for h, js in zip(states, graph.senders, strict=True)
            ]
        return ab.sum(self.error(states, np.array([graph.target])))


def max_network(w: Weights, graph: Graph) -> Tensor:
    h = list(torch.tensor(graph.features))
    for _ in range(ROUNDS):
        new = []
        for i, senders in enumerate(graph.senders):
            inputs = [torch.cat((h[i], h[j] - h[i])) for j in senders]
            messages = [linear(w, "second", linear(w, "first", x).relu()) for x in inputs]
            most = torch.stack(messages).amax(0) if messages else torch.zeros_like(h[i])
            new.append(F.layer_norm(h[i] + most, (DIM,), w["norm.weight"], w["norm.bias"]))
        h = new
    return F.mse_loss(linear(w, "output", torch.stack(h).amax(0)), torch.tensor([graph.target], dtype=torch.float64))


class AttentionNetwork(ab.Module):
    """Two heads of attention over the neighbours and the node itself (Veličković et al. 2018)."""

    def __init__(self, rng: Rng) -> None:
        self.heads = [{part: ab.Linear(DIM, DIM, rng=rng, bias=False) for part in ("q", "k", "v")} for _ in range(2)]
        self.join = ab.Linear(2 * DIM, DIM, rng=rng)
        self.output = ab.Linear(DIM, 1, rng=rng)

    @ab.cell
    def project(self, h: Any) -> Any:
        return [(head["q"](h), head["k"](h), head["v"](h)) for head in self.heads]

    @ab.cell
    def look(self, query: Any, keys: Any, values: Any) -> Any:
        return ab.attend(query * 0.5, keys, values)

    @ab.cell
    def merge(self, h: Any, heads: Any) -> Any:
        return ab.tanh(h + self.join(ab.concat(heads)))

    @ab.cell
    def error(self, h: Any, target: Any) -> Any:
        return (self.output(h)[0] - target) ** 2

    def loss(self, graph: Graph) -> Any:
        states = list(graph.features)
        for _ in range(ROUNDS):
            projected = [self.project(h) for h in states]
            states = [
                self.merge(
                    states[i],
                    [
                        self.look(
                            projected[i][head][0],
                            [projected[j][head][1] for j in senders],
                            [projected[j][head][2] for j in senders],
                        )
                        for head in range(2)
                    ],
                )
                for i, senders in enumerate(graph.senders)
            ]
        return ab.mean_n([self.error(h, graph.target) for h in states])


def attention_network(w: Weights, graph: Graph) -> Tensor:
    h, mask = torch.tensor(graph.features), adjacency(graph).bool()
    for _ in range(ROUNDS):
        heads = []
        for i in range(2):
            q, k, v = (h @ w[f"heads.{i}.{part}.weight"].T for part in ("q", "k", "v"))
            heads.append(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.5))
        h = torch.tanh(h + linear(w, "join", torch.cat(heads, 1)))
    return (linear(w, "output", h) - graph.target).square().mean()


CASES = [
    Case("graph network, sums", SumNetwork, draw_graph, sum_network),
    Case("graph network, means", MeanNetwork, draw_graph, mean_network),
    Case("graph network, maxima", MaxNetwork, draw_graph, max_network),
    Case("graph network, attention", AttentionNetwork, lambda rng: draw_graph(rng, loops=True), attention_network),
]
