"""Rate how related two sentences are with a child-sum Tree-LSTM: the batched version of `torch_before.py`.

python examples/torch_after.py --pairs 256 --dim 64
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import autobatch.torch as abt

N_WORDS, N_SCORES = 200, 5


class Node:
    """A word and its dependents."""

    def __init__(self, word: int, children: list[Node]) -> None:
        self.word, self.children = word, children


def draw_tree(rng: np.random.Generator, topic: int, size: int) -> Node:
    """Draw a tree whose words mostly belong to one topic."""
    word = int(rng.integers(40) + 40 * (topic if rng.random() < 0.8 else rng.integers(5)))
    sizes = np.bincount(rng.integers(min(4, size), size=size - 1)) if size > 1 else []
    return Node(word, [draw_tree(rng, topic, int(n)) for n in sizes if n])


def draw_pairs(n: int, seed: int = 0) -> list[tuple[Node, Node, float]]:
    """Draw pairs of sentences with a score from 1 to 5: the closer their topics, the higher."""
    rng = np.random.default_rng(seed)
    topics = rng.integers(5, size=(n, 2))
    sizes = rng.integers(3, 20, size=(n, 2))
    return [
        (draw_tree(rng, int(a), int(m)), draw_tree(rng, int(b), int(k)), 5.0 - abs(float(a - b)))
        for (a, b), (m, k) in zip(topics, sizes, strict=True)
    ]


class ChildSumTreeLSTM(nn.Module):
    """Encodes a tree from its leaves to its root."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.words = nn.Embedding(N_WORDS, dim)
        self.gates_x = nn.Linear(dim, 3 * dim)
        self.gates_h = nn.Linear(dim, 3 * dim, bias=False)
        self.forget_x = nn.Linear(dim, dim)
        self.forget_h = nn.Linear(dim, dim, bias=False)

    @abt.cell
    def node(self, word: Tensor, child_h: list[Tensor], child_c: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the state of a node (1, H) from those of its children."""
        x = self.words(word).unsqueeze(0)
        h = torch.cat(child_h, dim=0) if child_h else torch.zeros_like(x)
        c = torch.cat(child_c, dim=0) if child_c else torch.zeros_like(x)
        i, o, u = torch.chunk(self.gates_x(x) + self.gates_h(h.sum(dim=0, keepdim=True)), 3, dim=1)
        f = torch.sigmoid(self.forget_x(x) + self.forget_h(h))
        new_c = torch.sigmoid(i) * torch.tanh(u) + (f * c).sum(dim=0, keepdim=True)
        return torch.sigmoid(o) * torch.tanh(new_c), new_c

    def forward(self, tree: Node) -> tuple[Tensor, Tensor]:
        """Return the state of the root."""
        states = [self(child) for child in tree.children]
        return self.node(torch.tensor(tree.word), [h for h, _ in states], [c for _, c in states])


class Similarity(nn.Module):
    """Scores how related two states are, by their product and their distance."""

    def __init__(self, dim: int, hidden: int = 50) -> None:
        super().__init__()
        self.hidden = nn.Linear(2 * dim, hidden)
        self.output = nn.Linear(hidden, N_SCORES)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the log-probabilities of all scores (1, 5)."""
        both = torch.cat((left * right, torch.abs(left - right)), dim=1)
        return functional.log_softmax(self.output(torch.sigmoid(self.hidden(both))), dim=1)


class Relatedness(nn.Module):
    """Compares the predicted scores of a pair with the given one."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.tree = ChildSumTreeLSTM(dim)
        self.similarity = abt.cell(Similarity(dim))

    @abt.batched
    def loss(self, pair: tuple[Node, Node, float]) -> Tensor:
        """Return the Kullback-Leibler divergence of a pair."""
        left, right, score = pair
        target = torch.zeros(1, N_SCORES)
        target[0, int(score) - 1] = 1.0
        found = self.similarity(self.tree(left)[0], self.tree(right)[0])
        return functional.kl_div(found, target, reduction="batchmean")


def main() -> list[float]:
    """Train for some epochs; return the mean loss of each."""
    parser = argparse.ArgumentParser()
    for name, default in (("pairs", 256), ("dim", 64), ("epochs", 3), ("batch-size", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, pairs = Relatedness(options.dim), draw_pairs(options.pairs)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    means = []
    for epoch in range(options.epochs):
        start, total = time.perf_counter(), 0.0
        for first in range(0, len(pairs), options.batch_size):
            batch = pairs[first : first + options.batch_size]
            optimizer.zero_grad()
            loss = model.loss(batch).mean()
            loss.backward()
            total += loss.item() * len(batch)
            optimizer.step()
        means.append(total / len(pairs))
        rate = len(pairs) / (time.perf_counter() - start)
        print(f"epoch {epoch + 1}: loss {means[-1]:.4f}, {rate:.0f} pairs/s", flush=True)
    return means


if __name__ == "__main__":
    main()
