"""The bidirectional tagger, reimplemented with PyTorch's LSTM, one sentence at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from autobatch.models.data.sentence import Sentence


class BiLSTMTaggerTwin(nn.Module):
    """An embedding, `torch.nn.LSTM` in both directions, and a linear layer."""

    def __init__(self, n_words: int, n_tags: int, dim: int, n_layers: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.zeros(n_words, dim))
        self.lstm = nn.LSTM(dim, dim, num_layers=n_layers, bidirectional=True)
        self.output = nn.Linear(2 * dim, n_tags)

    @classmethod
    def with_state(cls, state: Mapping[str, npt.NDArray[np.floating]]) -> Self:
        n_words, dim = state["embedding"].shape
        n_layers = sum(name.startswith("leftward.") and name.endswith("weight_hh") for name in state)
        twin = cls(n_words, len(state["output.bias"]), dim, n_layers).to(torch.from_numpy(state["embedding"]).dtype)
        twin.load_state_dict({name_in_twin(name): torch.from_numpy(array) for name, array in state.items()})
        return twin

    def scores(self, sentence: Sentence[int]) -> Tensor:
        """Score the tags of all words: logits (N, C)."""
        states, _ = self.lstm(self.embedding[torch.tensor(sentence.words)])
        logits: Tensor = self.output(states)
        return logits

    def loss(self, sentence: Sentence[int]) -> Tensor:
        """Sum the cross-entropies of all words: a scalar."""
        return nn.functional.cross_entropy(self.scores(sentence), torch.tensor(sentence.tags), reduction="sum")


def name_in_twin(name: str) -> str:
    """Translate a parameter's name: `leftward.1.weight_hh` is `lstm.weight_hh_l1_reverse`."""
    direction, _, rest = name.partition(".")
    if direction not in ("rightward", "leftward"):
        return name
    layer, _, parameter = rest.partition(".")
    return f"lstm.{parameter}_l{layer}{'_reverse' if direction == 'leftward' else ''}"
