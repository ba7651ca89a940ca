"""Trees of any arity: sums over children, a matrix per child, gates, tensors, a matrix per node, reconstruction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import autobatch as ab
from helpers.zoo.case import Case, Rng, Weights, array, gru, linear

DIM, WORDS, CLASSES = 3, 5, 4


@dataclass
class Tree:
    word: int
    children: list[Tree]
    label: int


def draw_tree(rng: Rng, most: int, depth: int = 3) -> Tree:
    """Draw a tree whose nodes have up to `most` children."""
    n = int(rng.integers(1, most + 1)) if depth and rng.random() < 0.7 else 0
    children = [draw_tree(rng, most, depth - 1) for _ in range(n)]
    return Tree(int(rng.integers(WORDS)), children, int(rng.integers(CLASSES)))


def draw_binary(rng: Rng, depth: int = 3) -> Tree:
    """Draw a tree whose nodes have no children or two."""
    children = [draw_binary(rng, depth - 1) for _ in range(2)] if depth and rng.random() < 0.7 else []
    return Tree(int(rng.integers(WORDS)), children, int(rng.integers(CLASSES)))


class ChildSumTreeLSTM(ab.Module):
    """Child-sum Tree-LSTM (Tai, Socher, Manning 2015, section 3.1): a forget gate per child, for any number of them."""

    def __init__(self, rng: Rng) -> None:
        self.embedding = ab.Embedding(WORDS, DIM, rng=rng)
        self.x_iou = ab.Linear(DIM, 3 * DIM, rng=rng)
        self.h_iou = ab.Linear(DIM, 3 * DIM, rng=rng, bias=False)
        self.x_f = ab.Linear(DIM, DIM, rng=rng)
        self.h_f = ab.Linear(DIM, DIM, rng=rng, bias=False)
        self.output = ab.Linear(DIM, CLASSES, rng=rng)

    @ab.cell
    def node(self, word: Any, children: Any) -> Any:
        x = self.embedding(word)
        fx = self.x_f(x)
        kept = ab.sum_n([ab.sigmoid(fx + self.h_f(h)) * c for h, c in children], shape=DIM)
        total = ab.sum_n([h for h, _ in children], shape=DIM)
        i, o, u = ab.split(self.x_iou(x) + self.h_iou(total), 3)
        c = ab.sigmoid(i) * ab.tanh(u) + kept
        return ab.sigmoid(o) * ab.tanh(c), c

    @ab.cell
    def score(self, h: Any, label: Any) -> Any:
        return ab.cross_entropy(self.output(h), label)

    def loss(self, tree: Tree) -> Any:
        losses = []

        def visit(t: Tree) -> Any:
            h, c = self.node(t.word, [visit(child) for child in t.children])
            losses.append(self.score(h, t.label))
            return h, c

        visit(tree)
        return ab.sum_n(losses)


def child_sum(w: Weights, tree: Tree) -> Tensor:
    losses = []

    def visit(t: Tree) -> tuple[Tensor, Tensor]:
        states = [visit(child) for child in t.children]
        h = torch.stack([h for h, _ in states]) if states else torch.zeros(0, DIM, dtype=torch.float64)
        c = torch.stack([c for _, c in states]) if states else torch.zeros(0, DIM, dtype=torch.float64)
        x = w["embedding.weight"][t.word]
        forget = torch.sigmoid(linear(w, "x_f", x) + linear(w, "h_f", h))
        i, o, u = (linear(w, "x_iou", x) + linear(w, "h_iou", h.sum(0))).chunk(3)
        new = torch.sigmoid(i) * torch.tanh(u) + (forget * c).sum(0)
        out = torch.sigmoid(o) * torch.tanh(new)
        losses.append(F.cross_entropy(linear(w, "output", out), torch.tensor(t.label)))
        return out, new

    visit(tree)
    return torch.stack(losses).sum()


class NaryTreeLSTM(ab.Module):
    """N-ary Tree-LSTM (section 3.2): children have positions, and each forget gate reads all of them."""

    N = 3

    def __init__(self, rng: Rng) -> None:
        self.W = {gate: ab.Linear(DIM, DIM, rng=rng) for gate in "ifou"}
        self.U = {gate: [array(rng, DIM, DIM) for _ in range(self.N)] for gate in "iou"}
        self.U_f = [[array(rng, DIM, DIM) for _ in range(self.N)] for _ in range(self.N)]
        self.embedding = array(rng, WORDS, DIM)
        self.output = ab.Linear(DIM, CLASSES, rng=rng)

    @ab.cell
    def node(self, word: Any, children: Any) -> Any:
        x = ab.lookup(self.embedding, word)
        gates = {}
        for gate, act in (("i", ab.sigmoid), ("o", ab.sigmoid), ("u", ab.tanh)):
            z = self.W[gate](x)
            for U, (h, _) in zip(self.U[gate], children, strict=False):
                z = z + U @ h
            gates[gate] = act(z)
        c = gates["i"] * gates["u"]
        for k in range(len(children)):
            z = self.W["f"](x)
            for place in range(len(children)):
                z = z + self.U_f[k][place] @ children[place][0]
            c = c + ab.sigmoid(z) * children[k][1]
        return gates["o"] * ab.tanh(c), c

    def visit(self, t: Tree) -> Any:
        return self.node(t.word, [self.visit(child) for child in t.children])

    @ab.cell
    def root(self, state: Any, label: Any) -> Any:
        h, _ = state
        return ab.cross_entropy(self.output(h), label)

    def loss(self, tree: Tree) -> Any:
        return self.root(self.visit(tree), tree.label)


def nary(w: Weights, tree: Tree) -> Tensor:
    def visit(t: Tree) -> tuple[Tensor, Tensor]:
        x, states = w["embedding"][t.word], [visit(child) for child in t.children]
        h = torch.cat([h for h, _ in states]) if states else torch.zeros(0, dtype=torch.float64)

        def gate(name: str, matrices: str) -> Tensor:
            z = linear(w, f"W.{name}", x)
            return z if not states else z + torch.cat([w[f"{matrices}.{k}"] for k in range(len(states))], 1) @ h

        c = torch.sigmoid(gate("i", "U.i")) * torch.tanh(gate("u", "U.u"))
        for k, (_, old) in enumerate(states):
            c = c + torch.sigmoid(gate("f", f"U_f.{k}")) * old
        return torch.sigmoid(gate("o", "U.o")) * torch.tanh(c), c

    return F.cross_entropy(linear(w, "output", visit(tree)[0]), torch.tensor(tree.label))


class TreeGRU(ab.Module):
    """The mean of one GRU step per child, with the node's word as input; leaves are words."""

    def __init__(self, rng: Rng) -> None:
        self.embedding = array(rng, WORDS, DIM)
        self.gru = ab.GRUCell(DIM, DIM, rng=rng)
        self.output = ab.Linear(DIM, CLASSES, rng=rng)

    def visit(self, t: Tree) -> Any:
        x = self.read(t.word)
        if not t.children:
            return x
        return ab.mean_n([self.gru(x, self.visit(child)) for child in t.children])

    @ab.cell
    def read(self, word: Any) -> Any:
        return ab.lookup(self.embedding, word)

    @ab.cell
    def root(self, h: Any, label: Any) -> Any:
        return ab.cross_entropy(self.output(h), label)

    def loss(self, tree: Tree) -> Any:
        return self.root(self.visit(tree), tree.label)


