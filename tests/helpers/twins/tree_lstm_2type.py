"""The Tree-LSTM with two sets of gates, reimplemented in PyTorch: one tree at a time, with autograd."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from autobatch.models.tree_lstm import TwoTypeTree

State = tuple[Tensor, Tensor]


class TwoTypeTreeLSTMTwin(nn.Module):
    """Computes the gates of both sets at every inner node; parameters have the names and shapes of the model's."""

    def __init__(self, n_words: int, dim: int, n_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.zeros(n_words, dim))
        self.leaf_gates = nn.Linear(dim, 3 * dim)
        self.left_gates = nn.Linear(dim, 5 * dim)
        self.right_gates = nn.Linear(dim, 5 * dim, bias=False)
        self.other_left_gates = nn.Linear(dim, 5 * dim)
        self.other_right_gates = nn.Linear(dim, 5 * dim, bias=False)
        self.output = nn.Linear(dim, n_classes)

    @classmethod
    def with_state(cls, state: Mapping[str, npt.NDArray[np.floating]]) -> TwoTypeTreeLSTMTwin:
        n_words, dim = state["embedding"].shape
        twin = cls(n_words, dim, len(state["output.bias"])).to(torch.from_numpy(state["embedding"]).dtype)
        twin.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        return twin

    def states(self, instance: TwoTypeTree) -> list[Tensor]:
        """Compute the hidden states (H,) of all nodes, in postorder."""
        pending: list[State] = []
        hidden = []
        n_inner = 0
        for node in instance.tree.postorder():
            if node.is_leaf:
                state = self.read(node.word)
            else:
                right, left = pending.pop(), pending.pop()
                state = self.join(left, right, instance.kinds[n_inner])
                n_inner += 1
            pending.append(state)
            hidden.append(state[0])
        return hidden

    def read(self, word: int) -> State:
        """Compute equations 9 to 14 of Tai, Socher and Manning (2015) without children."""
        in_gate, out_gate, update = self.leaf_gates(self.embedding[word]).chunk(3)
        cell = torch.sigmoid(in_gate) * torch.tanh(update)
        return torch.sigmoid(out_gate) * torch.tanh(cell), cell

    def join(self, left: State, right: State, kind: int) -> State:
        """Compute equations 9 to 14 for two children and no input, with set `kind` of the gates."""
        both = torch.stack(
            [
                self.left_gates(left[0]) + self.right_gates(right[0]),
                self.other_left_gates(left[0]) + self.other_right_gates(right[0]),
            ]
        )
        in_gate, out_gate, update, forget_left, forget_right = both[kind].chunk(5)
        kept = torch.sigmoid(forget_left) * left[1] + torch.sigmoid(forget_right) * right[1]
        cell = torch.sigmoid(in_gate) * torch.tanh(update) + kept
        return torch.sigmoid(out_gate) * torch.tanh(cell), cell

    def scores(self, instance: TwoTypeTree) -> Tensor:
        """Score the classes of all nodes in postorder: logits (N, C); the root's are the last."""
        logits: Tensor = self.output(torch.stack(self.states(instance)))
        return logits

    def loss(self, instance: TwoTypeTree) -> Tensor:
        """Sum the cross-entropies of all nodes: a scalar."""
        labels = torch.tensor([node.label for node in instance.tree.postorder()])
        return nn.functional.cross_entropy(self.scores(instance), labels, reduction="sum")
