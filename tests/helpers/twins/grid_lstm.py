"""The Grid LSTM, reimplemented in PyTorch: one diagonal of the grid at a time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from autobatch.models.data.comparison import Comparison


class GridLSTMTwin(nn.Module):
    """Keeps arrays of the states of rows and columns; the states that meet on a diagonal advance together."""

    def __init__(self, n_words: int, n_classes: int, dim: int) -> None:
        super().__init__()
        self.left_words = nn.Parameter(torch.zeros(n_words, 2 * dim))
        self.right_words = nn.Parameter(torch.zeros(n_words, 2 * dim))
        self.across = nn.LSTMCell(dim, dim)
        self.down = nn.LSTMCell(dim, dim)
        self.output = nn.Linear(2 * dim, n_classes)

    @classmethod
    def with_state(cls, state: Mapping[str, npt.NDArray[np.floating]]) -> GridLSTMTwin:
        n_words, width = state["left_words"].shape
        twin = cls(n_words, len(state["output.bias"]), width // 2).to(torch.from_numpy(state["left_words"]).dtype)
        twin.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        return twin

    def scores(self, pair: Comparison[int]) -> Tensor:
        """Score the labels: logits (1, C)."""
        n_rows, n_columns = len(pair.left), len(pair.right)
        rows = list(self.left_words[torch.tensor(pair.left)].chunk(n_rows))
        columns = list(self.right_words[torch.tensor(pair.right)].chunk(n_columns))
        for diagonal in range(n_rows + n_columns - 1):
            meeting = [(i, diagonal - i) for i in range(n_rows) if 0 <= diagonal - i < n_columns]
            h_row, c_row = torch.cat([rows[i] for i, _ in meeting]).chunk(2, dim=1)
            h_column, c_column = torch.cat([columns[j] for _, j in meeting]).chunk(2, dim=1)
            new_rows = torch.cat(self.across(h_column, (h_row, c_row)), dim=1)
            new_columns = torch.cat(self.down(h_row, (h_column, c_column)), dim=1)
            for place, (i, j) in enumerate(meeting):
                rows[i], columns[j] = new_rows[place, None], new_columns[place, None]
        dim = rows[-1].shape[1] // 2
        logits: Tensor = self.output(torch.cat((rows[-1][:, :dim], columns[-1][:, :dim]), dim=1))
        return logits

    def loss(self, pair: Comparison[int]) -> Tensor:
        """Compute the cross-entropy of the label: a scalar."""
        return nn.functional.cross_entropy(self.scores(pair), torch.tensor([pair.label]))