def tree_gru(w: Weights, tree: Tree) -> Tensor:
    def visit(t: Tree) -> Tensor:
        x = w["embedding"][t.word]
        return torch.stack([gru(w, "gru", x, visit(c)) for c in t.children]).mean(0) if t.children else x

    return F.cross_entropy(linear(w, "output", visit(tree)), torch.tensor(tree.label))


class GatedTensorNetwork(ab.Module):
    """A recursive neural tensor network (Socher et al. 2013), gated with the mean of its children."""

    def __init__(self, rng: Rng) -> None:
        self.embedding = array(rng, WORDS, DIM)
        self.V = array(rng, DIM, 2 * DIM, 2 * DIM)
        self.W, self.b = array(rng, DIM, 2 * DIM), array(rng, DIM)
        self.gate = ab.Linear(2 * DIM, DIM, rng=rng)
        self.output = ab.Linear(DIM, CLASSES, rng=rng)

    @ab.cell
    def leaf(self, word: Any) -> Any:
        return ab.tanh(ab.lookup(self.embedding, word))

    @ab.cell
    def merge(self, left: Any, right: Any) -> Any:
        x = ab.concat((left, right))
        tensor = ab.reshape(ab.reshape(self.V, (-1, 2 * DIM)) @ x, (DIM, 2 * DIM)) @ x
        p = ab.tanh(tensor + self.W @ x + self.b)
        g = ab.sigmoid(self.gate(x))
        return g * p + (1.0 - g) * (left + right) / 2.0

    @ab.cell
    def score(self, h: Any, label: Any) -> Any:
        return ab.cross_entropy(self.output(h), label)

    def loss(self, tree: Tree) -> Any:
        total = 0.0

        def visit(t: Tree) -> Any:
            nonlocal total
            h = self.merge(*map(visit, t.children)) if t.children else self.leaf(t.word)
            total = total + self.score(h, t.label)
            return h

        visit(tree)
        return total


def tensor_network(w: Weights, tree: Tree) -> Tensor:
    def visit(t: Tree) -> tuple[Tensor, Tensor]:
        if t.children:
            (left, loss_l), (right, loss_r) = map(visit, t.children)
            x = torch.cat((left, right))
            p = torch.tanh(F.bilinear(x, x, w["V"], w["b"]) + F.linear(x, w["W"]))
            h = torch.lerp((left + right) / 2, p, torch.sigmoid(linear(w, "gate", x)))
        else:
            h, loss_l, loss_r = torch.tanh(w["embedding"][t.word]), torch.tensor(0.0), torch.tensor(0.0)
        return h, loss_l + loss_r + F.cross_entropy(linear(w, "output", h), torch.tensor(t.label))

    return visit(tree)[1]


