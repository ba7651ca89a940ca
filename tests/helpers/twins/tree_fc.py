"""Fully connected layers along a tree, reimplemented in PyTorch with a matrix for each child."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from helpers.twins.binary_trees import BinaryTreeTwin


class TreeFCTwin(BinaryTreeTwin):
    """The twin; its parameters have the names and shapes of the model's."""

    def __init__(self, n_words: int, dim: int, n_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.zeros(n_words, dim))
        self.layer = nn.Linear(2 * dim, dim)
        self.output = nn.Linear(dim, n_classes)

    @classmethod
    def with_state(cls, state: Mapping[str, npt.NDArray[np.floating]]) -> TreeFCTwin:
        n_words, dim = state["embedding"].shape
        twin = cls(n_words, dim, len(state["output.bias"])).to(torch.from_numpy(state["embedding"]).dtype)
        twin.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        return twin

    def read(self, word: int) -> Tensor:
        return self.embedding[word]

    def join(self, left: Tensor, right: Tensor) -> Tensor:
        """Apply the layer's two halves, its bias and ReLU."""
        for_left, for_right = self.layer.weight.chunk(2, dim=1)
        return (for_left @ left + for_right @ right + self.layer.bias).clamp(min=0.0)
