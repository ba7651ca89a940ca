"""The language model, reimplemented with PyTorch's LSTM, one sentence at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn


class LSTMLMTwin(nn.Module):
    """An embedding, `torch.nn.LSTM` and a linear layer."""

    def __init__(self, n_words: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.zeros(n_words + 1, dim))
        self.lstm = nn.LSTM(dim, dim)
        self.output = nn.Linear(dim, n_words + 1)
        self.end = n_words

    @classmethod
    def with_state(cls, state: Mapping[str, npt.NDArray[np.floating]]) -> LSTMLMTwin:
        n_rows, dim = state["embedding"].shape
        twin = cls(n_rows - 1, dim).to(torch.from_numpy(state["embedding"]).dtype)
        twin.load_state_dict({name_in_twin(name): torch.from_numpy(array) for name, array in state.items()})
        return twin

    def scores(self, words: Sequence[int]) -> Tensor:
        """Return the log-probabilities of all words and of the end: (N + 1,)."""
        states, _ = self.lstm(self.embedding[torch.tensor([self.end, *words])])
        return -nn.functional.cross_entropy(self.output(states), torch.tensor([*words, self.end]), reduction="none")

    def loss(self, words: Sequence[int]) -> Tensor:
        """Return the negative log-probability of a sentence: a scalar."""
        return -self.scores(words).sum()


def name_in_twin(name: str) -> str:
    """Translate a parameter's name: `lstm.weight_hh` is `lstm.weight_hh_l0`."""
    return f"{name}_l0" if name.startswith("lstm.") else name