class MVRNN(ab.Module):
    """A vector and a matrix per node (Socher et al. 2012)."""

    def __init__(self, rng: Rng) -> None:
        self.vectors, self.matrices = array(rng, WORDS, DIM), array(rng, WORDS, DIM, DIM)
        self.W, self.b = array(rng, DIM, 2 * DIM), array(rng, DIM)
        self.W_M = array(rng, DIM, 2 * DIM)
        self.output = ab.Linear(DIM, CLASSES, rng=rng)

    @ab.cell
    def leaf(self, word: Any) -> Any:
        return ab.lookup(self.vectors, word), ab.lookup(self.matrices, word)

    @ab.cell
    def merge(self, left: Any, right: Any) -> Any:
        (a, A), (b, B) = left, right
        p = ab.tanh(self.W @ ab.concat((B @ a, A @ b)) + self.b)
        return p, self.W_M @ ab.concat((A, B), axis=0)

    @ab.cell
    def score(self, node: Any, label: Any) -> Any:
        vector, _ = node
        return ab.cross_entropy(self.output(vector), label)

    def loss(self, tree: Tree) -> Any:
        losses = []

        def visit(t: Tree) -> Any:
            node = self.merge(visit(t.children[0]), visit(t.children[1])) if t.children else self.leaf(t.word)
            losses.append(self.score(node, t.label))
            return node

        visit(tree)
        return ab.mean_n(losses)


def mv_rnn(w: Weights, tree: Tree) -> Tensor:
    losses = []

    def visit(t: Tree) -> tuple[Tensor, Tensor]:
        if t.children:
            (a, A), (b, B) = map(visit, t.children)
            vector = torch.tanh(F.linear(torch.cat((B @ a, A @ b)), w["W"], w["b"]))
            matrix = torch.matmul(w["W_M"], torch.vstack((A, B)))
        else:
            vector, matrix = w["vectors"][t.word], w["matrices"][t.word]
        losses.append(F.cross_entropy(linear(w, "output", vector), torch.tensor(t.label)))
        return vector, matrix

    visit(tree)
    return torch.stack(losses).mean()


class RecursiveAutoencoder(ab.Module):
    """Encodes each inner node from its children and reconstructs them (Socher et al. 2011); unsupervised."""

    def __init__(self, rng: Rng) -> None:
        self.embedding = array(rng, WORDS, DIM)
        self.encoder = ab.Linear(2 * DIM, DIM, rng=rng)
        self.decoder = ab.Linear(DIM, 2 * DIM, rng=rng)

    @ab.cell
    def leaf(self, word: Any) -> Any:
        return ab.lookup(self.embedding, word)

    @ab.cell
    def merge(self, left: Any, right: Any) -> Any:
        children = ab.concat([left, right])
        p = ab.tanh(self.encoder(children))
        p = p / ab.sqrt(ab.sum(p * p))
        return p, ab.sum(ab.squared_error(self.decoder(p), children)) / 2

    def loss(self, tree: Tree) -> Any:
        errors = []

        def visit(t: Tree) -> Any:
            if not t.children:
                return self.leaf(t.word)
            p, error = self.merge(visit(t.children[0]), visit(t.children[1]))
            errors.append(error)
            return p

        return ab.sum(visit(tree) ** 2) * 1e-3 + sum(errors)


def autoencoder(w: Weights, tree: Tree) -> Tensor:
    def visit(t: Tree) -> tuple[Tensor, Tensor]:
        if not t.children:
            return w["embedding"][t.word], torch.tensor(0.0)
        (left, loss_l), (right, loss_r) = map(visit, t.children)
        x = torch.cat((left, right))
        p = F.normalize(torch.tanh(linear(w, "encoder", x)), dim=0)
        return p, loss_l + loss_r + 0.5 * F.mse_loss(linear(w, "decoder", p), x, reduction="sum")

    p, loss = visit(tree)
    return loss + 1e-3 * p.square().sum()


CASES = [
    Case("child-sum tree-lstm", ChildSumTreeLSTM, partial(draw_tree, most=4, depth=2), child_sum),
    Case("n-ary tree-lstm", NaryTreeLSTM, partial(draw_tree, most=3), nary),
    Case("tree-gru of a GRU cell", TreeGRU, partial(draw_tree, most=4), tree_gru),
    Case("gated tensor network", GatedTensorNetwork, draw_binary, tensor_network),
    Case("mv-rnn of full rank", MVRNN, draw_binary, mv_rnn),
    Case("recursive autoencoder", RecursiveAutoencoder, draw_binary, autoencoder),
]
