"""The MV-RNN, reimplemented in PyTorch with einsum and halves of the joining matrices."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from helpers.twins.binary_trees import BinaryTreeTwin

State = tuple[Tensor, Tensor]


class MVRNNTwin(BinaryTreeTwin):
    """The twin; its parameters have the names and shapes of the model's."""

    def __init__(self, n_words: int, dim: int, rank: int, n_classes: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.zeros(n_words, dim))
        self.lefts = nn.Parameter(torch.zeros(n_words, dim, rank))
        self.rights = nn.Parameter(torch.zeros(n_words, rank, dim))
        self.diagonals = nn.Parameter(torch.zeros(n_words, dim))
        self.join_vectors = nn.Parameter(torch.zeros(dim, 2 * dim))
        self.join_matrices = nn.Parameter(torch.zeros(dim, 2 * dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.output = nn.Linear(dim, n_classes)

    @classmethod
    def with_state(cls, state: Mapping[str, npt.NDArray[np.floating]]) -> MVRNNTwin:
        n_words, dim, rank = state["lefts"].shape
        twin = cls(n_words, dim, rank, len(state["output.bias"])).to(torch.from_numpy(state["bias"]).dtype)
        twin.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        return twin

    def read(self, word: int) -> State:
        """Return the vector and the matrix of a word."""
        low_rank = torch.einsum("ir,rj->ij", self.lefts[word], self.rights[word])
        return self.vectors[word], low_rank + torch.diag(self.diagonals[word])

    def join(self, left: State, right: State) -> State:
        """Return the vector and the matrix of a node."""
        (a, A), (b, B) = left, right
        for_left, for_right = self.join_vectors.chunk(2, dim=1)
        vector = torch.tanh(for_left.mv(B.mv(a)) + for_right.mv(A.mv(b)) + self.bias)
        for_left, for_right = self.join_matrices.chunk(2, dim=1)
        return vector, for_left.mm(A) + for_right.mm(B)

    def hidden(self, state: State) -> Tensor:
        return state[0]
