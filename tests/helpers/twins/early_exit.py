"""The classifier that stops reading early, reimplemented with PyTorch's LSTM, which reads to the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from autobatch.models.data.tree import Tree


class EarlyExitTwin(nn.Module):
    """An embedding, `torch.nn.LSTM`, and a linear layer after every word."""

    def __init__(self, n_words: int, n_classes: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.zeros(n_words, dim))
        self.lstm = nn.LSTM(dim, dim)
        self.output = nn.Linear(dim, n_classes)

    @classmethod
    def with_state(cls, state: Mapping[str, npt.NDArray[np.floating]]) -> EarlyExitTwin:
        n_words, dim = state["embedding"].shape
        twin = cls(n_words, len(state["output.bias"]), dim).to(torch.from_numpy(state["embedding"]).dtype)
        twin.load_state_dict({name_in_twin(name): torch.from_numpy(array) for name, array in state.items()})
        return twin

    def scores(self, words: Sequence[int]) -> Tensor:
        """Score the labels after every word: logits (N, C)."""
        states, _ = self.lstm(self.embedding[torch.tensor(words)])
        logits: Tensor = self.output(states)
        return logits

    def loss(self, tree: Tree[int]) -> Tensor:
        """Sum the cross-entropies of the label after each word: a scalar."""
        logits = self.scores(tree.words())
        return nn.functional.cross_entropy(logits, torch.tensor([tree.label] * len(logits)), reduction="sum")

    def classify(self, words: Sequence[int]) -> tuple[int, int]:
        """Find the first word after which a probability is above 0.9, or else the last."""
        sure, labels = torch.softmax(self.scores(words), dim=1).max(dim=1)
        n_read = 1 + next((place for place, one in enumerate(sure) if one > 0.9), len(words) - 1)
        return int(labels[n_read - 1]), n_read


def name_in_twin(name: str) -> str:
    """Translate a parameter's name: `lstm.weight_hh` is `lstm.weight_hh_l0`."""
    return f"{name}_l0" if name.startswith("lstm.") else name
