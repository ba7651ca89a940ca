"""The shift-reduce parser, reimplemented in PyTorch: it reads the whole stack and buffer for each action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from autobatch.models.data.tree import Tree


class StackLSTMParserTwin(nn.Module):
    """Two `torch.nn.LSTM`s, linear layers, and two embeddings."""

    def __init__(self, n_words: int, n_classes: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.zeros(n_words, dim))
        self.labels = nn.Parameter(torch.zeros(n_classes, dim))
        self.stack = nn.LSTM(dim, dim)
        self.buffer = nn.LSTM(dim, dim)
        self.join = nn.Linear(2 * dim, dim)
        self.hidden = nn.Linear(2 * dim, dim)
        self.output = nn.Linear(dim, n_classes + 1)

    @classmethod
    def with_state(cls, state: Mapping[str, npt.NDArray[np.floating]]) -> StackLSTMParserTwin:
        n_words, dim = state["embedding"].shape
        twin = cls(n_words, len(state["labels"]), dim).to(torch.from_numpy(state["embedding"]).dtype)
        twin.load_state_dict({name_in_twin(name): torch.from_numpy(array) for name, array in state.items()})
        return twin

    def scores(self, stack: Sequence[Tensor], words: Sequence[int]) -> Tensor:
        """Return the logits of the actions for these stack elements and remaining words: (C + 1,)."""
        top = self.stack(torch.stack(list(stack)))[0][-1]
        left = self.buffer(self.embedding[torch.tensor(words[::-1])])[0][-1] if words else torch.zeros_like(top)
        logits: Tensor = self.output(torch.relu(self.hidden(torch.cat((top, left)))))
        if not words:
            logits = torch.cat((torch.tensor([-torch.inf], dtype=logits.dtype), logits[1:]))
        return logits

    def after(self, stack: list[Tensor], words: list[int], action: int) -> tuple[list[Tensor], list[int]]:
        """Return the stack and the remaining words after an action: 0 shifts, 1 + label reduces."""
        if action == 0:
            return [*stack, self.embedding[words[0]]], words[1:]
        joined = torch.tanh(self.join(torch.cat((stack[-2], stack[-1]))) + self.labels[action - 1])
        return [*stack[:-2], joined], words

    def loss(self, tree: Tree[int]) -> Tensor:
        """Sum the cross-entropies of the actions that build a tree, once the stack has two elements: a scalar."""
        total = torch.zeros((), dtype=self.embedding.dtype)
        stack, words = list[Tensor](), tree.words()
        for node in tree.postorder():
            action = 0 if node.is_leaf else 1 + node.label
            if len(stack) >= 2:
                total = total - torch.log_softmax(self.scores(stack, words), dim=0)[action]
            stack, words = self.after(stack, words, action)
        return total

    def parse(self, words: Sequence[int]) -> list[int]:
        """Find the likeliest action after each prefix of actions."""
        stack, left, actions = list[Tensor](), list(words), list[int]()
        while left or len(stack) > 1:
            actions.append(int(self.scores(stack, left).argmax()) if len(stack) > 1 else 0)
            stack, left = self.after(stack, left, actions[-1])
        return actions


def name_in_twin(name: str) -> str:
    """Translate a parameter's name: `stack.weight_hh` is `stack.weight_hh_l0`."""
    return f"{name}_l0" if name.startswith(("stack.", "buffer.")) else name
