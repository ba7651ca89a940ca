"""The sequence-to-sequence model, reimplemented with PyTorch's LSTMs: one pair at a time, with autograd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from helpers.twins.translator import TranslatorTwin


class Seq2SeqTwin(TranslatorTwin):
    """The decoder reads all words at once, and attends to all encoder states by matrix products."""

    def __init__(self, n_source_words: int, n_target_words: int, dim: int) -> None:
        super().__init__()
        self.source_words = nn.Parameter(torch.zeros(n_source_words, dim))
        self.target_words = nn.Parameter(torch.zeros(n_target_words + 1, dim))
        self.encoder = nn.LSTM(dim, dim)
        self.decoder = nn.LSTM(dim, dim)
        self.attention = nn.Linear(dim, dim, bias=False)
        self.combine = nn.Linear(2 * dim, dim, bias=False)
        self.output = nn.Linear(dim, n_target_words + 1)
        self.end = n_target_words

    @classmethod
    def with_state(cls, state: Mapping[str, npt.NDArray[np.floating]]) -> Seq2SeqTwin:
        n_source_words, dim = state["source_words"].shape
        twin = cls(n_source_words, len(state["output.bias"]) - 1, dim)
        twin = twin.to(torch.from_numpy(state["source_words"]).dtype)
        twin.load_state_dict({name_in_twin(name): torch.from_numpy(array) for name, array in state.items()})
        return twin

    def scores(self, source: Sequence[int], before: Sequence[int]) -> Tensor:
        """Score the words that may follow each word of a translation, `before`: logits (N, V + 1)."""
        first = torch.zeros(1, self.combine.out_features, dtype=self.source_words.dtype)
        memory, state = first[:0], (first, first)
        if len(source):
            memory, state = self.encoder(self.source_words[torch.tensor(source)])
        h, _ = self.decoder(self.target_words[torch.tensor(before)], state)
        weights = torch.softmax(self.attention(h) @ memory.T, dim=1)
        logits: Tensor = self.output(torch.tanh(self.combine(torch.cat((weights @ memory, h), dim=1))))
        return logits


def name_in_twin(name: str) -> str:
    """Translate a parameter's name: `decoder.weight_hh` is `decoder.weight_hh_l0`."""
    return f"{name}_l0" if name.startswith(("encoder.", "decoder.")) else name
