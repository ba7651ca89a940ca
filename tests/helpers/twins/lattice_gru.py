"""The Lattice-GRU, reimplemented in PyTorch: one lattice at a time, with autograd."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from autobatch.models.data.lattice import Lattice


class LatticeGRUTwin(nn.Module):
    """Averages GRU steps over arcs; all arcs of characters, and all arcs of words, run at once."""

    def __init__(self, n_characters: int, n_words: int, n_tags: int, dim: int) -> None:
        super().__init__()
        self.characters = nn.Parameter(torch.zeros(n_characters, dim))
        self.words = nn.Parameter(torch.zeros(n_words, dim))
        self.character_gru = nn.GRUCell(dim, dim)
        self.word_gru = nn.GRUCell(dim, dim)
        self.first_h = nn.Parameter(torch.zeros(dim))
        self.output = nn.Linear(dim, n_tags)

    @classmethod
    def with_state(cls, state: Mapping[str, npt.NDArray[np.floating]]) -> LatticeGRUTwin:
        n_characters, dim = state["characters"].shape
        twin = cls(n_characters, len(state["words"]), len(state["output.bias"]), dim)
        twin = twin.to(torch.from_numpy(state["words"]).dtype)
        twin.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        return twin

    def scores(self, lattice: Lattice[int]) -> Tensor:
        """Score the tags of all positions but the first: logits (L - 1, C)."""
        h = self.first_h.unsqueeze(0)
        for end, arcs in enumerate(lattice.arcs[1:], start=1):
            total = torch.zeros_like(h[0])
            for table, gru, is_character in (
                (self.characters, self.character_gru, True),
                (self.words, self.word_gru, False),
            ):
                mine = [arc for arc in arcs if (arc[0] == end - 1) == is_character]
                if mine:
                    starts, ids = zip(*mine, strict=True)
                    total = total + gru(table[list(ids)], h[list(starts)]).sum(0)
            h = torch.cat((h, total.unsqueeze(0) / len(arcs)))
        logits: Tensor = self.output(h[1:])
        return logits

    def loss(self, lattice: Lattice[int]) -> Tensor:
        """Sum the cross-entropies of all positions but the first: a scalar."""
        tags = torch.tensor(lattice.tags[1:], dtype=torch.long)
        return nn.functional.cross_entropy(self.scores(lattice), tags, reduction="sum")
