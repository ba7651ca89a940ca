"""Losses of classifiers of binary trees, in PyTorch: a recursion that collects the states of all nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from autobatch.models.data.tree import Tree


class BinaryTreeTwin(nn.Module):
    """Base class of twins, which compute the states of leaves and of nodes with two children."""

    output: nn.Linear

    def read(self, word: int) -> Any:
        """Return the state of a leaf."""
        raise NotImplementedError

    def join(self, left: Any, right: Any) -> Any:
        """Return the state of a node with two children."""
        raise NotImplementedError

    def hidden(self, state: Any) -> Tensor:
        """Return the vector of a state that classifies its node."""
        vector: Tensor = state
        return vector

    def visit(self, tree: Tree[int], states: list[Any]) -> Any:
        """Return the state of a node; append the states of all nodes below it, and its own."""
        if tree.is_leaf:
            state = self.read(tree.word)
        else:
            left = self.visit(tree.left, states)
            state = self.join(left, self.visit(tree.right, states))
        states.append(state)
        return state

    def scores(self, tree: Tree[int]) -> Tensor:
        """Score the classes of all nodes in postorder: logits (N, C)."""
        states: list[Any] = []
        self.visit(tree, states)
        logits: Tensor = self.output(torch.stack([self.hidden(state) for state in states]))
        return logits

    def loss(self, tree: Tree[int]) -> Tensor:
        """Sum the cross-entropies of all nodes: a scalar."""
        labels = torch.tensor([node.label for node in tree.postorder()])
        return nn.functional.cross_entropy(self.scores(tree), labels, reduction="sum")
