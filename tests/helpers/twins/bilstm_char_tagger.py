"""The tagger that spells rare words, reimplemented with PyTorch's LSTMs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from autobatch.models.data.sentence import SpelledSentence
from helpers.twins.bilstm_tagger import BiLSTMTaggerTwin
from helpers.twins.bilstm_tagger import name_in_twin as name_of_tagger


class BiLSTMCharTaggerTwin(BiLSTMTaggerTwin):
    """The twin of the tagger, with a bidirectional LSTM for characters."""

    characters: nn.Parameter

    def __init__(self, n_words: int, n_tags: int, dim: int, n_layers: int) -> None:
        super().__init__(n_words, n_tags, dim, n_layers)
        self.spelling = nn.LSTM(dim, dim, bidirectional=True)
        self.join = nn.Linear(2 * dim, dim)

    @classmethod
    def with_state(cls, state: Mapping[str, npt.NDArray[np.floating]]) -> Self:
        n_words, dim = state["embedding"].shape
        twin = cls(n_words, len(state["output.bias"]), dim, n_layers=1)
        twin.characters = nn.Parameter(torch.zeros(len(state["characters"]), dim))
        twin = twin.to(torch.from_numpy(state["embedding"]).dtype)
        twin.load_state_dict({name_in_twin(name): torch.from_numpy(array) for name, array in state.items()})
        return twin

    def scores(self, sentence: SpelledSentence) -> Tensor:  # type: ignore[override]
        """Score the tags of all words: logits (N, C)."""
        states, _ = self.lstm(torch.stack([self.vector(word) for word in sentence.words]))
        logits: Tensor = self.output(states)
        return logits

    def vector(self, word: int | list[int]) -> Tensor:
        """Return the vector of a word, looked up or spelled."""
        if isinstance(word, int):
            return self.embedding[word]
        _, (last, _) = self.spelling(self.characters[torch.tensor(word)])
        vector: Tensor = self.join(last.flatten())
        return vector


def name_in_twin(name: str) -> str:
    """Translate a parameter's name: `spell_leftward.bias_ih` is `spelling.bias_ih_l0_reverse`."""
    direction, _, parameter = name.removeprefix("spell_").partition(".")
    if not name.startswith("spell_"):
        return name_of_tagger(name)
    return name_of_tagger(f"{direction}.0.{parameter}").replace("lstm.", "spelling.")
