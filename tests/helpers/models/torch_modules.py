"""Typical PyTorch models, written for one instance at a time, whose modules are cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import autobatch as ab
import autobatch.torch as abt
from autobatch.models.data.lattice import Lattice
from autobatch.models.data.pair import Pair
from autobatch.models.data.sentence import Sentence
from autobatch.models.data.tree import Tree
from helpers.twins.cases import draw_lattices_case, draw_pairs_case, draw_sentences_case, draw_trees_case

State = tuple[Tensor, Tensor]


class Leaf(nn.Module):
    """Computes the state of a word."""

    def __init__(self, n_words: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_words, dim)
        self.gates = nn.Linear(dim, 3 * dim)

    def forward(self, word: Tensor) -> State:
        i, o, u = self.gates(self.embedding(word)).chunk(3, dim=-1)
        c = torch.sigmoid(i) * torch.tanh(u)
        return torch.sigmoid(o) * torch.tanh(c), c


class Merge(nn.Module):
    """Computes the state of an inner node (Tai, Socher and Manning 2015)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.left = nn.Linear(dim, 5 * dim)
        self.right = nn.Linear(dim, 5 * dim, bias=False)

    def forward(self, left: State, right: State) -> State:
        (h_l, c_l), (h_r, c_r) = left, right
        i, o, u, f_l, f_r = (self.left(h_l) + self.right(h_r)).chunk(5, dim=-1)
        c = i.sigmoid() * u.tanh() + f_l.sigmoid() * c_l + f_r.sigmoid() * c_r
        return o.sigmoid() * c.tanh(), c


class Classify(nn.Module):
    """Computes the cross-entropy of the class of a state."""

    def __init__(self, dim: int, n_classes: int) -> None:
        super().__init__()
        self.output = nn.Linear(dim, n_classes)

    def forward(self, state: State, label: Tensor) -> Tensor:
        return functional.cross_entropy(self.output(state[0]), label)


class TreeLSTM(nn.Module):
    """A binary Tree-LSTM with a loss at every node."""

    def __init__(self, n_words: int, dim: int, n_classes: int, runs: str = "auto") -> None:
        super().__init__()
        self.leaf = abt.cell(Leaf(n_words, dim), runs=runs)
        self.merge = abt.cell(Merge(dim), runs=runs)
        self.classify = abt.cell(Classify(dim, n_classes), runs=runs)

    def loss(self, tree: Tree[int]) -> Tensor:
        losses = []

        def visit(t: Tree[int]) -> State:
            state = self.leaf(t.word) if t.is_leaf else self.merge(visit(t.left), visit(t.right))
            losses.append(self.classify(state, t.label))
            return state  # type: ignore[no-any-return]

        visit(tree)
        return torch.stack(losses).sum()


class Tagger(nn.Module):
    """PyTorch's own cells in both directions, with dropout."""

    def __init__(self, n_words: int, n_tags: int, dim: int, runs: str = "auto") -> None:
        super().__init__()
        self.dim, self.runs = dim, runs
        self.embedding = abt.cell(nn.Embedding(n_words, dim), runs=runs)
        self.right = abt.cell(nn.LSTMCell(dim, dim), runs=runs)
        self.left = abt.cell(nn.LSTMCell(dim, dim), runs=runs)
        self.output = abt.cell(nn.Sequential(nn.LayerNorm(2 * dim), nn.Linear(2 * dim, n_tags)), runs=runs)

    def states(self, lstm: nn.Module, vectors: list[Tensor]) -> list[Tensor]:
        zeros = self.left.bias_hh.new_zeros(self.dim)
        states, state = [], (zeros, zeros)
        for vector in vectors:
            state = lstm(vector, state)
            states.append(state[0])
        return states

    def loss(self, sentence: Sentence[int]) -> Tensor:
        vectors = [self.embedding(word) for word in sentence.words]
        rightward = self.states(self.right, vectors)
        leftward = self.states(self.left, vectors[::-1])[::-1]
        scores = [self.output(torch.cat(both)) for both in zip(rightward, leftward, strict=True)]
        losses = [self.word_loss(logits, tag) for logits, tag in zip(scores, sentence.tags, strict=True)]
        return sum(losses) / len(losses)  # type: ignore[return-value]

    @abt.cell
    def word_loss(self, logits: Tensor, tag: Any) -> Tensor:
        return functional.nll_loss(functional.log_softmax(logits, dim=-1), tag)


class Read(nn.Module):
    """Reads a word that spans from one position to another."""

    def __init__(self, n_words: int, dim: int) -> None:
        super().__init__()
        self.words = nn.Parameter(0.1 * torch.randn(n_words, dim))
        self.lstm = nn.LSTMCell(dim, dim)

    def forward(self, word: Tensor, state: State) -> State:
        return self.lstm(self.words[word], state)  # type: ignore[no-any-return]


