"""The tree-GRU, reimplemented in PyTorch with both children stacked."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from helpers.twins.binary_trees import BinaryTreeTwin


class TreeGRUTwin(BinaryTreeTwin):
    """The twin; its parameters have the names and shapes of the model's."""

    def __init__(self, n_words: int, dim: int, n_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.zeros(n_words, dim))
        self.leaf_gates, self.leaf_candidate = nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.gates = nn.ModuleList(nn.Linear(dim, 2 * dim, bias=False) for _ in range(2))
        self.candidates = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(2))
        self.gate_bias, self.candidate_bias = nn.Parameter(torch.zeros(2 * dim)), nn.Parameter(torch.zeros(dim))
        self.output = nn.Linear(dim, n_classes)

    @classmethod
    def with_state(cls, state: Mapping[str, npt.NDArray[np.floating]]) -> TreeGRUTwin:
        n_words, dim = state["embedding"].shape
        twin = cls(n_words, dim, len(state["output.bias"])).to(torch.from_numpy(state["embedding"]).dtype)
        twin.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        return twin

    def read(self, word: int) -> Tensor:
        """Make one step from the embedding."""
        x = self.embedding[word]
        reset, update = self.leaf_gates(x).sigmoid().chunk(2)
        return torch.lerp(torch.tanh(self.leaf_candidate(reset * x)), x, update)

    def join(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the mean of one step from each child."""
        children = torch.stack((left, right))
        gates, candidates = (
            torch.stack([layer.get_parameter("weight") for layer in layers]) for layers in (self.gates, self.candidates)
        )
        reset, update = torch.sigmoid(torch.einsum("kgh,kh->kg", gates, children) + self.gate_bias).chunk(2, dim=1)
        found = torch.tanh(torch.einsum("kgh,kh->kg", candidates, reset * children) + self.candidate_bias)
        return torch.lerp(found, children, update).mean(0)
