"""The MV-RNN of autobatch.models, written again in PyTorch: sums over indices, halves of the matrices that join."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from autobatch.models.data.tree import Tree

State = tuple[Tensor, Tensor]


class MVRNNTwin(nn.Module):
    """Parameters named and shaped as in autobatch."""

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
        """Build the twin of a model from the model's `state_dict()`, in its sizes and its dtype."""
        n_words, dim, rank = state["lefts"].shape
        twin = cls(n_words, dim, rank, len(state["output.bias"])).to(torch.from_numpy(state["bias"]).dtype)
        twin.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        return twin

    def visit(self, tree: Tree[int], vectors: list[Tensor]) -> State:
        """Compute vector and matrix of a node; append the vectors of all nodes below it and its own."""
        if tree.is_leaf:
            vector = self.vectors[tree.word]
            matrix = torch.einsum("ir,rj->ij", self.lefts[tree.word], self.rights[tree.word])
            matrix = matrix + torch.diag(self.diagonals[tree.word])
        else:
            (a, A), (b, B) = self.visit(tree.left, vectors), self.visit(tree.right, vectors)
            for_left, for_right = self.join_vectors.chunk(2, dim=1)
            vector = torch.tanh(for_left.mv(B.mv(a)) + for_right.mv(A.mv(b)) + self.bias)
            for_left, for_right = self.join_matrices.chunk(2, dim=1)
            matrix = for_left.mm(A) + for_right.mm(B)
        vectors.append(vector)
        return vector, matrix

    def scores(self, tree: Tree[int]) -> Tensor:
        """Score the classes of all nodes in postorder: logits (N, C)."""
        vectors: list[Tensor] = []
        self.visit(tree, vectors)
        logits: Tensor = self.output(torch.stack(vectors))
        return logits

    def loss(self, tree: Tree[int]) -> Tensor:
        """Sum the cross-entropies of all nodes: a scalar."""
        labels = torch.tensor([node.label for node in tree.postorder()])
        return nn.functional.cross_entropy(self.scores(tree), labels, reduction="sum")
