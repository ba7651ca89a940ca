"""The tagger with a conditional random field, reimplemented with PyTorch's LSTM."""

from __future__ import annotations

import torch
from torch import Tensor

from autobatch.models.data.sentence import Sentence
from helpers.twins.bilstm_tagger import BiLSTMTaggerTwin
from helpers.twins.crf import CRFTwin


class BiLSTMCRFTwin(BiLSTMTaggerTwin):
    """The twin of the tagger, with the twin of the random field."""

    def __init__(self, n_words: int, n_tags: int, dim: int, n_layers: int) -> None:
        super().__init__(n_words, n_tags, dim, n_layers)
        self.crf = CRFTwin(n_tags)

    def loss(self, sentence: Sentence[int]) -> Tensor:
        """Return the negative log-probability of the tags: a scalar."""
        return self.crf.loss(self.scores(sentence), sentence.tags)

    @torch.no_grad()
    def tags(self, sentence: Sentence[int]) -> list[int]:
        return self.crf.best(self.scores(sentence))
