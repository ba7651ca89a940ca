"""The network that grows trees, reimplemented in PyTorch: each node reads everything before it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from autobatch.models.data.ordered_tree import DescribedTree, OrderedTree

State = tuple[Tensor, Tensor]


class DoublyRecurrentTwin(nn.Module):
    """Three `torch.nn.LSTM`s and linear layers."""

    def __init__(self, n_words: int, n_labels: int, dim: int) -> None:
        super().__init__()
        self.words = nn.Parameter(torch.zeros(n_words, dim))
        self.labels = nn.Parameter(torch.zeros(n_labels, dim))
        self.encoder = nn.LSTM(dim, dim)
        self.ancestral = nn.LSTM(dim, dim)
        self.fraternal = nn.LSTM(dim, dim)
        self.join = nn.Linear(2 * dim, dim, bias=False)
        self.topology = nn.Linear(dim, 2)
        self.output = nn.Linear(dim, n_labels)
        self.parent_scores = nn.Parameter(torch.zeros(n_labels))
        self.sibling_scores = nn.Parameter(torch.zeros(n_labels))

    @classmethod
    def with_state(cls, state: Mapping[str, npt.NDArray[np.floating]]) -> DoublyRecurrentTwin:
        n_words, dim = state["words"].shape
        twin = cls(n_words, len(state["labels"]), dim).to(torch.from_numpy(state["words"]).dtype)
        twin.load_state_dict({name_in_twin(name): torch.from_numpy(array) for name, array in state.items()})
        return twin

    def read(self, lstm: nn.LSTM, table: Tensor, ids: Sequence[int], state: State) -> State:
        """Read rows of a table, starting from a state."""
        return lstm(table[torch.tensor(ids)], state)[1] if len(ids) else state

    def hidden(self, words: Sequence[int], above: Sequence[int], before: Sequence[int]) -> Tensor:
        """Return the vector (H,) of a node, from the text, the labels above it and those of its earlier siblings."""
        zeros = torch.zeros(1, self.join.out_features, dtype=self.words.dtype)
        state = self.read(self.encoder, self.words, words, (zeros, zeros))
        ancestral, _ = self.read(self.ancestral, self.labels, above, state)
        fraternal, _ = self.read(self.fraternal, self.labels, before, (zeros, zeros))
        return torch.tanh(self.join(torch.cat((ancestral[0], fraternal[0]))))

    def scores(self, hidden: Tensor, is_parent: float, goes_on: float) -> Tensor:
        """Return the logits of a node's label (C,)."""
        logits: Tensor = self.output(hidden) + is_parent * self.parent_scores + goes_on * self.sibling_scores
        return logits

    def loss(self, described: DescribedTree[int]) -> Tensor:
        """Sum the losses of all nodes of a tree: a scalar."""
        return self.loss_of(described.words, [], [described.tree])

    def loss_of(self, words: Sequence[int], above: list[int], siblings: Sequence[OrderedTree[int]]) -> Tensor:
        """Sum the losses of siblings and of all nodes below them."""
        losses = []
        for place, node in enumerate(siblings):
            hidden = self.hidden(words, above, [sibling.label for sibling in siblings[:place]])
            topology = [float(len(node.children) > 0), float(place < len(siblings) - 1)]
            meant = torch.tensor(topology, dtype=hidden.dtype)
            losses.append(nn.functional.binary_cross_entropy_with_logits(self.topology(hidden), meant, reduction="sum"))
            losses.append(nn.functional.cross_entropy(self.scores(hidden, *topology), torch.tensor(node.label)))
            if node.children:
                losses.append(self.loss_of(words, [*above, node.label], node.children))
        return torch.stack(losses).sum()

    def grow(self, words: Sequence[int]) -> OrderedTree[int]:
        """Grow a tree, at most ten steps down or sideways."""
        return self.grow_from(words, [], [], 10)[0]

    def grow_from(
        self, words: Sequence[int], above: list[int], before: list[int], n_steps: int
    ) -> list[OrderedTree[int]]:
        """Grow a node, its descendants and its later siblings."""
        hidden = self.hidden(words, above, before)
        is_parent, goes_on = (self.topology(hidden) > 0.0).tolist()
        label = 1 + int(self.scores(hidden, is_parent, goes_on)[1:].argmax())
        children = self.grow_from(words, [*above, label], [], n_steps - 1) if is_parent and n_steps > 1 else []
        others = self.grow_from(words, above, [*before, label], n_steps - 1) if goes_on and n_steps > 1 else []
        return [OrderedTree(label, children), *others]


def name_in_twin(name: str) -> str:
    """Translate a parameter's name: `encoder.weight_hh` is `encoder.weight_hh_l0`."""
    return f"{name}_l0" if name.startswith(("encoder.", "ancestral.", "fraternal.")) else name
