"""The models in PyTorch, one instance at a time, as a careful user would write them.

An instance's inputs are converted to tensors beforehand. What does not depend on a state is computed at once for the
whole instance: looking up its words, reading the leaves of a tree, scoring all of its places, and, with PyTorch's own
LSTM, a whole sentence. Batching over instances by hand needs a different program for every model, and is left out here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from autobatch.models.data.lattice import Lattice
from autobatch.models.data.sentence import Sentence
from autobatch.models.data.tree import Tree
from baselines.baseline import Arrays, Baseline, as_ids

State = tuple[Tensor, Tensor]


class Example(NamedTuple):
    """An instance, ready for PyTorch."""

    instance: Any
    ids: tuple[Tensor, ...]
    """Ids of the rows to look up, (K,) for each table."""
    labels: Tensor
    """(N,), in the order of the scores."""


class TorchModel(Baseline):
    """A model that scores the N places of an instance, each of which has a label; a mini-batch is a list."""

    @abstractmethod
    def prepare(self, instance: Any) -> Example:
        """Make the tensors that an instance needs."""

    @abstractmethod
    def scores(self, example: Example) -> Tensor:
        """Score the classes of all places: logits (N, C)."""

    def loss(self, example: Example) -> Tensor:
        """Sum the cross-entropies of all places: a scalar."""
        return nn.functional.cross_entropy(self.scores(example), example.labels, reduction="sum")

    def merge(self, prepared: Sequence[Example]) -> Sequence[Example]:
        """Keep the instances separate."""
        return prepared

    def losses(self, minibatch: Sequence[Example]) -> Tensor:
        """Compute one loss after the other: (B,)."""
        return torch.stack([self.loss(example) for example in minibatch])

    def backward(self, minibatch: Sequence[Example]) -> None:
        """Compute the gradients of the mean loss, one instance after the other."""
        self.zero_grad()
        for example in minibatch:
            torch.autograd.backward(self.loss(example) / len(minibatch))

    def name_here(self, name: str) -> str:
        """Translate the name that a parameter has in autobatch."""
        return name

    def translate(self, arrays: Arrays) -> dict[str, npt.NDArray[np.floating[Any]]]:
        """Translate the names of autobatch's parameters."""
        return {self.name_here(name): array for name, array in arrays.items()}


class TorchTreeLSTM(TorchModel):
    """Binary Tree-LSTM (Tai, Socher, Manning 2015, section 3.2, N = 2); the places are nodes, in postorder."""

    def __init__(self, n_words: int, dim: int, n_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.zeros(n_words, dim))
        self.leaf_gates = nn.Linear(dim, 3 * dim)
        self.left_gates = nn.Linear(dim, 5 * dim)
        self.right_gates = nn.Linear(dim, 5 * dim, bias=False)
        self.output = nn.Linear(dim, n_classes)

    def prepare(self, instance: Tree[int]) -> Example:
        """List the words of a tree, and the labels of its nodes."""
        labels = as_ids(node.label for node in instance.postorder())
        return Example(instance, (as_ids(instance.words()),), labels)

    def leaves(self, words: Tensor) -> Iterator[State]:
        """Compute a state for each word."""
        i, o, u = self.leaf_gates(self.embedding[words]).chunk(3, dim=1)
        c = torch.sigmoid(i) * torch.tanh(u)
        return zip((torch.sigmoid(o) * torch.tanh(c)).unbind(), c.unbind(), strict=True)

    def join(self, left: State, right: State) -> State:
        """Join the states of two children."""
        (h_l, c_l), (h_r, c_r) = left, right
        i, o, u, f_l, f_r = (self.left_gates(h_l) + self.right_gates(h_r)).chunk(5)
        c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f_l) * c_l + torch.sigmoid(f_r) * c_r
        return torch.sigmoid(o) * torch.tanh(c), c

    def scores(self, example: Example) -> Tensor:
        """Score the classes of all nodes."""
        leaves, hidden = self.leaves(*example.ids), []

        def visit(t: Tree[int]) -> State:
            state = next(leaves) if t.is_leaf else self.join(visit(t.left), visit(t.right))
            hidden.append(state[0])
            return state

        visit(example.instance)
        scores: Tensor = self.output(torch.stack(hidden))
        return scores


class TorchBiLSTMTagger(TorchModel):
    """PyTorch's own bidirectional LSTM; the places are words."""

    def __init__(self, n_words: int, n_tags: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.zeros(n_words, dim))
        self.lstm = nn.LSTM(dim, dim, bidirectional=True)
        self.output = nn.Linear(2 * dim, n_tags)

    def name_here(self, name: str) -> str:
        """Translate names such as `leftward.0.weight_hh` to `lstm.weight_hh_l0_reverse`."""
        direction, _, rest = name.partition(".")
        if direction not in ("rightward", "leftward"):
            return name
        layer, _, parameter = rest.partition(".")
        return f"lstm.{parameter}_l{layer}{'_reverse' if direction == 'leftward' else ''}"

    def prepare(self, instance: Sentence[int]) -> Example:
        """List the words of a sentence and their tags."""
        return Example(instance, (as_ids(instance.words),), as_ids(instance.tags))

    def scores(self, example: Example) -> Tensor:
        """Score the tags of all words."""
        (words,) = example.ids
        states, _ = self.lstm(self.embedding[words])
        scores: Tensor = self.output(states)
        return scores


class TorchLatticeLSTM(TorchModel):
    """Sums over arcs of LSTM steps (after Zhang and Yang 2018); the places are all positions except the first."""

    def __init__(self, n_characters: int, n_words: int, n_tags: int, dim: int) -> None:
        super().__init__()
        self.characters = nn.Parameter(torch.zeros(n_characters, dim))
        self.words = nn.Parameter(torch.zeros(n_words, dim))
        self.character_lstm = nn.LSTMCell(dim, dim)
        self.word_lstm = nn.LSTMCell(dim, dim)
        self.first_h = nn.Parameter(torch.zeros(dim))
        self.first_c = nn.Parameter(torch.zeros(dim))
        self.output = nn.Linear(dim, n_tags)

    def prepare(self, instance: Lattice[int]) -> Example:
        """List the characters and the words on the arcs of a lattice, and the tags of its positions."""
        ids = (as_ids(instance.characters()), as_ids(instance.words()))
        return Example(instance, ids, as_ids(instance.tags[1:]))

    def scores(self, example: Example) -> Tensor:
        """Score the tags of all positions except the first."""
        characters, words = example.ids
        read_characters, read_words = iter(self.characters[characters].unbind()), iter(self.words[words].unbind())
        h: list[Tensor] = [self.first_h]
        c: list[Tensor] = [self.first_c]
        for end, arcs in enumerate(example.instance.arcs[1:], start=1):
            steps = [
                self.character_lstm(next(read_characters), (h[start], c[start]))
                if start == end - 1
                else self.word_lstm(next(read_words), (h[start], c[start]))
                for start, _ in arcs
            ]
            h.append(reduce(torch.add, (step_h for step_h, _ in steps)))
            c.append(reduce(torch.add, (step_c for _, step_c in steps)))
        scores: Tensor = self.output(torch.stack(h)[1:])
        return scores
