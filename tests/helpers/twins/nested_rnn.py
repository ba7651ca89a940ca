"""The nested RNN, reimplemented in PyTorch: its inner RNN reads a row of equal words."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from autobatch.models.data.repeats import Repeats


class NestedRNNTwin(nn.Module):
    """`torch.rnn_tanh` without its second bias, and `torch.nn.GRUCell`; parameters have the names of the model's."""

    def __init__(self, n_words: int, n_tags: int, dim: int) -> None:
        super().__init__()
        self.words = nn.Parameter(torch.zeros(n_words, dim))
        self.read = nn.Linear(dim, dim)
        self.repeat = nn.Linear(dim, dim, bias=False)
        self.outer = nn.GRUCell(dim, dim)
        self.output = nn.Linear(dim, n_tags)
        self.first = nn.Parameter(torch.zeros(dim))

    @classmethod
    def with_state(cls, state: Mapping[str, npt.NDArray[np.floating]]) -> NestedRNNTwin:
        n_words, dim = state["words"].shape
        twin = cls(n_words, len(state["output.bias"]), dim).to(torch.from_numpy(state["words"]).dtype)
        twin.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        return twin

    def scores(self, text: Repeats[int]) -> Tensor:
        """Score the tags after every word: logits (N, C)."""
        weights = [self.read.weight, self.repeat.weight, self.read.bias, torch.zeros_like(self.read.bias)]
        h, states = self.first[None], []
        for word, count in zip(text.words, text.counts, strict=True):
            inputs = self.words[[word] * count]
            u = torch.rnn_tanh(inputs, h, weights, True, 1, 0.0, False, False, False)[1] if count else h
            h = self.outer(u, h)
            states.append(h)
        logits: Tensor = self.output(torch.cat(states))
        return logits

    def loss(self, text: Repeats[int]) -> Tensor:
        """Sum the cross-entropies of all tags: a scalar."""
        return nn.functional.cross_entropy(self.scores(text), torch.tensor(text.tags), reduction="sum")
