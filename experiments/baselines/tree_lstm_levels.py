"""Tree-LSTM as a good user of PyTorch batches it: one call for each level of all trees, gradients by autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from autobatch.models.data.tree import Tree
from baselines.baseline import Arrays, Baseline
from baselines.forest import Forest, Ints, list_nodes, merge_trees


class LevelTreeLSTM(Baseline):
    """Binary Tree-LSTM (Tai, Socher, Manning 2015, section 3.2, N = 2), one matrix for the gates of both children."""

    by_depth = True

    def __init__(self, n_words: int, dim: int, n_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.zeros(n_words, dim))
        self.leaf_gates = nn.Linear(dim, 3 * dim)
        self.gates = nn.Linear(2 * dim, 5 * dim)
        self.output = nn.Linear(dim, n_classes)

    def translate(self, arrays: Arrays) -> dict[str, npt.NDArray[np.floating[Any]]]:
        """Concatenate the matrices of the left and the right child."""
        names = {"left_gates.bias": "gates.bias"}
        here = {names.get(name, name): array for name, array in arrays.items()}
        here["gates.weight"] = np.concatenate([here.pop("left_gates.weight"), here.pop("right_gates.weight")], axis=1)
        return here

    def prepare(self, instance: Tree[int]) -> Ints:
        """Number the nodes of a tree."""
        return list_nodes(instance)

    def merge(self, prepared: Sequence[Ints]) -> Forest:
        """Order the nodes of all trees in levels."""
        return merge_trees(prepared, self.by_depth)

    def losses(self, minibatch: Forest) -> Tensor:
        """Sum the cross-entropies of the nodes of each tree: (B,)."""
        scores = self.output(self.hidden(minibatch))
        losses = nn.functional.cross_entropy(scores, minibatch.labels, reduction="none")
        return losses.new_zeros(minibatch.n_trees).index_add(0, minibatch.trees, losses)

    def hidden(self, forest: Forest) -> Tensor:
        """Compute the hidden states of all nodes: (N, H)."""
        i, o, u = self.leaf_gates(self.embedding.index_select(0, forest.words)).chunk(3, dim=1)
        leaf_c = torch.sigmoid(i) * torch.tanh(u)
        leaf_h = torch.sigmoid(o) * torch.tanh(leaf_c)

        n_leaves = [leaves for leaves, _ in forest.levels]
        children = torch.split(forest.children, [2 * inner for _, inner in forest.levels])
        hidden: list[Tensor] = []
        h = c = leaf_h[:0]
        start = end = 0
        for rows, level_h, level_c in zip(
            children, torch.split(leaf_h, n_leaves), torch.split(leaf_c, n_leaves), strict=True
        ):
            if len(rows):
                inner_h, inner_c = self.join(h, c, rows - start)
                level_h, level_c = torch.cat((level_h, inner_h)), torch.cat((level_c, inner_c))
            h, c = level_h, level_c
            start, end = end, end + len(h)
            hidden.append(h)
        return torch.cat(hidden)

    def join(self, h: Tensor, c: Tensor, children: Tensor) -> tuple[Tensor, Tensor]:
        """Join the states of children, given as adjacent pairs of rows of h and c."""
        dim = h.shape[1]
        i, o, u, f_l, f_r = self.gates(h.index_select(0, children).view(-1, 2 * dim)).chunk(5, dim=1)
        c_l, c_r = c.index_select(0, children).view(-1, 2 * dim).chunk(2, dim=1)
        c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f_l) * c_l + torch.sigmoid(f_r) * c_r
        return torch.sigmoid(o) * torch.tanh(c), c
