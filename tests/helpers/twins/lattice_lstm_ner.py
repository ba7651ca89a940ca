"""The Lattice-LSTM for names, reimplemented in PyTorch, by spans of characters."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from autobatch.models.data.lattice import Lattice
from helpers.twins.crf import CRFTwin

Span = tuple[int, int, int]  # a word: its first and last character, and its id


class ReaderTwin(nn.Module):
    """The linear layers of one direction."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.character_gates = nn.Linear(2 * dim, 4 * dim)
        self.word_gates = nn.Linear(2 * dim, 3 * dim)
        self.weight_gate = nn.Linear(2 * dim, dim)


class LatticeLSTMNERTwin(nn.Module):
    """Weighs words and characters by a softmax over their stacked gates; the leftward reader mirrors the spans."""

    def __init__(self, n_characters: int, n_words: int, n_tags: int, dim: int) -> None:
        super().__init__()
        self.characters = nn.Parameter(torch.zeros(n_characters, dim))
        self.words = nn.Parameter(torch.zeros(n_words, dim))
        self.rightward, self.leftward = ReaderTwin(dim), ReaderTwin(dim)
        self.output = nn.Linear(2 * dim, n_tags)
        self.crf = CRFTwin(n_tags)

    @classmethod
    def with_state(cls, state: Mapping[str, npt.NDArray[np.floating]]) -> LatticeLSTMNERTwin:
        n_characters, dim = state["characters"].shape
        twin = cls(n_characters, len(state["words"]), len(state["output.bias"]), dim)
        twin = twin.to(torch.from_numpy(state["words"]).dtype)
        twin.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        return twin

    def scores(self, lattice: Lattice[int]) -> Tensor:
        """Score the tags of all characters: logits (N, C)."""
        arcs = [(start, end - 1, word) for end, arcs in enumerate(lattice.arcs) for start, word in arcs]
        text = [character for first, last, character in arcs if first == last]
        spans = [arc for arc in arcs if arc[0] != arc[1]]
        mirrored = [(len(text) - 1 - last, len(text) - 1 - first, word) for first, last, word in spans]
        right, left = self.read(self.rightward, text, spans), self.read(self.leftward, text[::-1], mirrored)
        logits: Tensor = self.output(torch.cat((right, left.flip(0)), dim=1))
        return logits

    def read(self, layers: ReaderTwin, text: list[int], spans: list[Span]) -> Tensor:
        """Read a text: return h after each character (N, H)."""
        x = self.characters[torch.tensor(text, dtype=torch.long)]
        c, h = [torch.zeros_like(self.characters[0])], [torch.zeros_like(self.characters[0])]
        for place in range(len(text)):
            i, o, f, u = layers.character_gates(torch.cat((x[place], h[-1]))).chunk(4)
            gates, values = [i.sigmoid()], [u.tanh()]
            for first, last, word in spans:
                if last == place:
                    w_i, w_f, w_u = layers.word_gates(torch.cat((self.words[word], h[first + 1]))).chunk(3)
                    values.append(w_f.sigmoid() * c[first + 1] + w_i.sigmoid() * w_u.tanh())
                    gates.append(layers.weight_gate(torch.cat((x[place], values[-1]))).sigmoid())
            if len(gates) > 1:
                c.append((torch.softmax(torch.stack(gates), dim=0) * torch.stack(values)).sum(0))
            else:
                c.append(f.sigmoid() * c[-1] + i.sigmoid() * u.tanh())
            h.append(o.sigmoid() * c[-1].tanh())
        return torch.stack(h)[1:]

    def loss(self, lattice: Lattice[int]) -> Tensor:
        """Return the negative log-probability of the tags: a scalar."""
        return self.crf.loss(self.scores(lattice), lattice.tags[1:])

    @torch.no_grad()
    def tags(self, lattice: Lattice[int]) -> list[int]:
        return self.crf.best(self.scores(lattice))
