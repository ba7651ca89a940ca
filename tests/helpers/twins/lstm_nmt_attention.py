"""The translator with additive attention, reimplemented in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from helpers.twins.bilstm_tagger import name_in_twin as name_of_direction
from helpers.twins.translator import TranslatorTwin


class LSTMNMTAttentionTwin(TranslatorTwin):
    """The encoder reads all words at once in both directions; the decoder attends to all of them."""

    def __init__(self, n_source_words: int, n_target_words: int, dim: int) -> None:
        super().__init__()
        self.source_words = nn.Parameter(torch.zeros(n_source_words, dim))
        self.target_words = nn.Parameter(torch.zeros(n_target_words + 1, dim))
        self.lstm = nn.LSTM(dim, dim, bidirectional=True)
        self.first = nn.Linear(dim, dim)
        self.query = nn.Linear(dim, dim, bias=False)
        self.key = nn.Linear(2 * dim, dim, bias=False)
        self.compare = nn.Parameter(torch.zeros(dim))
        self.decoder = nn.LSTMCell(3 * dim, dim)
        self.output = nn.Linear(3 * dim, n_target_words + 1)
        self.end = n_target_words

    @classmethod
    def with_state(cls, state: Mapping[str, npt.NDArray[np.floating]]) -> LSTMNMTAttentionTwin:
        n_source_words, dim = state["source_words"].shape
        twin = cls(n_source_words, len(state["output.bias"]) - 1, dim)
        twin = twin.to(torch.from_numpy(state["source_words"]).dtype)
        twin.load_state_dict({name_in_twin(name): torch.from_numpy(array) for name, array in state.items()})
        return twin

    def scores(self, source: Sequence[int], before: Sequence[int]) -> Tensor:
        """Score the words that may follow each word of a translation, `before`: logits (N, V + 1)."""
        zeros = torch.zeros_like(self.compare)
        memory, leftmost = torch.zeros(0, 2 * len(zeros), dtype=zeros.dtype), zeros
        if len(source):
            memory, (last, _) = self.lstm(self.source_words[torch.tensor(source)])
            leftmost = last[1]
        h, c = torch.tanh(self.first(leftmost)), zeros
        seen = []
        for word in before:
            weights = torch.softmax(torch.tanh(self.query(h) + self.key(memory)) @ self.compare, dim=0)
            context = weights @ memory
            h, c = self.decoder(torch.cat((self.target_words[word], context)), (h, c))
            seen.append(torch.cat((h, context)))
        logits: Tensor = self.output(torch.stack(seen))
        return logits


def name_in_twin(name: str) -> str:
    """Translate a parameter's name: `leftward.weight_hh` is `lstm.weight_hh_l0_reverse`."""
    direction, _, parameter = name.partition(".")
    return name_of_direction(f"{direction}.0.{parameter}") if direction in ("rightward", "leftward") else name
