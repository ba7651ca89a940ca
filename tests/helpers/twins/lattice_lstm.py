"""The Lattice-LSTM, reimplemented in PyTorch: one lattice at a time, with autograd."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from autobatch.models.data.lattice import Lattice


class LatticeLSTMTwin(nn.Module):
    """Sums LSTM steps over arcs; the parameters have the names and shapes of the model's."""

    def __init__(self, n_characters: int, n_words: int, n_tags: int, dim: int) -> None:
        super().__init__()
        self.characters = nn.Parameter(torch.zeros(n_characters, dim))
        self.words = nn.Parameter(torch.zeros(n_words, dim))
        self.character_lstm = nn.LSTMCell(dim, dim)
        self.word_lstm = nn.LSTMCell(dim, dim)
        self.first_h = nn.Parameter(torch.zeros(dim))
        self.first_c = nn.Parameter(torch.zeros(dim))
        self.output = nn.Linear(dim, n_tags)

    @classmethod
    def with_state(cls, state: Mapping[str, npt.NDArray[np.floating]]) -> LatticeLSTMTwin:
        n_characters, dim = state["characters"].shape
        twin = cls(n_characters, len(state["words"]), len(state["output.bias"]), dim)
        twin = twin.to(torch.from_numpy(state["words"]).dtype)
        twin.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        return twin

    def scores(self, lattice: Lattice[int]) -> Tensor:
        """Score the tags of all positions but the first: logits (L - 1, C)."""
        n_positions = len(lattice.tags)
        h: list[Tensor] = [self.first_h]
        c: list[Tensor] = [self.first_c]
        for position in range(1, n_positions):
            total_h, total_c = torch.zeros_like(self.first_h), torch.zeros_like(self.first_c)
            for start, word in lattice.arcs[position]:
                is_character = position - start == 1
                table, lstm = (self.characters, self.character_lstm) if is_character else (self.words, self.word_lstm)
                step_h, step_c = lstm(table[word].unsqueeze(0), (h[start].unsqueeze(0), c[start].unsqueeze(0)))
                total_h, total_c = total_h + step_h[0], total_c + step_c[0]
            h.append(total_h)
            c.append(total_c)
        logits: Tensor = self.output(torch.stack(h)[1:])
        return logits

    def loss(self, lattice: Lattice[int]) -> Tensor:
        """Sum the cross-entropies of all positions but the first: a scalar."""
        tags = torch.tensor(lattice.tags[1:], dtype=torch.long)
        return nn.functional.cross_entropy(self.scores(lattice), tags, reduction="sum")