class LatticeLSTM(nn.Module):
    """Sums, at each position, the states of the words that end there; the first state is learned."""

    def __init__(self, n_characters: int, n_words: int, n_tags: int, dim: int, runs: str = "auto") -> None:
        super().__init__()
        self.character = abt.cell(Read(n_characters, dim), runs=runs)
        self.word = abt.cell(Read(n_words, dim), runs=runs)
        self.classify = abt.cell(Classify(dim, n_tags), runs=runs)
        self.first = nn.Parameter(torch.randn(2, dim))

    def loss(self, lattice: Lattice[int]) -> Tensor:
        states: list[Any] = [(self.first[0], self.first[1])]
        losses = [0.0 * self.first.sum()]
        for end in range(1, len(lattice.arcs)):
            arcs = [
                (self.character if start == end - 1 else self.word)(word, states[start])
                for start, word in lattice.arcs[end]
            ]
            h, c = (torch.stack(parts).sum(dim=0) for parts in zip(*arcs, strict=True))
            states.append((h, c))
            losses.append(self.classify(states[-1], lattice.tags[end]))
        return sum(losses)  # type: ignore[return-value]


class Attend(nn.Module):
    """A decoder step that attends to all words of the source."""

    def __init__(self, n_words: int, dim: int) -> None:
        super().__init__()
        self.words = nn.Embedding(n_words, dim)
        self.step = nn.GRUCell(2 * dim, dim)
        self.output = nn.Linear(dim, n_words)

    def forward(self, word: Tensor, h: Tensor, memory: list[Tensor]) -> tuple[Tensor, Tensor]:
        keys = torch.stack(memory)
        weights = torch.softmax(keys @ h / keys.shape[-1] ** 0.5, dim=0)
        h = self.step(torch.cat((self.words(word), weights @ keys)), h)
        return h, self.output(h)


class Seq2Seq(nn.Module):
    """A GRU encoder and a GRU decoder."""

    def __init__(self, n_source: int, n_target: int, dim: int, runs: str = "auto") -> None:
        super().__init__()
        self.dim, self.end = dim, n_target
        self.words = abt.cell(nn.Embedding(n_source, dim), runs=runs)
        self.read = abt.cell(nn.GRUCell(dim, dim), runs=runs)
        self.write = abt.cell(Attend(n_target + 1, dim), runs=runs)

    def encode(self, source: list[int]) -> tuple[Tensor, list[Tensor]]:
        h, memory = self.words.weight.new_zeros(self.dim), []
        for word in source:
            h = self.read(self.words(word), h)
            memory.append(h)
        return h, memory or [h]

    def loss(self, pair: Pair[int]) -> Tensor:
        h, memory = self.encode(pair.source)
        losses = []
        for before, word in zip([self.end, *pair.target], [*pair.target, self.end], strict=True):
            h, logits = self.write(before, h, memory)
            losses.append(functional.cross_entropy(logits, torch.tensor(word, device=logits.device)))
        return torch.stack(losses).mean()

    async def translate(self, source: list[int]) -> list[int]:
        h, memory = self.encode(source)
        word, words = self.end, list[int]()
        while len(words) < 10:
            h, logits = self.write(word, h, memory)
            word = int(await ab.value(logits.argmax()))
            if word == self.end:
                break
            words.append(word)
        return words


def n_rows(layer: ab.Linear) -> int:
    return layer.weight.shape[0]


def tree_case(runs: str = "auto", dim: int = 4) -> tuple[Any, list[Any]]:
    sizes, trees = draw_trees_case(0, 6, dim)
    return TreeLSTM(len(sizes.embedding.data), dim, 10, runs).double(), trees


def tagger_case(runs: str = "auto", dim: int = 4) -> tuple[Any, list[Any]]:
    sizes, sentences = draw_sentences_case(0, 5, dim)
    return Tagger(len(sizes.embedding.data), n_rows(sizes.output), dim, runs).double(), sentences


def lattice_case(runs: str = "auto", dim: int = 4) -> tuple[Any, list[Any]]:
    sizes, lattices = draw_lattices_case(0, 6, dim)
    n_characters, n_words = len(sizes.characters.data), len(sizes.words.data)  # type: ignore[attr-defined]
    return LatticeLSTM(n_characters, n_words, n_rows(sizes.output), dim, runs).double(), lattices


def seq2seq_case(runs: str = "auto", dim: int = 4) -> tuple[Any, list[Any]]:
    sizes, pairs = draw_pairs_case(0, 5, dim)
    n_source, n_target = len(sizes.source_words.data), len(sizes.target_words.data) - 1  # type: ignore[attr-defined]
    return Seq2Seq(n_source, n_target, dim, runs).double(), pairs


CASES: dict[str, Callable[..., tuple[Any, list[Any]]]] = {
    "tree": tree_case, "tagger": tagger_case, "lattice": lattice_case, "seq2seq": seq2seq_case,
}  # fmt: skip
