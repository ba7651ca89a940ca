"""Losses of classifiers of trees with any number of children, in PyTorch: nodes in postorder, a stack of states."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from autobatch.models.data.labelled_tree import LabelledTree


class LabelledTreeTwin(nn.Module):
    """Base class of twins, which compute the state of a node from its word and its children's stacked states."""

    embedding: nn.Parameter
    output: nn.Linear
    n_parts = 2
    """Number of vectors in a state."""

    def node(self, word: int, children: Tensor) -> Tensor:
        """Return the state of a node."""
        raise NotImplementedError

    def hidden(self, state: Tensor) -> Tensor:
        """Return the vector of a state that classifies its node."""
        raise NotImplementedError

    def scores(self, tree: LabelledTree[int]) -> Tensor:
        """Score the classes of all nodes in postorder: logits (N, C)."""
        dim = self.embedding.shape[1]
        pending: list[Tensor] = []
        hidden = []
        for node in tree.postorder():
            below = [pending.pop() for _ in node.children][::-1]
            stacked = torch.stack(below) if below else self.embedding.new_zeros(0, self.n_parts, dim)
            state = self.node(node.word, stacked)
            pending.append(state)
            hidden.append(self.hidden(state))
        logits: Tensor = self.output(torch.stack(hidden))
        return logits

    def loss(self, tree: LabelledTree[int]) -> Tensor:
        """Sum the cross-entropies of all labelled nodes: a scalar."""
        labels = torch.tensor([-100 if node.label is None else node.label for node in tree.postorder()])
        return nn.functional.cross_entropy(self.scores(tree), labels, reduction="sum")
